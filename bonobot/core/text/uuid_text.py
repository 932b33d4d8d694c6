"""The text of UUIDs: a call writes its own several times, and those of its organization."""

from collections.abc import Callable
from functools import lru_cache
from uuid import UUID

# Returns what `str` returns.
format_uuid: Callable[[UUID], str] = lru_cache(maxsize=4096)(str)
