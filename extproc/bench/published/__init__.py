"""Results that others have published, and what they prove."""
