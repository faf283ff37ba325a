"""KV events: what engines say of their caches themselves."""
