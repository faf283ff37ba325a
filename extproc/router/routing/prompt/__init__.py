"""How a prompt is read: from body bytes to hashed blocks."""
