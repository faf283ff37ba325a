"""Several processes that serve as one: who starts and watches them, and what is told of all of them."""
