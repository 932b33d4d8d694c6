"""UUIDs in text from outside, such as a query string."""

from uuid import UUID


def parse_uuid(text: str) -> UUID | None:
    """Return a UUID, or None for other text."""
    try:
        return UUID(text)
    except ValueError:
        return None
