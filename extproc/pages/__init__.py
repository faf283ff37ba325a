"""Pages for reports: one HTML file with its plots, no script, nothing fetched, no report's own words."""
