"""Whether figures mean what they seem to. Pure."""
