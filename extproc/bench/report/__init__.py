"""One finished run as one value, and the formats that show it."""
