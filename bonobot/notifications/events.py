"""Notification events and their severities."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

from bonobot.core.i18n.messages import format_message


class Severity(IntEnum):
    """The severity of an event; channels have a minimum severity."""

    INFO = 1
    WARNING = 2
    CRITICAL = 3

    @property
    def word(self) -> str:
        """The lowercase name, as shown and stored."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class NotificationEvent:
    """An event to notify of."""

    code: str
    title: str
    severity: Severity


EVENTS: dict[str, NotificationEvent] = {
    event.code: event
    for event in (
        NotificationEvent(
            "server_down", format_message("Server not responding"), Severity.CRITICAL
        ),
        NotificationEvent("server_up", format_message("Server recovered"), Severity.INFO),
        NotificationEvent(
            "needs_reauth", format_message("Server needs new credentials"), Severity.CRITICAL
        ),
        NotificationEvent(
            "definitions_waiting", format_message("Definitions pending review"), Severity.WARNING
        ),
        NotificationEvent(
            "definitions_refused",
            format_message("Approved definitions can no longer be called"),
            Severity.CRITICAL,
        ),
        NotificationEvent(
            "approval_waiting", format_message("Call pending approval"), Severity.WARNING
        ),
        NotificationEvent(
            "question_waiting", format_message("Elicitation request pending"), Severity.WARNING
        ),
        NotificationEvent(
            "access_requested", format_message("Access request pending"), Severity.INFO
        ),
        NotificationEvent(
            "budget_warning", format_message("Budget almost exhausted"), Severity.WARNING
        ),
        NotificationEvent(
            "budget_exhausted", format_message("Budget exhausted"), Severity.CRITICAL
        ),
        NotificationEvent(
            "session_quarantined", format_message("Session quarantined"), Severity.CRITICAL
        ),
        NotificationEvent("test", format_message("Test notification"), Severity.INFO),
    )
}
# The events that a channel can select; a test is sent to the tested channel only.
SELECTABLE_EVENTS = tuple(code for code in EVENTS if code != "test")


def is_event_wanted(
    event: NotificationEvent, *, events: Collection[str], minimum_severity: str
) -> bool:
    """Return whether a channel with these `events` (empty: all) and minimum severity wants it."""
    is_severe_enough = event.severity >= Severity[minimum_severity.upper()]
    return is_severe_enough and (not events or event.code in events)
