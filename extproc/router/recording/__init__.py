"""A pool's requests as a trace of hashes: when they came, how long they were, what they had in common."""
