"""Whom we talk to: the ext_proc protocol, from gRPC messages to routing decisions."""
