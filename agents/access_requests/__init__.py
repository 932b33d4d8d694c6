"""Requests of members for servers, tools and agents, and their answers."""
