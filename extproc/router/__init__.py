"""The router: what runs beside Envoy. README.md is the map."""
