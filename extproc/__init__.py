"""Prefix-cache-aware routing for vLLM behind Envoy, as an ext_proc service."""

__version__ = "0.2.0"
