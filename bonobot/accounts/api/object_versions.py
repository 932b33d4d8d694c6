"""Object versions over REST: `ETag` and `version` of objects, `If-Match` and `version` of writes.

A write without either isn't checked, so that simple clients can ignore versions.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from rest_framework.response import Response

from bonobot.core.db import preconditions
from bonobot.core.db.object_version import (
    PreconditionFailed,
    Unversioned,
    VersionConflict,
    compute_version,
    is_current,
    list_changed_parts,
)
from bonobot.core.db.transactions import lock
from bonobot.core.problems import Conflict
from bonobot.core.text.masked_values import MASK

MEMBER = "version"
HEADER = "If-Match"
ANY = "*"
_CHECKED = ("PUT", "PATCH", "DELETE")
# RFC 9110, 8.8.3. Weak tags never match for writes (13.1.1).
_TAG = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*')


def tag_of(view: Any, response: Response) -> str | None:
    """Return the `ETag` of a response with one versioned object, else None."""
    if view.shown_parts is None or not 200 <= response.status_code < 300 or response.data is None:
        return None
    return f'"{compute_version(view.shown_parts)}"'


def require_version(view: Any, method: str) -> None:
    """Check the version that a request requires, now and again in the transaction of its change.

    Raises `PreconditionFailed` for the header and `VersionConflict` for the body's field.
    """
    if method not in _CHECKED:
        return
    header = view.request.headers.get(HEADER)
    member = view.request.data.get(MEMBER) if isinstance(view.request.data, Mapping) else None
    if not isinstance(member, str | int):
        member = None  # the serializer refuses other types
    if header is None and member is None:
        return
    check = partial(_check, view, header, member)
    check()
    preconditions.require(partial(_check_locked, view, check))


def _check_locked(view: Any, check: Any) -> None:
    lock(view.rows_to_lock())
    check()


def _check(view: Any, header: str | None, member: str | int | None) -> None:
    shown, parts = _load_current_object(view)
    if header is not None and header.strip() != ANY:
        tags = _parse_strong_tags(header)
        if parts is None or not any(is_current(parts, tag) for tag in tags):
            raise _build_version_problem(PreconditionFailed, shown, parts, tags[0] if tags else "")
    if isinstance(member, int) and member != shown.get(MEMBER):
        raise VersionConflict({MEMBER: shown.get(MEMBER)}, _compute_version(parts), field=MEMBER)
    if isinstance(member, str) and (parts is None or not is_current(parts, member)):
        raise _build_version_problem(VersionConflict, shown, parts, member)


def _compute_version(parts: Mapping[str, Any] | None) -> str:
    return "" if parts is None else compute_version(parts)


def _load_current_object(view: Any) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return the object's current representation and the parts of its version, if it has one."""
    read = getattr(view, "get", None)
    if read is None:
        return {}, None
    view.shown_row, view.shown_parts = None, None
    answer = read(view.request, *view.args, **view.kwargs)
    parts, view.shown_parts = view.shown_parts, None
    return answer.data if isinstance(answer.data, Mapping) else {}, parts


def _parse_strong_tags(header: str) -> list[str]:
    """Return the strong tags of a header; invalid ones are dropped."""
    found = [_TAG.fullmatch(one) for one in header.split(",")]
    return [one[2] for one in found if one is not None and not one[1]]


def _build_version_problem(
    kind: type[VersionConflict],
    shown: Mapping[str, Any],
    parts: Mapping[str, Any] | None,
    version: str,
) -> Conflict:
    if parts is None:
        return Unversioned(code=kind.code, status=kind.status)
    changed = {name: shown.get(name, MASK) for name in list_changed_parts(parts, version)}
    field = HEADER if kind is PreconditionFailed else MEMBER
    return kind(changed, compute_version(parts), field=field)
