"""The admin port of all workers: each is asked over its own, and what they tell becomes one."""
