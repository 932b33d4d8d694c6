"""Shared parts of the REST API: bodies, lists and errors."""
