"""Placement policies. Each one orders the endpoints that may take a request and says why."""
