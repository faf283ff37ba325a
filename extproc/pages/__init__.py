"""Pages for reports: one HTML file with its plots, no script, nothing fetched; others know whose report."""
