"""Performing: an operation of REST for a principal whom this process knows already.

The view is the one that HTTP reaches, so rules, checks, shapes and the audit are the same. There is
no second sign-in: whoever calls here has been let in at the gateway.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from rest_framework.authentication import BaseAuthentication
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from bonobot.lib.problems import Forbidden, NotFound, Problem
from bonobot.tenancy.api.resources import Resource
from bonobot.tenancy.authentication import TokenUser
from bonobot.tenancy.principals import Principal

# What a problem's details hold beside what they add.
_MEMBERS = ("type", "title", "status", "code", "detail", "field", "remedy", "rule", "retry_after")


@dataclass(frozen=True)
class Asked:
    """A request: the view with the parts of its path, the query, and the body."""

    view: type[Resource]
    method: str
    parts: Mapping[str, str]
    query: Mapping[str, Any]
    body: Mapping[str, Any] | None = None
    client: str = ""


def perform(principal: Principal, asked: Asked) -> Any:
    """Return what the view answers, as JSON values; raises `Problem` for what it refuses."""

    class Known(BaseAuthentication):
        def authenticate(self, request: Request) -> tuple[Any, None]:
            request.bonobot_principal = principal  # type: ignore[attr-defined]
            return TokenUser(), None

    view: Any = asked.view.as_view(authentication_classes=(Known,), scope=None)
    response = view(_request(asked), **asked.parts)
    found: Any = None
    if response.data is not None:
        found = json.loads(JSONRenderer().render(response.data))
    if response.status_code >= 400:
        raise _problem(found)
    return _with_cursor(found)


def _request(asked: Asked) -> ASGIRequest:
    body = b"" if asked.body is None else json.dumps(asked.body).encode()
    headers = {
        "host": urlsplit(settings.BONOBOT_URL).netloc,
        "user-agent": asked.client,
        "content-type": "application/json",
        "content-length": str(len(body)),
    }
    query = {name: _text(value) for name, value in asked.query.items()}
    scope = {
        "type": "http",
        "method": asked.method,
        "path": "/api",
        "query_string": urlencode(query).encode(),
        "headers": [
            (name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()
        ],
    }
    return ASGIRequest(scope, BytesIO(body))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _problem(found: Mapping[str, Any]) -> Problem:
    more = {name: value for name, value in found.items() if name not in _MEMBERS}
    kind = {403: Forbidden, 404: NotFound}.get(found["status"], Problem)
    return kind(
        found["detail"],
        code=found["code"],
        field=found.get("field", ""),
        remedy=found.get("remedy", ""),
        rule=found.get("rule", ""),
        status=found["status"],
        retry_after=found.get("retry_after"),
        extra=more,
    )


def _with_cursor(found: Any) -> Any:
    """Return a page whose `next` is the cursor alone: there is no address to follow here."""
    if not isinstance(found, dict) or not set(found) >= {"results", "next"}:
        return found
    asked = parse_qs(urlsplit(found["next"] or "").query)
    return found | {"next": asked.get("cursor", [None])[0]}
