"""Marks: what stands in a stored value where something was taken out of it. Pure."""

MASK = "********"  # a secret was there
TOO_DEEP = "…"  # values nested too deeply were there
