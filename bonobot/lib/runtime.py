"""Runtime."""


def close() -> None:
    """Close."""
