"""Pages of the admin's lists, whose cost doesn't grow with the list."""

from functools import cached_property
from typing import Any

from django.core.paginator import Paginator

# An exact count reads every row that fits; nobody turns to page 201.
MOST_LISTED = 10_000
# A search reads the rows themselves, not an index: it goes on until so many fit.
MOST_FOUND = 1_000


class BoundedPaginator(Paginator):
    """Counts up to `most` rows and lists those; `more` tells that there are others."""

    def __init__(self, *args: Any, most: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.most = most or MOST_LISTED

    @cached_property
    def count(self) -> int:
        """Return how many rows can be turned to."""
        return min(self._found, self.most)

    @property
    def more(self) -> bool:
        """Tell whether rows lie behind the last page."""
        return self._found > self.most

    @cached_property
    def _found(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[: self.most + 1].count())
