"""Default and maximum sizes of an agent's workspace."""

USUAL_MIB = 256
USUAL_FILES = 10_000
MOST_FILES = 100_000  # counting them takes about a second
