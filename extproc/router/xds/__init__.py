"""Clusters and endpoints served to Envoy over xDS."""
