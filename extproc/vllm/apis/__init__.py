"""The serving APIs that vLLM speaks, each read into an `Ask` and worded from its outcome."""
