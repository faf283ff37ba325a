"""Benchmarks as objects of Kubernetes: their schema, what is to be done about them, and who does it."""
