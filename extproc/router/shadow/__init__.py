"""What another rule would make of the same requests: two pictures of a pool, side by side. Pure."""
