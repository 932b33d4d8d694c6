"""Errors and warnings with a stable code.

A problem carries a snake_case `code` for programs, a sentence for people and, if there is one, a
remedy. The same object becomes RFC 9457 details in REST, an error result for a model, a message in
the admin and an exit status in the CLI.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bonobot.core.i18n.messages import format_message


class Problem(Exception):
    """An error with a machine-readable code; `str(problem)` is the detail."""

    code = "error"
    status = 400
    title = "Request failed"
    # Whether nothing was done and the same request may succeed later, also with the same key.
    is_pending = False

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        field: str = "",
        remedy: str = "",
        rule: str = "",
        status: int | None = None,
        retry_after: float | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """`field` is a JSON path or form field, `retry_after` in seconds, `status` from HTTP."""
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).code
        self.field = field
        self.remedy = remedy
        self.rule = rule
        self.status = status or type(self).status
        self.retry_after = retry_after
        self.extra = dict(extra or {})

    def __str__(self) -> str:
        return str(self.detail)

    def as_dict(self) -> dict[str, Any]:
        """Return the public fields, without empty ones."""
        fields = {
            "code": self.code,
            "detail": str(self),
            "field": self.field,
            "remedy": self.remedy,
            "rule": self.rule,
        }
        details: dict[str, Any] = {name: text for name, text in fields.items() if text}
        if self.retry_after is not None:
            details["retry_after"] = self.retry_after
        return self.extra | details


class InvalidInput(Problem):
    """The input isn't valid."""

    code = "invalid"
    status = 400
    title = "Not valid"


class Forbidden(Problem):
    """The caller isn't allowed to do this."""

    code = "forbidden"
    status = 403
    title = "Not allowed"


class NotFound(Problem):
    """The object doesn't exist or belongs to another organization."""

    code = "not_found"
    status = 404
    title = "Not found"


class Conflict(Problem):
    """The request conflicts with the current state."""

    code = "conflict"
    status = 409
    title = "Conflict"


class ServiceUnavailable(Problem):
    """A dependency isn't available; a later retry may succeed."""

    code = "unavailable"
    status = 503
    title = "Not available"


class InternalError(Problem):
    """A bug in Bonobot; the log has the details."""

    code = "internal_error"
    status = 500
    title = "Internal error"

    def __init__(self, subject: str = "Something went wrong", *, remedy: str) -> None:
        """`subject` is the beginning of the sentence, such as "Something went wrong"."""
        super().__init__(
            format_message(
                "{what} because of an internal error. See the log for details.", what=subject
            ),
            remedy=remedy,
        )


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """A warning with a stable code, a sentence and the field it is about."""

    code: str
    detail: str
    field: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the fields, without empty ones."""
        return {name: text for name, text in asdict(self).items() if text}
