"""The service while somebody looks at it: a page, a stream of pictures of it, and the same in a terminal."""
