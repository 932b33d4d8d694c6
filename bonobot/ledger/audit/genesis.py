"""The digest before the first entry of a hash chain."""

GENESIS = "0" * 64
