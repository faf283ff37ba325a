"""Reports: one finished run, or several, told in different formats."""
