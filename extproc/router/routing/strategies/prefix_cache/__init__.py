"""The default strategy: a cost over an index of what each endpoint has cached."""
