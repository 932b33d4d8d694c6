"""Template libraries of the admin."""
