"""How gateways' letters get from one to another. What they say, and what is made of it: `routing.share`."""
