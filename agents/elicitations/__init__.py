"""Elicitation requests of servers to people."""
