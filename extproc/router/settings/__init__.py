"""The configuration: one strict pydantic tree."""
