"""Errors as RFC 9457 problem details."""

import logging
from collections.abc import Callable, Iterator
from http import HTTPStatus
from math import ceil
from typing import Any

from django.core import exceptions as django_errors
from django.db import DataError, IntegrityError, OperationalError
from django.db.models import ProtectedError
from django.http import Http404
from rest_framework import exceptions as drf_errors
from rest_framework.response import Response

from bonobot.core.api.parsers import PROBLEM_JSON
from bonobot.core.i18n.localization import localize_text
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import (
    Conflict,
    Forbidden,
    InternalError,
    InvalidInput,
    NotFound,
    Problem,
    ServiceUnavailable,
)

logger = logging.getLogger(__name__)

# Codes of DRF errors to keep; others become `invalid` but stay in `errors`.
KEPT_CODES = frozenset({"unknown_field"})
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
# Temporary errors always have a `Retry-After` header.
RETRYABLE_STATUSES = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
DEFAULT_RETRY_AFTER_S = 2.0


class NotSignedIn(Problem):
    """The request isn't authenticated."""

    code = "not_authenticated"
    status = 401


def to_problem(error: BaseException) -> Problem:
    """Convert an error to a problem that can be shown; log unknown errors with traceback."""
    if isinstance(error, Problem):
        return error
    for error_class, convert in _CONVERTERS:
        if isinstance(error, error_class):
            return convert(error)
    logger.error("A request failed", exc_info=error)
    return InternalError(
        remedy="Try again. If the problem persists, send the log to the administrator of this "
        "installation."
    )


def _convert_validation_error(error: Any) -> Problem:
    errors = list(_iterate_field_errors(error.detail))[:50]
    first_error = errors[0] if errors else {"field": "", "code": "invalid", "detail": "Not valid."}
    prefix = f"`{first_error['field']}`: " if first_error["field"] else ""
    return InvalidInput(
        f"{prefix}{first_error['detail']}",
        code=first_error["code"] if first_error["code"] in KEPT_CODES else None,
        field=first_error["field"],
        remedy="Correct the request and send it again. `errors` lists all problems.",
        extra={"errors": errors},
    )


def _iterate_field_errors(detail: Any, path: str = "") -> Iterator[dict[str, str]]:
    """Yield DRF's nested error details, each with its JSON path."""
    if isinstance(detail, dict):
        for name, nested_detail in detail.items():
            if name in ("non_field_errors", "__all__"):
                yield from _iterate_field_errors(nested_detail, path)
            else:
                step = f"[{name}]" if isinstance(name, int) else f".{name}" if path else str(name)
                yield from _iterate_field_errors(nested_detail, path + step)
    elif isinstance(detail, list):
        for index, nested_detail in enumerate(detail):
            is_object = isinstance(nested_detail, dict)
            yield from _iterate_field_errors(
                nested_detail, f"{path}[{index}]" if is_object else path
            )
    else:
        yield {"field": path, "code": getattr(detail, "code", "invalid"), "detail": str(detail)}


def _convert_django_validation_error(error: Any) -> Problem:
    field, messages = "", error.messages
    if hasattr(error, "error_dict"):
        field, messages = next(iter(error.message_dict.items()))
    return InvalidInput(str(messages[0]), field="" if field == "__all__" else field)


def _convert_not_authenticated(error: Any) -> Problem:
    return NotSignedIn(
        "You aren't signed in.", remedy="Send `Authorization: Bearer …`, or sign in first."
    )


def _convert_permission_denied(error: Any) -> Problem:
    text = str(getattr(error, "detail", "")) or "You may not do this."
    if text.startswith("CSRF Failed"):
        return Forbidden(
            "The CSRF check failed.",
            code="csrf_failed",
            rule="csrf",
            remedy="Send the value of the CSRF cookie as `X-CSRFToken`, or use a token.",
        )
    return Forbidden(text, remedy="Contact an owner of the organization.")


def _convert_not_found(error: Any) -> Problem:
    return NotFound("No results.", remedy="Check the URL. See /api/schema for all paths.")


def _convert_api_exception(error: Any) -> Problem:
    """Convert DRF's own errors: method, media type, parse error, throttle."""
    return Problem(
        str(error.detail),
        code=_CODES.get(error.status_code, "invalid"),
        status=error.status_code,
        remedy=_REMEDIES.get(error.status_code, ""),
        retry_after=getattr(error, "wait", None),
    )


def _convert_integrity_error(error: Any) -> Problem:
    logger.warning("A write clashed in the database", exc_info=error)
    return Conflict("The change conflicts with stored data.", remedy="Reload and try again.")


def _convert_protected_error(error: Any) -> Problem:
    users = ", ".join(sorted({str(row) for row in error.protected_objects})[:5])
    return Conflict(
        format_message("It is still used by: {users}.", users=users),
        code="in_use",
        remedy="Change or delete those first.",
    )


def _convert_data_error(error: Any) -> Problem:
    return InvalidInput("A value can't be stored.", remedy="Check its length and characters.")


def _convert_operational_error(error: Any) -> Problem:
    logger.error("The database failed", exc_info=error)
    return ServiceUnavailable(
        "The database doesn't respond.", code="database_unavailable", remedy="Try again shortly."
    )


def _convert_timeout(error: Any) -> Problem:
    return ServiceUnavailable("The request timed out.", code="timeout", remedy="Try again.")


def _convert_body_too_large(error: Any) -> Problem:
    return Problem("The request body is too large.", code="body_too_large", status=413)


# The first match is used, so subclasses come before their base classes.
_CONVERTERS: tuple[tuple[type[BaseException], Callable[[Any], Problem]], ...] = (
    (drf_errors.ValidationError, _convert_validation_error),
    (drf_errors.NotAuthenticated, _convert_not_authenticated),
    (drf_errors.AuthenticationFailed, _convert_not_authenticated),
    (drf_errors.PermissionDenied, _convert_permission_denied),
    (drf_errors.NotFound, _convert_not_found),
    (drf_errors.APIException, _convert_api_exception),
    (Http404, _convert_not_found),
    (django_errors.PermissionDenied, _convert_permission_denied),
    (django_errors.ValidationError, _convert_django_validation_error),
    (django_errors.RequestDataTooBig, _convert_body_too_large),
    (ProtectedError, _convert_protected_error),
    (IntegrityError, _convert_integrity_error),
    (DataError, _convert_data_error),
    (OperationalError, _convert_operational_error),
    (TimeoutError, _convert_timeout),
)


def handle_exception(error: Exception, context: dict[str, Any]) -> Response:
    """Return the problem details response for an error of a view."""
    problem = to_problem(error)
    return Response(
        build_problem_details(problem),
        status=problem.status,
        headers=_build_headers(problem),
        content_type=PROBLEM_JSON,
    )


def build_problem_details(problem: Problem) -> dict[str, Any]:
    """Return the RFC 9457 fields of a problem and ours, localized."""
    texts = {"detail": localize_text(problem), "remedy": localize_text(problem.remedy)}
    return {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        **problem.as_dict(),
        **{name: text for name, text in texts.items() if text},
    }


def _build_headers(problem: Problem) -> dict[str, str]:
    headers = {"Cache-Control": "no-store"}
    if problem.status == HTTPStatus.UNAUTHORIZED:
        error_parameter = ', error="invalid_token"' if problem.code == "bad_token" else ""
        headers["WWW-Authenticate"] = f'Bearer realm="bonobot"{error_parameter}'
    if retry_after := format_retry_after(problem):
        headers["Retry-After"] = retry_after
    return headers


def format_retry_after(problem: Problem) -> str:
    """Return the `Retry-After` header of a problem in whole seconds; blank if not temporary."""
    retry_after = problem.retry_after
    if retry_after is None and problem.status in RETRYABLE_STATUSES:
        retry_after = DEFAULT_RETRY_AFTER_S
    return "" if retry_after is None else str(max(1, ceil(retry_after)))
