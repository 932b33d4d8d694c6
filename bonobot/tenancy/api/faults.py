"""Every error as a problem: DRF's and Django's own become ours, and nothing internal shows."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

from django.core import exceptions as django_errors
from django.db import DataError, IntegrityError, OperationalError
from django.db.models import ProtectedError
from django.http import Http404
from rest_framework import exceptions as drf_errors

from bonobot.lib.problems import (
    Conflict,
    Forbidden,
    InternalError,
    Invalid,
    NotFound,
    Problem,
    Unavailable,
)
from bonobot.lib.sayings import say

logger = logging.getLogger(__name__)

# DRF's own codes that say no more than `invalid`; `errors` still carries them.
ONLY_OURS = frozenset({"unknown_field"})


class NotSignedIn(Problem):
    """Nobody stands behind the request."""

    code = "not_authenticated"
    status = 401


def problem_of(error: BaseException) -> Problem:
    """Return `error` as a problem that may be shown; a defect is logged with its traceback."""
    if isinstance(error, Problem):
        return error
    for kind, make in _KINDS:
        if isinstance(error, kind):
            return make(error)
    logger.error("A request failed", exc_info=error)
    return InternalError(
        remedy="Try again. If it stays, show the log to whoever runs this installation."
    )


def _validation(error: Any) -> Problem:
    faults = list(_faults(error.detail))[:50]
    first = faults[0] if faults else {"field": "", "code": "invalid", "detail": "Not valid."}
    where = f"`{first['field']}`: " if first["field"] else ""
    return Invalid(
        f"{where}{first['detail']}",
        code=first["code"] if first["code"] in ONLY_OURS else None,
        field=first["field"],
        remedy="Correct it and send it again; `errors` lists everything that was found.",
        extra={"errors": faults},
    )


def _faults(detail: Any, path: str = "") -> Iterator[dict[str, str]]:
    """Yield DRF's nested details one by one, each with its JSON path."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            if name in ("non_field_errors", "__all__"):
                yield from _faults(inner, path)
            else:
                spot = f"[{name}]" if isinstance(name, int) else f".{name}" if path else str(name)
                yield from _faults(inner, path + spot)
    elif isinstance(detail, list):
        for index, inner in enumerate(detail):
            nested = isinstance(inner, dict)
            yield from _faults(inner, f"{path}[{index}]" if nested else path)
    else:
        yield {"field": path, "code": getattr(detail, "code", "invalid"), "detail": str(detail)}


def _django_validation(error: Any) -> Problem:
    field, messages = "", error.messages
    if hasattr(error, "error_dict"):
        field, messages = next(iter(error.message_dict.items()))
    return Invalid(str(messages[0]), field="" if field == "__all__" else field)


def _not_signed_in(error: Any) -> Problem:
    return NotSignedIn(
        "You are not signed in.", remedy="Send `Authorization: Bearer …`, or sign in first."
    )


def _denied(error: Any) -> Problem:
    text = str(getattr(error, "detail", "")) or "You may not do this."
    if text.startswith("CSRF Failed"):
        return Forbidden(
            "The request does not prove that it comes from one of our pages.",
            code="csrf_failed",
            rule="csrf",
            remedy="Send the value of the CSRF cookie as `X-CSRFToken`, or use a token.",
        )
    return Forbidden(text, remedy="Ask an owner of the organization.")


def _missing(error: Any) -> Problem:
    return NotFound("There is nothing here.", remedy="Check the address; /api/schema lists them.")


def _other(error: Any) -> Problem:
    """Return what DRF itself refused: method, media type, parse error, throttle."""
    return Problem(
        str(error.detail),
        code=_CODES.get(error.status_code, "invalid"),
        status=error.status_code,
        remedy=_REMEDIES.get(error.status_code, ""),
        retry_after=getattr(error, "wait", None),
    )


def _clash(error: Any) -> Problem:
    logger.warning("A write clashed in the database", exc_info=error)
    return Conflict("It clashes with what is stored.", remedy="Reload, and try it again.")


def _in_use(error: Any) -> Problem:
    users = ", ".join(sorted({str(row) for row in error.protected_objects})[:5])
    return Conflict(
        say("It is still used by: {users}.", users=users),
        code="in_use",
        remedy="Change or remove those first.",
    )


def _unstorable(error: Any) -> Problem:
    return Invalid("A value can't be stored as it is.", remedy="Check its length and characters.")


def _database_away(error: Any) -> Problem:
    logger.error("The database failed", exc_info=error)
    return Unavailable(
        "The database doesn't answer now.", code="database_unavailable", remedy="Try again soon."
    )


def _too_slow(error: Any) -> Problem:
    return Unavailable("It took too long.", code="timeout", remedy="Try again.")


def _too_large(error: Any) -> Problem:
    return Problem("The body is too large.", code="body_too_large", status=413)


_CODES = {
    400: "invalid_json",
    405: "method_not_allowed",
    406: "not_acceptable",
    415: "unsupported_media_type",
    429: "throttled",
}
_REMEDIES = {
    405: "The header `Allow` lists what there is.",
    415: "Send the body as `application/json`.",
}
# The first kind that fits is taken, so the special ones come before the general ones.
_KINDS: tuple[tuple[type[BaseException], Callable[[Any], Problem]], ...] = (
    (drf_errors.ValidationError, _validation),
    (drf_errors.NotAuthenticated, _not_signed_in),
    (drf_errors.AuthenticationFailed, _not_signed_in),
    (drf_errors.PermissionDenied, _denied),
    (drf_errors.NotFound, _missing),
    (drf_errors.APIException, _other),
    (Http404, _missing),
    (django_errors.PermissionDenied, _denied),
    (django_errors.ValidationError, _django_validation),
    (django_errors.RequestDataTooBig, _too_large),
    (ProtectedError, _in_use),
    (IntegrityError, _clash),
    (DataError, _unstorable),
    (OperationalError, _database_away),
    (TimeoutError, _too_slow),
)
