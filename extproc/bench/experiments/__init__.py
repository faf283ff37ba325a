"""One run, or several that answer a question together; and what a run would be."""
