"""What we decide: endpoints, prefixes, loads, strategies. Pure: no I/O, no clock, no environment."""
