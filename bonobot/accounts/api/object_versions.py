"""Object versions over REST: `ETag` and `version` of objects, `If-Match` and `version` of writes.

A write without either isn't checked, so that simple clients can ignore versions.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from rest_framework.response import Response

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
from bonobot.core.problems import Conflict
from bonobot.core.text.masked_values import MASK

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
    if method not in _CHECKED_METHODS:
        return
    header = view.request.headers.get(IF_MATCH_HEADER)
    body_version = (
        view.request.data.get(VERSION_FIELD) if isinstance(view.request.data, Mapping) else None
    )
    if not isinstance(body_version, str | int):
        body_version = None  # the serializer refuses other types
    if header is None and body_version is None:
        return
    check = partial(_check_version, view, header, body_version)
    check()
    object_version.add_precondition(partial(_check_locked, view, check))


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
