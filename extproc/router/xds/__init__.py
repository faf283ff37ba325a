"""Proxies kept in step: clusters and endpoints served to Envoy over xDS."""
