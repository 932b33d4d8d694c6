"""The writer: one thread of a process admits and settles all of its calls."""
