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
ORDERING_PARAMETER = "ordering"


class StableCursorPagination(CursorPagination):
    """Cursor pagination: concurrent inserts and deletes neither repeat nor skip rows."""

    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 500
    ordering: Any = ("-created_at", "-pk")
    # The fields next to `results` on the last page.
    last_page_fields: ClassVar[dict[str, None]] = {"next": None}
    # Rows of one transaction may have the same time; a page must be able to begin among them.
    offset_cutoff = 100_000

    def get_page_size(self, request: Any) -> int:
        """Return the requested size; raises `InvalidInput` unless it is from 1 to 500."""
        text = request.query_params.get(self.page_size_query_param, str(self.page_size))
        if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= self.max_page_size:
            return int(text)
        raise InvalidInput(
            format_message("Invalid `limit`: {text!r}.", text=text[:20]),
            field="limit",
            remedy=format_message("Use a number from 1 to {limit}.", limit=self.max_page_size),
        )

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> list[Any] | None:
        """Return one page; raises `InvalidInput` (code `bad_cursor`) for an invalid cursor."""
        try:
            queryset = self.limit_rows(queryset, request, view)
            return super().paginate_queryset(queryset, request, view)
        except (NotFound, ValidationError, ValueError):
            raise InvalidInput(
                "The cursor is invalid.",
                code="bad_cursor",
                field="cursor",
                remedy="Use the `next` link as returned, or start without a cursor.",
            ) from None

    def limit_rows(self, queryset: Any, request: Any, view: Any) -> Any:
        """Return the rows that a page may contain; a hook for subclasses."""
        return queryset

    def get_ordering(self, request: Any, queryset: Any, view: Any) -> tuple[str, ...]:
        """Return the requested ordering, followed by the view's default ordering."""
        default_ordering = tuple(getattr(view, "ordering", None) or self.ordering)
        requested = parse_ordering(request, view.orderings)
        requested_columns = {column.lstrip("-") for column in requested}
        return requested + tuple(
            column for column in default_ordering if column.lstrip("-") not in requested_columns
        )

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
                "description": "The cursor in `next` of the previous page.",
                "schema": {"type": "string"},
            },
            {
                "name": self.page_size_query_param,
                "in": "query",
                "required": False,
                "description": "Maximum number of results.",
                "schema": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": self.max_page_size,
                    "default": self.page_size,
                },
            },
            {
                "name": ORDERING_PARAMETER,
                "in": "query",
                "required": False,
                "description": "Comma-separated sort fields: "
                f"{', '.join(f'`{name}`' for name in view.orderings)}. Prefix `-` for descending.",
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
                    "description": "URL of the next page; null on the last page.",
                },
            },
        }


def parse_ordering(request: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the requested ordering, empty if there is none.

    Raises `InvalidInput` (code `unknown_ordering`) for names that aren't in `names`.
    """
    text = request.query_params.get(ORDERING_PARAMETER)
    requested = () if text is None else tuple(text.split(","))
    if unknown := [column for column in requested if column.removeprefix("-") not in names]:
        raise InvalidInput(
            format_message("This list can't be ordered by {name!r}.", name=unknown[0][:80]),
            code="unknown_ordering",
            field=ORDERING_PARAMETER,
            remedy=format_message(
                "Use one of these, with a `-` prefix to reverse the order: {names}.",
                names=", ".join(names),
            ),
        )
    first_by_name = {column.removeprefix("-"): column for column in reversed(requested)}
    return tuple(
        column
        for column in dict.fromkeys(requested)
        if first_by_name[column.removeprefix("-")] == column
    )


def paginate_items(
    request: Any,
    items: Sequence[T],
    key: Callable[[T], str],
    serialize: Callable[[T], Any],
    *,
    ordering_name: str = "name",
) -> Response:
    """Return a page of items that aren't rows, sorted by a unique `key`, which is the cursor.

    `ordering_name` is the name of the only ordering.
    """
    size = StableCursorPagination().get_page_size(request)
    after = request.query_params.get("cursor")
    is_descending = parse_ordering(request, (ordering_name,)) == (f"-{ordering_name}",)
    remaining = sorted(items, key=key, reverse=is_descending)
    if after is not None:
        remaining = [
            candidate
            for candidate in remaining
            if (key(candidate) < after if is_descending else key(candidate) > after)
        ]
    has_more = len(remaining) > size
    url = request.build_absolute_uri()
    next_url = replace_query_param(url, "cursor", key(remaining[size - 1])) if has_more else None
    return Response({"results": [serialize(item) for item in remaining[:size]], "next": next_url})
