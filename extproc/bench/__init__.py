"""The benchmark tool: datasets, load, measurement, verdict, reports."""
