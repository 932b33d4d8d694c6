"""Default and maximum sizes of an agent's workspace."""

DEFAULT_WORKSPACE_MIB = 256
DEFAULT_WORKSPACE_FILES = 10_000
MAX_WORKSPACE_FILES = 100_000  # counting them takes about a second
