"""A simulated vLLM: one engine model, served over HTTP or run as a fleet in virtual time."""
