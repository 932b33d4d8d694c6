"""Events: what a notice can be about, how grave it is, and how often it is told. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

from bonobot.lib.sayings import say

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
class Event:
    """Something that people can be told of. `hold` is the least time between two of a subject."""

    code: str
    title: str
    severity: Severity
    hold: timedelta = NONE


EVENTS: dict[str, Event] = {
    event.code: event
    for event in (
        Event("server_down", say("A server doesn't answer"), Severity.CRITICAL, HOLD),
        Event("server_up", say("A server answers again"), Severity.INFO),
        Event("needs_reauth", say("A server needs new credentials"), Severity.CRITICAL, HOLD),
        Event("definitions_waiting", say("Definitions wait for approval"), Severity.WARNING),
        Event(
            "definitions_refused",
            say("Approved definitions can't be called any more"),
            Severity.CRITICAL,
        ),
        Event("approval_waiting", say("A call waits for approval"), Severity.WARNING),
        Event("question_waiting", say("A server asks a question"), Severity.WARNING),
        Event("budget_warning", say("A budget is nearly spent"), Severity.WARNING),
        Event("budget_exhausted", say("A budget is spent"), Severity.CRITICAL),
        Event("test", say("A test notice"), Severity.INFO),
    )
}
# What a channel can choose from; a test goes to whichever channel is tested.
CHOSEN = tuple(code for code in EVENTS if code != "test")


def wanted(event: Event, *, events: Collection[str], minimum: str) -> bool:
    """Tell whether a channel for `events` (empty: all) from severity `minimum` on takes it."""
    grave = event.severity >= Severity[minimum.upper()]
    return grave and (not events or event.code in events)
