"""Clients: the edge where requests leave and answers are stamped."""
