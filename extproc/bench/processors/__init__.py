"""Request processors: one per API, pure, turning queries into bodies and answers into pieces."""
