"""The ext_proc protocol: from a proxy's gRPC messages to routing decisions."""
