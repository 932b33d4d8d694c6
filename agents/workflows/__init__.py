"""Workflows: declared sequences of calls and questions to agents, run as sessions."""
