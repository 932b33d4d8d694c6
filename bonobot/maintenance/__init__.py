"""Backups and rotation of keys."""
