"""Why prefixes are lost: where prompts of one pool part that begin alike, and what stands there."""
