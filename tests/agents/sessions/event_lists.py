"""Lists of the events of sessions."""

from uuid import UUID

from agents.models import Session, Step
from agents.sessions.events import SessionEvent, build_events, build_rest_events


def load_events(session_id: UUID, after_seq: int = 0) -> list[SessionEvent]:
    """Return the current events after `after_seq` (two queries).

    The last event is `rest` if the session rests or was deleted.
    """
    # Read the status first: all steps of a resting session were written before its status.
    session = Session.objects.filter(pk=session_id).first()
    steps = Step.objects.filter(session_id=session_id, seq__gt=after_seq).order_by("seq")
    return [*build_events(steps), *build_rest_events(session)]
