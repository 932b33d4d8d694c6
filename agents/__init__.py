"""Agents: who may do what, and what happened."""
