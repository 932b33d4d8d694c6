"""Deleted objects that can be restored for ten minutes."""
