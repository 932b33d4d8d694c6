"""Lists in pages: `{"results": […], "next": …}`, where `next` is the address of the next page."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from bonobot.lib.problems import Invalid

T = TypeVar("T")


class Pages(CursorPagination):
    """Pages by cursor: rows that come or go meanwhile neither repeat nor skip others."""

    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 500
    ordering: Any = ("-created_at", "-pk")
    # Rows of one transaction may share their time; a page must be able to begin among them.
    offset_cutoff = 100_000

    def get_page_size(self, request: Any) -> int:
        """Return the wanted size; raises `Invalid` for what is no number from 1 to 500."""
        text = request.query_params.get(self.page_size_query_param, str(self.page_size))
        if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= self.max_page_size:
            return int(text)
        raise Invalid(
            f"`limit` is {text[:20]!r}.",
            field="limit",
            remedy=f"Use a number from 1 to {self.max_page_size}.",
        )

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> list[Any] | None:
        """Return one page; raises `Invalid` (code `bad_cursor`) for a cursor that isn't ours."""
        try:
            return super().paginate_queryset(queryset, request, view)
        except (NotFound, ValidationError, ValueError):
            raise Invalid(
                "The cursor is not one of ours.",
                code="bad_cursor",
                field="cursor",
                remedy="Follow `next` as it was given, or begin without a cursor.",
            ) from None

    def get_ordering(self, request: Any, queryset: Any, view: Any) -> tuple[str, ...]:
        """Return the view's own ordering, if it has one."""
        return tuple(getattr(view, "ordering", None) or self.ordering)

    def get_paginated_response(self, data: Any) -> Response:
        """Return the page with the address of the next one, or null."""
        return Response({"results": data, "next": self.get_next_link()})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Describe the same for OpenAPI."""
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


def page_of(
    request: Any, items: Sequence[T], name: Callable[[T], str], shape: Callable[[T], Any]
) -> Response:
    """Answer a page of what is no table: `items` are sorted by `name`, which is the cursor."""
    size = Pages().get_page_size(request)
    after = request.query_params.get("cursor")
    rest = [item for item in items if after is None or name(item) > after]
    more = len(rest) > size
    address = request.build_absolute_uri()
    following = replace_query_param(address, "cursor", name(rest[size - 1])) if more else None
    return Response({"results": [shape(item) for item in rest[:size]], "next": following})
