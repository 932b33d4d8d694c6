"""Lazily compiled re2 pattern.

All of them together take a quarter of a second, and most processes and commands scan nothing.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import re2

ROOMY: Final = re2.Options()
ROOMY.max_mem = 64 << 20
ROOMY.log_errors = False


class LinearPattern:
    """A pattern of google-re2; a wrong one fails at its first use."""

    def __init__(self, said: str, options: re2.Options | None = None) -> None:
        self._said = said
        self._options = options

    @cached_property
    def _compiled(self) -> Any:
        return re2.compile(self._said, self._options)

    def search(self, text: Any) -> Any:
        """Return the first match in a text or in bytes, None if there is none."""
        return self._compiled.search(text)

    def finditer(self, text: Any) -> Iterator[Any]:
        """Yield the matches in a text or in bytes."""
        found: Iterator[Any] = self._compiled.finditer(text)
        return found
