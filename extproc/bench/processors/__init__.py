"""Request processors: one per API, pure, turning what is asked into bodies and answers into pieces."""
