"""`extproc init`: files to begin with, a configuration or a folder for `kubectl apply -k`."""
