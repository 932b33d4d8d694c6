"""Problem: every refusal with code and remedy; Warning beside Problem.

A problem carries a stable snake_case `code` for programs, a sentence for people and, where there
is one, what to do next. The same object becomes RFC 9457 details in REST, an error result for a
model, a line in the admin and an exit status in the CLI.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bonobot.core.i18n.messages import format_message


class Problem(Exception):
    """A refusal or fault with a machine-readable code; `str(problem)` is the detail."""

    code = "error"
    status = 400
    title = "The request could not be carried out"

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
        """`field` is a JSON path or form field, `retry_after` is in seconds, `status` is HTTP's."""
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
        """Return what a reader may see, without the members that are empty."""
        members = {
            "code": self.code,
            "detail": str(self),
            "field": self.field,
            "remedy": self.remedy,
            "rule": self.rule,
        }
        seen: dict[str, Any] = {name: text for name, text in members.items() if text}
        if self.retry_after is not None:
            seen["retry_after"] = self.retry_after
        return self.extra | seen


class InvalidInput(Problem):
    """What was sent can't be used as it stands."""

    code = "invalid"
    status = 400
    title = "Not valid"


class Forbidden(Problem):
    """Who asks may not do this."""

    code = "forbidden"
    status = 403
    title = "Not allowed"


class NotFound(Problem):
    """There is no such thing, or it belongs to another organization."""

    code = "not_found"
    status = 404
    title = "Not found"


class Conflict(Problem):
    """It clashes with what is there, or with what happened meanwhile."""

    code = "conflict"
    status = 409
    title = "Conflict"


class ServiceUnavailable(Problem):
    """Something that is needed doesn't answer now; trying again later may work."""

    code = "unavailable"
    status = 503
    title = "Not available now"


class InternalError(Problem):
    """A fault of ours: it was logged, and the log knows more than whoever is told of it."""

    code = "internal_error"
    status = 500
    title = "Something went wrong here"

    def __init__(self, what: str = "Something went wrong", *, remedy: str) -> None:
        """`what` went wrong: the beginning of the sentence that says whose fault it was."""
        super().__init__(
            format_message("{what} in Bonobot itself; the log says more.", what=what), remedy=remedy
        )


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """A stable code, a sentence, and the field that it is about."""

    code: str
    detail: str
    field: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return what is shown, without the members that are empty."""
        return {name: text for name, text in asdict(self).items() if text}
