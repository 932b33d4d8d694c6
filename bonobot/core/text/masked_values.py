"""Replacements for removed parts of stored values."""

MASK = "********"  # replaces a secret
TOO_DEEP = "…"  # replaces values that are nested too deeply
