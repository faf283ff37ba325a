"""`extproc doctor`: what a support conversation would end in, each with its fix."""
