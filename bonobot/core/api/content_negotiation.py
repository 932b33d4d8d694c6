"""Content negotiation of the REST API."""

from typing import Any

from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request

PROBLEM_JSON = "application/problem+json"


class JSONContentNegotiation(BaseContentNegotiation):
    """Responds with JSON regardless of `Accept`; problems and event streams set their own type."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        """Return the parser for the body's content type, or None."""
        content_type = request.content_type.partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == content_type), None)

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[Any, str]:
        return renderers[0], renderers[0].media_type
