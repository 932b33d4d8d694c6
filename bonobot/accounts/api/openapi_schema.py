"""OpenAPI descriptions of the REST API.

A method's docstring is its summary and description, its rule names the roles, and every operation
lists the problems that it can return.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar, cast

from drf_spectacular.contrib.django_filters import DjangoFilterExtension
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import build_examples_list
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema

from bonobot.accounts.roles import ALLOWED_ROLES
from bonobot.core.api import selected_fields
from bonobot.core.api import serializers as api_serializers
from bonobot.core.api.pagination import StableCursorPagination
from bonobot.core.api.serializers import ProblemDetailsSerializer, StrictSerializer
from bonobot.core.process_cache import compute_once

F = TypeVar("F", bound=Callable[..., Any])

# Otherwise it looks for GeoDjango's library, with forty runs of gcc, ld and ldconfig.
DjangoFilterExtension._has_gis = False  # type: ignore[attr-defined]

# Example requests by schema name, each with a title, and one example response of each schema.
REQUESTS_PATH = Path(__file__).with_name("requests.json")
ANSWERS_PATH = Path(__file__).with_name("answers.json")
_PAGE_SCHEMA = re.compile("Paginated(.+)List")
WRITE_METHODS = ("POST", "PUT", "PATCH", "DELETE")
PROBLEM_DESCRIPTIONS = {
    400: "The request is invalid; see `field`, `errors`, and `remedy`.",
    401: "Not authenticated, or the token is unknown, revoked, or expired.",
    403: "Not allowed by the role, a policy, or a rule; see `rule`.",
    404: "The object doesn't exist, or belongs to another organization.",
    409: "The request conflicts with existing data or a concurrent change.",
    412: "The object has changed since the version in `If-Match`; see `changed`.",
    422: "The idempotency key was used for another request.",
    429: "Too many requests; wait `retry_after` seconds.",
    502: "A request to another host failed; see `code`.",
    503: "A required service is unavailable.",
}
PROBLEM_EXAMPLES: dict[int, dict[str, Any]] = {
    400: {"code": "unknown_transport", "detail": "Unknown transport 'ftp'."}
    | {"field": "transport_type", "remedy": "Use `stdio` for a local program, `http` for a URL."},
    401: {"code": "not_authenticated", "detail": "You aren't signed in."}
    | {"remedy": "Send `Authorization: Bearer …`, or sign in first."},
    403: {"code": "forbidden", "detail": "The role `auditor` doesn't have permission for this."}
    | {"rule": "role:manage_servers", "remedy": "Contact an owner or operator."},
    404: {"code": "not_found", "detail": "The MCP server 'b1c8…' doesn't exist.", "field": "pk"},
    409: {"code": "name_taken", "detail": "A server with a name like 'time' already exists."}
    | {"field": "name", "remedy": "Choose another name."},
    412: {"code": "precondition_failed", "field": "If-Match"}
    | {"detail": "Not saved. The object was changed in the meantime."}
    | {"changed": {"enabled": False}, "version": "x3Jk…"},
    422: {"code": "idempotency_mismatch"}
    | {"detail": "This idempotency key was used for another request."},
    429: {"code": "rate_limited", "detail": "Too many calls.", "retry_after": 4.2},
    502: {"code": "document_unreachable", "field": "endpoint_config.document_url"}
    | {"detail": "The document couldn't be fetched: api.example.com doesn't resolve."},
    503: {"code": "audit_unavailable", "detail": "The audit log can't be written."},
}
ORGANIZATION_PARAMETER = OpenApiParameter(
    "Bonobot-Organization",
    str,
    OpenApiParameter.HEADER,
    description="Slug of the organization, for people who belong to several.",
)
IDEMPOTENCY_KEY_PARAMETER = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[\\x21-\\x7e]+$"},
    OpenApiParameter.HEADER,
    description=(
        "Repeating a write with the same key within 24 hours has no further effect and "
        "returns the first response."
    ),
)

IF_MATCH_PARAMETER = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="The `ETag` of the version you read; the write fails if the object has changed.",
)
VERSIONED_METHODS = ("PUT", "PATCH", "DELETE")


def describe_operation(
    operation_id: str,
    *,
    body: Any = None,
    answer: Any = None,
    status: int | tuple[int, ...] = 200,
    parameters: Any = None,
    examples: Any = None,
    calls: bool = False,
    asks: bool = False,
) -> Callable[[F], F]:
    """Describe a method: its operation id and the serializers of its body and response.

    `calls`: the method makes a governed call, which limits can deny. `asks`: it contacts another
    host, which can fail.
    """

    statuses = status if isinstance(status, tuple) else (status,)

    def decorate(method: F) -> F:
        described: Any = extend_schema(
            operation_id=operation_id,
            request=body,
            responses=answer if isinstance(answer, dict) else dict.fromkeys(statuses, answer),
            parameters=parameters,
            examples=examples,
        )(method)
        described.answer = answer
        described.makes_calls = calls
        described.asks_others = asks or calls
        return cast(F, described)

    return decorate


class ResourceViewSchema(AutoSchema):
    """The OpenAPI schema of a `ResourceView`."""

    view: Any

    def get_summary(self) -> str:
        """Return the first line of the method's docstring."""
        return self._read_docstring().partition("\n")[0].rstrip(".")

    def get_description(self) -> str:  # type: ignore[override]  # as drf-spectacular has it
        """Return the rest of the docstring and the roles."""
        description = self._read_docstring().partition("\n")[2].strip()
        roles = f"Roles: {self._describe_roles()}."
        return f"{description}\n\n{roles}" if description else roles

    def get_override_parameters(self) -> list[Any]:
        """Return the header parameters of every operation."""
        if self.method in WRITE_METHODS:
            version_parameters = [IF_MATCH_PARAMETER] if self._is_versioned() else []
            return [ORGANIZATION_PARAMETER, IDEMPOTENCY_KEY_PARAMETER, *version_parameters]
        names = selected_fields.list_selectable_fields(self.view, self.method)
        return (
            [ORGANIZATION_PARAMETER, _build_fields_parameter(names)]
            if names
            else [ORGANIZATION_PARAMETER]
        )

    def get_filter_backends(self) -> list[Any]:
        """Return the filter backends, also for exports that have a filter set."""
        return list(self.view.filter_backends) if self._is_filtered() else []

    def _get_serializer_name(
        self, serializer: Any, direction: Any, bypass_extensions: bool = False
    ) -> str:
        # Schema names omit the suffixes of our classes: `Server` and `ServerRequest`.
        name: str = super()._get_serializer_name(serializer, direction, bypass_extensions)
        return name.replace("Shape", "").replace("Body", "")

    def _map_basic_serializer(self, serializer: Any, direction: Any) -> Any:
        # Undeclared fields of a body are refused; responses may get new fields.
        mapped = super()._map_basic_serializer(serializer, direction)
        if direction == "request" and isinstance(serializer, StrictSerializer):
            mapped["additionalProperties"] = False
        return mapped

    def _get_request_body(self, direction: Any = "request") -> Any:
        body = super()._get_request_body(direction)
        for content in (body or {}).get("content", {}).values():
            name = content["schema"].get("$ref", "").rpartition("/")[2].removeprefix("Patched")
            if examples := _read_examples(REQUESTS_PATH).get(name):
                content["examples"] = build_examples_list(
                    [OpenApiExample(title, value) for title, value in examples.items()]
                )
        return body

    def _get_response_bodies(self, direction: Any = "response") -> Any:
        bodies = super()._get_response_bodies(direction)
        for code, answer in bodies.items():
            content = answer.get("content", {}).get("application/json", {})
            page_fields = getattr(
                self.view, "pagination_class", StableCursorPagination
            ).last_page_fields
            example = find_example(content.get("schema", {}).get("$ref", ""), page_fields)
            if code.startswith("2") and example is not None:
                content.setdefault("examples", {"answer": {"value": example}})
        if names := selected_fields.list_selectable_fields(self.view, self.method):
            bodies["200"]["content"][selected_fields.SPARSE_JSON] = {
                "schema": _build_partial_schema(
                    names, self.view.paginator if self._is_list_view() else None
                )
            }
        ref = self.resolve_serializer(ProblemDetailsSerializer, "response").ref
        for status in self._list_problem_statuses():
            example = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
            bodies[str(status)] = {
                "description": PROBLEM_DESCRIPTIONS[status],
                "content": {
                    "application/problem+json": {
                        "schema": ref,
                        "examples": {"problem": {"value": example | PROBLEM_EXAMPLES[status]}},
                    }
                },
            }
        return bodies

    def _list_problem_statuses(self) -> Iterator[int]:
        is_write = self.method in WRITE_METHODS
        method = getattr(self.view, self.method.lower())
        common_parameters = {ORGANIZATION_PARAMETER, IDEMPOTENCY_KEY_PARAMETER, IF_MATCH_PARAMETER}
        has_query = self._is_list_view() or self._is_filtered()
        # Without an id in the path, the organization header may be required.
        if (
            is_write
            or has_query
            or "{" not in self.path
            or set(self.get_override_parameters()) - common_parameters
        ):
            yield 400
        yield from (401, 403, 404)
        if is_write:
            yield 409
            if self._is_versioned():
                yield 412
            yield 422
        if getattr(method, "makes_calls", False):
            yield 429
        if getattr(method, "asks_others", False):
            yield 502
        yield 503

    def _is_versioned(self) -> bool:
        """Return whether an operation changes an object, or is an action of one."""
        is_action = self.method == "POST" and "{" in self.path and not hasattr(self.view, "get")
        return is_action or self.method in VERSIONED_METHODS

    def _is_filtered(self) -> bool:
        return self.method == "GET" and hasattr(self.view, "filterset_class")

    def _read_docstring(self) -> str:
        text = getattr(self.view, self.method.lower()).__doc__ or ""
        lines = [line.removeprefix("        ").rstrip() for line in text.strip().splitlines()]
        return "\n".join(lines)

    def _describe_roles(self) -> str:
        rule = self.view.rules.get(self.method, ())
        actions = rule if isinstance(rule, tuple) else (rule,)
        roles = [role for action in actions for role in ALLOWED_ROLES[action].split(", ")]
        return ", ".join(dict.fromkeys(roles)) or "none"


class SerializedSchemaGenerator(SchemaGenerator):
    """Generates OpenAPI documents, one at a time in a process.

    drf-spectacular keeps state in classes (its extensions, the schema of a view), which two
    generations at once corrupt.
    """

    _lock = threading.Lock()

    def get_schema(self, request: Any = None, public: bool = False) -> dict[str, Any]:
        """Return the document."""
        with self._lock:
            document: dict[str, Any] = super().get_schema(request, public)
        return document


class BearerTokenScheme(OpenApiAuthenticationExtension):
    """The OpenAPI security scheme of tokens."""

    target_class = "bonobot.accounts.api.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        """Return the scheme."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A token created by an owner: `bnb_…`.",
        }


def find_example(ref: str, page_fields: Mapping[str, Any]) -> Any:
    """Return the example response of a schema reference, or None.

    `page_fields` are the fields of a page in addition to its rows.
    """
    name = ref.rpartition("/")[2]
    if rows := _PAGE_SCHEMA.fullmatch(name):
        row = _read_examples(ANSWERS_PATH).get(rows[1])
        return None if row is None else {"results": [row], **page_fields}
    return _read_examples(ANSWERS_PATH).get(name)


@compute_once
def _read_examples(path: Path) -> dict[str, Any]:
    examples: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return examples


def _build_fields_parameter(names: tuple[str, ...]) -> OpenApiParameter:
    return OpenApiParameter(
        selected_fields.FIELDS_PARAMETER,
        {"type": "string", "pattern": api_serializers.build_list_pattern(names)},
        description="Comma-separated fields to return of each object; the response's type is then "
        f"`{selected_fields.SPARSE_JSON}`.",
    )


def _build_partial_schema(names: tuple[str, ...], paginator: Any | None) -> dict[str, Any]:
    part = {"type": "object", "propertyNames": {"enum": list(names)}, "additionalProperties": True}
    if paginator is None:
        return part
    schema: dict[str, Any] = paginator.get_paginated_response_schema(
        {"type": "array", "items": part}
    )
    return schema
