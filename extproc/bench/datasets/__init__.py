"""The dataset preprocessor: sources, filters, lengths, and an honest account of the result."""
