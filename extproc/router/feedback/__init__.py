"""What became of requests, and what follows for the endpoints that they were sent to."""
