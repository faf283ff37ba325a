"""Gateways that tell each other their picks, so that all of them decide by one picture. Pure."""
