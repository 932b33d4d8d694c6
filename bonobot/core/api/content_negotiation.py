"""What REST answers are written in: JSON, whatever `Accept` says."""

from typing import Any

from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request

PROBLEM_JSON = "application/problem+json"


class JSONContentNegotiation(BaseContentNegotiation):
    """Answers are JSON, whatever `Accept` says (problems and event streams name themselves)."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        """Return the parser of the body's content type."""
        given = request.content_type.partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == given), None)

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[Any, str]:
        """Return the one renderer."""
        return renderers[0], renderers[0].media_type
