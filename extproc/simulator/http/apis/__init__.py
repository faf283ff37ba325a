"""The serving APIs that vLLM speaks, each read into an `Order` and worded from its outcome."""
