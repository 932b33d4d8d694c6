"""ResourceView: the base of every REST view.

A view declares the action that each method needs; methods without a rule are closed. Objects of
other organizations are treated as missing. Writes may have an `Idempotency-Key`, and the version of
the object in `If-Match` or `version`; a write without either isn't checked, so that simple clients
can ignore versions. For an action (POST) of an object, `If-Match` is the object's version.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Model
from django.urls import Resolver404, URLPattern, path, resolve
from rest_framework.generics import GenericAPIView
from rest_framework.permissions import SAFE_METHODS
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from bonobot.accounts.api import idempotency_keys
from bonobot.accounts.api.openapi_schema import ResourceViewSchema
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.extension_points import read_hooks, response_hooks
from bonobot.accounts.models import Organization, StoredResponse
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action, TokenScope, build_permission_error
from bonobot.core.api import selected_fields
from bonobot.core.api.pagination import StableCursorPagination
from bonobot.core.api.parsers import PROBLEM_JSON, BoundedJSONParser, JSONContentNegotiation
from bonobot.core.api.serializers import StrictSerializer, VersionedSerializer
from bonobot.core.db import object_version
from bonobot.core.db.object_version import (
    PreconditionFailed,
    Unversioned,
    VersionConflict,
    compute_version,
    is_current,
    list_changed_parts,
)
from bonobot.core.db.transactions import lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, InvalidInput, NotFound, Problem
from bonobot.core.text.masked_values import MASK

logger = logging.getLogger(__name__)

# A method needs one of these actions.
Rule = Action | tuple[Action, ...]
READ: Rule = Action.VIEW
READ_OR_RUN: Rule = (Action.VIEW, Action.RUN_AGENTS)

Row = TypeVar("Row")
ModelRow = TypeVar("ModelRow", bound=Model)


VERSION_FIELD = "version"
IF_MATCH_HEADER = "If-Match"
ANY_VERSION = "*"
_CHECKED_METHODS = ("PUT", "PATCH", "DELETE")
# RFC 9110, 8.8.3. Weak tags never match for writes (13.1.1).
_TAG = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*')


def build_etag(view: Any, response: Response) -> str | None:
    """Return the `ETag` of a response with one versioned object, else None."""
    if view.shown_parts is None or not 200 <= response.status_code < 300 or response.data is None:
        return None
    return f'"{compute_version(view.shown_parts)}"'


def require_version(view: Any, method: str) -> None:
    """Check the version that a request requires, now and again in the transaction of its change.

    Raises `PreconditionFailed` for the header and `VersionConflict` for the body's field.
    """
    is_action = method == "POST" and bool(view.kwargs) and not hasattr(view, "get")
    if not is_action and method not in _CHECKED_METHODS:
        return
    header = view.request.headers.get(IF_MATCH_HEADER)
    body_version = None
    if method in _CHECKED_METHODS and isinstance(view.request.data, Mapping):
        body_version = view.request.data.get(VERSION_FIELD)
    if not isinstance(body_version, str | int):
        body_version = None  # the serializer refuses other types
    if header is None and body_version is None:
        return
    if is_action:
        view = _find_view_above(view) or view
    check = partial(_check_version, view, header, body_version)
    check()
    object_version.add_precondition(partial(_check_locked, view, check))


def _find_view_above(view: Any) -> Any:
    """Return the view of the object that an action changes, from the path without its last part.

    None if there is none; raises `Forbidden` if the principal can't read the object.
    """
    try:
        match = resolve(view.request.path_info.rpartition("/")[0])
    except Resolver404:
        return None
    object_view = match.func.cls()  # type: ignore[attr-defined]
    if not hasattr(object_view, "get"):
        return None
    object_view.request, object_view.args, object_view.kwargs = view.request, (), match.kwargs
    object_view._authorize("GET")
    return object_view


def _check_locked(view: Any, check: Any) -> None:
    lock_rows(view.query_rows_to_lock())
    check()


def _check_version(view: Any, header: str | None, body_version: str | int | None) -> None:
    current, parts = _load_current_object(view)
    if header is not None and header.strip() != ANY_VERSION:
        tags = _parse_strong_tags(header)
        if parts is None or not any(is_current(parts, tag) for tag in tags):
            raise _build_version_problem(
                PreconditionFailed, current, parts, tags[0] if tags else ""
            )
    if isinstance(body_version, int) and body_version != current.get(VERSION_FIELD):
        raise VersionConflict(
            {VERSION_FIELD: current.get(VERSION_FIELD)},
            _compute_version(parts),
            field=VERSION_FIELD,
        )
    if isinstance(body_version, str) and (parts is None or not is_current(parts, body_version)):
        raise _build_version_problem(VersionConflict, current, parts, body_version)


def _compute_version(parts: Mapping[str, Any] | None) -> str:
    return "" if parts is None else compute_version(parts)


def _load_current_object(view: Any) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return the object's current representation and the parts of its version, if it has one."""
    get_view = getattr(view, "get", None)
    if get_view is None:
        return {}, None
    view.shown_row, view.shown_parts = None, None
    response = get_view(view.request, *view.args, **view.kwargs)
    parts, view.shown_parts = view.shown_parts, None
    return response.data if isinstance(response.data, Mapping) else {}, parts


def _parse_strong_tags(header: str) -> list[str]:
    """Return the strong tags of a header; invalid ones are dropped."""
    matches = [_TAG.fullmatch(tag) for tag in header.split(",")]
    return [tag[2] for tag in matches if tag is not None and not tag[1]]


def _build_version_problem(
    problem_class: type[VersionConflict],
    current: Mapping[str, Any],
    parts: Mapping[str, Any] | None,
    version: str,
) -> Conflict:
    if parts is None:
        return Unversioned(code=problem_class.code, status=problem_class.status)
    changed_parts = {name: current.get(name, MASK) for name in list_changed_parts(parts, version)}
    field = IF_MATCH_HEADER if problem_class is PreconditionFailed else VERSION_FIELD
    return problem_class(changed_parts, compute_version(parts), field=field)


class ResourceView(GenericAPIView):
    """A REST view with permission rules; see the module."""

    rules: ClassVar[Mapping[str, Rule]] = {}
    # Methods open to tokens limited to agents: they read and run, on objects of those agents.
    agent_token_methods: ClassVar[tuple[str, ...]] = ()
    ordering: ClassVar[tuple[str, ...]] = ()
    # Fields that a list may be ordered by; columns without nulls, as cursors need.
    orderings: ClassVar[tuple[str, ...]] = ()
    # The scope that a token needs; None if the view is called on behalf of another surface.
    scope: ClassVar[TokenScope | None] = TokenScope.API

    schema = ResourceViewSchema()
    parser_classes = (BoundedJSONParser,)
    renderer_classes = (JSONRenderer,)
    content_negotiation_class = JSONContentNegotiation
    pagination_class = StableCursorPagination
    metadata_class = None
    http_method_names = ["get", "head", "post", "put", "patch", "delete"]
    request: Request
    _claimed_answer: StoredResponse | None = None
    _selected_fields: frozenset[str] | None = None  # fields of a sparse response; None: all
    # The last object returned: its row, which writers lock, and the parts of its version.
    shown_row: Any = None
    shown_parts: Mapping[str, Any] | None = None

    @property
    def principal(self) -> Principal:
        return resolve_principal(self.request)

    @property
    def organization_id(self) -> UUID:
        return self.principal.organization_id

    def read_body(
        self, serializer_class: type[StrictSerializer], *, partial: bool = False
    ) -> dict[str, Any]:
        """Return the validated body; raises `ValidationError`."""
        serializer = serializer_class(
            data=self._drop_read_only_fields(serializer_class),
            partial=partial,
            context={"view": self},
        )
        serializer.is_valid(raise_exception=True)
        body = dict(serializer.validated_data)
        body.pop(VERSION_FIELD, None)  # checked separately
        return body

    def _drop_read_only_fields(self, serializer_class: type[StrictSerializer]) -> Any:
        """Return the body; that of a PUT without fields that GET returns but can't be written."""
        body = self.request.data
        if self.request.method != "PUT" or not isinstance(body, Mapping):
            return body
        read_only_names = set(selected_fields.list_selectable_fields(self, "GET"))
        read_only_names -= {
            name for name, field in serializer_class().fields.items() if not field.read_only
        }
        return {name: value for name, value in body.items() if name not in read_only_names}

    def list_body_fields(self) -> set[str]:
        """Return the field names of the body before validation."""
        return set(self.request.data) if isinstance(self.request.data, Mapping) else set()

    def get_row(self, model: type[ModelRow], rows: Any = None, **named_id: str) -> ModelRow:
        """Return the organization's row with an ID, such as `get_row(Token, token_id=token_id)`.

        `rows` limits the rows that can be found. Raises `NotFound` with the ID's name as its field.
        """
        [(field, row_id)] = named_id.items()
        searched_rows: Any = model._default_manager if rows is None else rows
        with set_not_found_field(field):
            row: ModelRow = searched_rows.get_or_404(self.organization_id, pk=row_id)
        return row

    def respond_page(self, rows: Any, serializer_class: type[Any], **context: Any) -> Response:
        """Return a response with one page of `rows`, filtered by the query."""
        page = self.paginate_queryset(self.filter_queryset(rows))
        self.report_read(page or ())
        context = {"view": self, "request": self.request, **context}
        rows = selected_fields.limit_serializer_fields(
            serializer_class(page, many=True, context=context), self._selected_fields
        )
        return self.get_paginated_response(rows.data)

    def respond_row(
        self,
        row: Any,
        serializer_class: type[Any],
        *,
        status: int = 200,
        owner: Any = None,
        **context: Any,
    ) -> Response:
        """Return a response with one row; `owner` is the row to lock if it is another one."""
        context = {"view": self, "request": self.request, **context}
        self.report_read([row] if owner is None else [row, owner])
        serializer = selected_fields.limit_serializer_fields(
            serializer_class(row, context=context), self._selected_fields
        )
        data = serializer.data
        if isinstance(serializer, VersionedSerializer):
            self.shown_row, self.shown_parts = owner or row, serializer.parts
        return Response(data, status=status)

    def report_read(self, rows: Sequence[Any]) -> None:
        """Call the hooks of upper packages for rows that a response contains."""
        for hook in read_hooks:
            hook(self.principal, str(self.request.method), rows)

    def query_rows_to_lock(self) -> Any:
        """Return the rows to lock while the version is compared."""
        row = self.shown_row
        if isinstance(row, Model):
            return type(row)._base_manager.filter(pk=row.pk)
        return Organization.objects.filter(pk=self.organization_id)

    def filter_queryset(self, queryset: Any) -> Any:
        """Apply the view's filters; raises `InvalidInput` for unknown parameters."""
        self.check_parameters()
        return super().filter_queryset(queryset)

    def check_parameters(self) -> None:
        """Raise `InvalidInput` (code `unknown_parameter`) for unknown query parameters."""
        filters = getattr(self, "filterset_class", None)
        known_parameters = {"cursor", "limit", *(filters.base_filters if filters else ())}
        known_parameters |= {"ordering"} if self.orderings else set()
        known_parameters |= (
            {selected_fields.FIELDS_PARAMETER}
            if selected_fields.list_selectable_fields(self, "GET")
            else set()
        )
        if unknown := sorted(set(self.request.query_params) - known_parameters):
            raise InvalidInput(
                format_message("Unknown parameter {name!r}.", name=unknown[0]),
                code="unknown_parameter",
                field=unknown[0],
                remedy=format_message(
                    "Supported parameters: {known}.", known=", ".join(sorted(known_parameters))
                ),
            )

    # -- Request handling -----------------------------------------------------------------------

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Handle a request in a scope of its own for preconditions."""
        with object_version.open_scope():
            return super().dispatch(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate, check the rule of the method, and claim the idempotency key."""
        super().initial(request, *args, **kwargs)
        if any("\x00" in str(part) for part in kwargs.values()):
            raise NotFound("No object with this name exists.")  # PostgreSQL refuses NUL in queries
        method = "GET" if request.method == "HEAD" else str(request.method)
        if not hasattr(self, method.lower()):
            return  # a 405 for every principal
        self._authorize(method)
        self._selected_fields = selected_fields.parse_selected_fields(
            request.query_params, selected_fields.list_selectable_fields(self, method)
        )
        key = request.headers.get(idempotency_keys.IDEMPOTENCY_HEADER)
        if key is not None and method not in SAFE_METHODS:
            claimed_request = {
                "method": method,
                "path": request.get_full_path(),
                "body": request.data,
            }
            self._claimed_answer = idempotency_keys.claim_key(self.principal, key, claimed_request)
        require_version(self, method)

    def handle_exception(self, exc: Exception) -> Response:
        """Return the response to a problem, or a replayed response."""
        if isinstance(exc, Problem) and exc.is_pending and self._claimed_answer is not None:
            self._claimed_answer.delete()
            self._claimed_answer = None
        if not isinstance(exc, idempotency_keys.IdempotentReplay):
            return super().handle_exception(exc)
        return Response(
            json.loads(exc.body) if exc.body else None,
            status=exc.status,
            headers={idempotency_keys.REPLAYED_HEADER: "true"},
            content_type=PROBLEM_JSON if exc.status >= 400 else None,
        )

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Select the fields of a sparse response, and store the response to a claimed key."""
        self._report_response(response)
        if self._selected_fields is not None and response.status_code == HTTPStatus.OK:
            response.data = selected_fields.select_fields(response.data, self._selected_fields)
            response.content_type = selected_fields.SPARSE_JSON
        if tag := build_etag(self, response):
            response["ETag"] = tag
        response = super().finalize_response(request, response, *args, **kwargs)
        if self._claimed_answer is not None and isinstance(response, Response):
            body = "" if response.data is None else JSONRenderer().render(response.data).decode()
            try:
                idempotency_keys.store_answer(self._claimed_answer, response.status_code, body)
            except DatabaseError:
                # The work is done, so respond; the claim stays and prevents a repeat.
                logger.exception("The answer to an idempotent write could not be kept")
        return response

    def _report_response(self, response: Any) -> None:
        """Call the hooks of upper packages for an error or the response to a write."""
        is_success = response.status_code < HTTPStatus.BAD_REQUEST
        principal: Principal | None = getattr(self.request, "bonobot_principal", None)
        if principal is None or (self.request.method in SAFE_METHODS and is_success):
            return
        for hook in response_hooks:
            hook(principal, getattr(response, "data", None))

    @classmethod
    def is_open_to(cls, principal: Principal, method: str) -> bool:
        """Return whether a principal may use a method at all, on any object."""
        if principal.agent_ids and method not in cls.agent_token_methods:
            return False
        return any(principal.may(action) for action in list_required_actions(cls.rules.get(method)))

    def _authorize(self, method: str) -> None:
        principal = self.principal
        if self.scope is not None:
            principal.require_scope(self.scope)
        if self.is_open_to(principal, method):
            return
        if principal.agent_ids and method not in self.agent_token_methods:
            raise Forbidden(
                "This token can only read and run its agents.",
                rule="token:agent",
                remedy="Use an organization token instead.",
            )
        actions = list_required_actions(self.rules.get(method))
        raise build_permission_error(principal.role, *actions)


def build_url_patterns(views_by_path: Mapping[str, type[APIView]]) -> list[URLPattern]:
    return [path(route, view.as_view()) for route, view in views_by_path.items()]


def list_required_actions(rule: Rule | None) -> tuple[Action, ...]:
    if rule is None:
        return ()
    return rule if isinstance(rule, tuple) else (rule,)


def require_row(row: Row | None, kind: str, name: object, *, field: str = "") -> Row:
    """Return `row`; raises `NotFound` like `get_or_404` if it is None."""
    if row is not None:
        return row
    raise NotFound(
        format_message("The {kind} {name!r} doesn't exist.", kind=kind, name=str(name)),
        field=field,
        remedy="Check the ID or name, and the organization you are working in.",
    )


@contextmanager
def set_not_found_field(field: str) -> Iterator[None]:
    """Set the field of a `NotFound` raised in the block."""
    try:
        yield
    except NotFound as problem:
        problem.field = field
        raise
