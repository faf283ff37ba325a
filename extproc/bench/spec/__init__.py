"""The spec file: what a benchmark has to do, as one strict tree."""
