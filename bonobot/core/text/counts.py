"""Numbers with their nouns, for English texts of the command line."""


def format_count(count: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun, such as "1 tool" or "2,000 tools"; the default adds an s."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"
