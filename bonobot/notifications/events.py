"""Kinds of events, severity, interval; pure."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

from bonobot.core.i18n.messages import format_message

NONE = timedelta(0)
# A server that comes and goes is told of once in this time: the next outage waits, and is
# forgotten when it ends before its turn.
HOLD = timedelta(minutes=15)


class Severity(IntEnum):
    """How grave something is; channels may ask for the grave alone."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3

    @property
    def word(self) -> str:
        """Return the name that people and programs read."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class NotificationEvent:
    """Something that people can be told of. `hold` is the least time between two of a subject."""

    code: str
    title: str
    severity: Severity
    hold: timedelta = NONE


EVENTS: dict[str, NotificationEvent] = {
    event.code: event
    for event in (
        NotificationEvent(
            "server_down", format_message("A server doesn't answer"), Severity.CRITICAL, HOLD
        ),
        NotificationEvent("server_up", format_message("A server answers again"), Severity.INFO),
        NotificationEvent(
            "needs_reauth",
            format_message("A server needs new credentials"),
            Severity.CRITICAL,
            HOLD,
        ),
        NotificationEvent(
            "definitions_waiting", format_message("Definitions wait for approval"), Severity.WARNING
        ),
        NotificationEvent(
            "definitions_refused",
            format_message("Approved definitions can't be called any more"),
            Severity.CRITICAL,
        ),
        NotificationEvent(
            "approval_waiting", format_message("A call waits for approval"), Severity.WARNING
        ),
        NotificationEvent(
            "question_waiting", format_message("A server asks a question"), Severity.WARNING
        ),
        NotificationEvent(
            "budget_warning", format_message("A budget is nearly spent"), Severity.WARNING
        ),
        NotificationEvent(
            "budget_exhausted", format_message("A budget is spent"), Severity.CRITICAL
        ),
        NotificationEvent("test", format_message("A test notice"), Severity.INFO),
    )
}
# What a channel can choose from; a test goes to whichever channel is tested.
CHOSEN = tuple(code for code in EVENTS if code != "test")


def is_event_wanted(event: NotificationEvent, *, events: Collection[str], minimum: str) -> bool:
    """Tell whether a channel for `events` (empty: all) from severity `minimum` on takes it."""
    grave = event.severity >= Severity[minimum.upper()]
    return grave and (not events or event.code in events)
