"""The simulated engine: pure, the clock is passed in."""
