"""The spec file: what a benchmark is asked to do, as one strict tree."""
