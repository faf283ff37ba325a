"""The HTTP face of a simulated vLLM: its routes, its answers, its metrics, in real time or faster."""
