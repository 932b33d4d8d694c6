"""Lazily compiled re2 patterns.

Compiling all of them takes 0.25 s, and most processes and commands need none.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import re2

LARGE_MEMORY: Final = re2.Options()
LARGE_MEMORY.max_mem = 64 << 20
LARGE_MEMORY.log_errors = False


class LinearPattern:
    """A google-re2 pattern, compiled on first use."""

    def __init__(self, pattern: str, options: re2.Options | None = None) -> None:
        self._pattern = pattern
        self._options = options

    @cached_property
    def _compiled(self) -> Any:
        return re2.compile(self._pattern, self._options)

    def search(self, text: Any) -> Any:
        """Return the first match in a text or bytes, or None."""
        return self._compiled.search(text)

    def finditer(self, text: Any) -> Iterator[Any]:
        """Yield the matches in a text or bytes."""
        matches: Iterator[Any] = self._compiled.finditer(text)
        return matches
