"""A fleet of simulated endpoints behind the project's own picker, in virtual time."""
