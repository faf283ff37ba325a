"""What other projects route by, as baselines: ours after their sources, and no choice of the service."""
