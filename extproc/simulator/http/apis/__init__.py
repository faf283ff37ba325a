"""The serving APIs that vLLM speaks, each read into an `ApiRequest` and worded from its outcome."""
