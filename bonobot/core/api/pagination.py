"""Cursor pagination of lists."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from django.core.exceptions import ValidationError
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from bonobot.core.api.serializers import build_list_pattern
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

T = TypeVar("T")
ORDERING = "ordering"


class StableCursorPagination(CursorPagination):
    """Cursor pagination: concurrent inserts and deletes neither repeat nor skip rows."""

    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 500
    ordering: Any = ("-created_at", "-pk")
    # The fields beside `results` on the last page.
    nothing_more: ClassVar[dict[str, None]] = {"next": None}
    # Rows of one transaction may have the same time; a page must be able to begin among them.
    offset_cutoff = 100_000

    def get_page_size(self, request: Any) -> int:
        """Return the requested size; raises `InvalidInput` unless it is from 1 to 500."""
        text = request.query_params.get(self.page_size_query_param, str(self.page_size))
        if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= self.max_page_size:
            return int(text)
        raise InvalidInput(
            format_message("`limit` is {text!r}.", text=text[:20]),
            field="limit",
            remedy=format_message(
                "Use a number from 1 to {max_page_size}.", max_page_size=self.max_page_size
            ),
        )

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> list[Any] | None:
        """Return one page; raises `InvalidInput` (code `bad_cursor`) for an invalid cursor."""
        try:
            queryset = self.bounded(queryset, request, view)
            return super().paginate_queryset(queryset, request, view)
        except (NotFound, ValidationError, ValueError):
            raise InvalidInput(
                "The cursor is not one of ours.",
                code="bad_cursor",
                field="cursor",
                remedy="Follow `next` as it was given, or begin without a cursor.",
            ) from None

    def bounded(self, queryset: Any, request: Any, view: Any) -> Any:
        """Return the rows that a page may contain; a hook for subclasses."""
        return queryset

    def get_ordering(self, request: Any, queryset: Any, view: Any) -> tuple[str, ...]:
        """Return the requested ordering, followed by the view's default ordering."""
        usual = tuple(getattr(view, "ordering", None) or self.ordering)
        asked = parse_ordering(request, view.orderings)
        named = {column.lstrip("-") for column in asked}
        return asked + tuple(column for column in usual if column.lstrip("-") not in named)

    def get_paginated_response(self, data: Any) -> Response:
        """Return the page with the URL of the next one, or null."""
        return Response({"results": data, "next": self.get_next_link()})

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """Describe the parameters of a list for OpenAPI."""
        return [
            {
                "name": self.cursor_query_param,
                "in": "query",
                "required": False,
                "description": "Where the page begins, as `next` of the page before has it.",
                "schema": {"type": "string"},
            },
            {
                "name": self.page_size_query_param,
                "in": "query",
                "required": False,
                "description": "How many are wanted at most.",
                "schema": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": self.max_page_size,
                    "default": self.page_size,
                },
            },
            {
                "name": ORDERING,
                "in": "query",
                "required": False,
                "description": "By what the list is sorted, with commas between: "
                f"{', '.join(f'`{name}`' for name in view.orderings)}; `-` before one turns it.",
                "schema": {
                    "type": "string",
                    "pattern": build_list_pattern(view.orderings, sign="-?"),
                },
            },
        ]

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Describe a page for OpenAPI."""
        return {
            "type": "object",
            "required": ["results", "next"],
            "properties": {
                "results": schema,
                "next": {
                    "type": ["string", "null"],
                    "format": "uri",
                    "description": "Address of the next page; null on the last one.",
                },
            },
        }


def parse_ordering(request: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the requested ordering, empty if there is none.

    Raises `InvalidInput` (code `unknown_ordering`) for names that aren't in `names`.
    """
    text = request.query_params.get(ORDERING)
    asked = () if text is None else tuple(text.split(","))
    if strange := [one for one in asked if one.removeprefix("-") not in names]:
        raise InvalidInput(
            format_message("This list has no order by {strange!r}.", strange=strange[0][:80]),
            code="unknown_ordering",
            field=ORDERING,
            remedy=format_message(
                "Use one of these, `-` before it turns it: {names}.", names=", ".join(names)
            ),
        )
    first = {one.removeprefix("-"): one for one in reversed(asked)}
    return tuple(one for one in dict.fromkeys(asked) if first[one.removeprefix("-")] == one)


def paginate_items(
    request: Any,
    items: Sequence[T],
    key: Callable[[T], str],
    shape: Callable[[T], Any],
    *,
    by: str = "name",
) -> Response:
    """Return a page of items that aren't rows, sorted by a unique `key`, which is the cursor.

    `ordering_name` is the name of the only ordering.
    """
    size = StableCursorPagination().get_page_size(request)
    after = request.query_params.get("cursor")
    backwards = parse_ordering(request, (by,)) == (f"-{by}",)
    rest = sorted(items, key=key, reverse=backwards)
    if after is not None:
        rest = [one for one in rest if (key(one) < after if backwards else key(one) > after)]
    more = len(rest) > size
    address = request.build_absolute_uri()
    following = replace_query_param(address, "cursor", key(rest[size - 1])) if more else None
    return Response({"results": [shape(item) for item in rest[:size]], "next": following})
