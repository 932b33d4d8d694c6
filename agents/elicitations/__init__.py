"""Elicitation requests: what servers ask of people."""
