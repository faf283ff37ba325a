"""Rules and dashboards for whoever watches the router; not a part of it, and not installed."""
