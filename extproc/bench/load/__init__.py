"""The load generator: when requests start, and the processes that start them."""
