"""How large an agent's own workspace is, if nothing else is said, and may be at most."""

USUAL_MIB = 256
USUAL_FILES = 10_000
MOST_FILES = 100_000  # counting them takes about a second
