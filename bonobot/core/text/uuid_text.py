"""The text of UUIDs. A call writes its ids several times, and those of its organization each time."""

from collections.abc import Callable
from functools import lru_cache
from uuid import UUID

# Returns what `str` returns.
format_uuid: Callable[[UUID], str] = lru_cache(maxsize=4096)(str)
