"""How it runs: the parts of `extproc serve`, each with one job; `app.py` puts them together."""
