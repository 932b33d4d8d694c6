"""The timeline of a session: turns, calls and waits as bars, each with time, cost and decision."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.questions import LEGS
from agents.admin.readers import READERS
from agents.admin.sessions import SessionAdmin
from agents.evidence import labels_of
from agents.models import Approval, Question, Session, Step
from agents.sessions.timeline import Bar, Event, Stretch, Wait, timeline
from bonobot.ledger.models import AuditRow
from bonobot.lib.untrusted import visible
from bonobot.tenancy.screens import Visit

STEPS_DRAWN = 500


@dataclass(frozen=True)
class Row:
    """A bar with what the audit says about it."""

    bar: Bar
    audit: AuditRow | None = None
    labels: tuple[Any, ...] = ()

    @property
    def tokens(self) -> int:
        """Return the tokens in and out."""
        return self.audit.input_tokens + self.audit.output_tokens if self.audit else 0


@SessionAdmin.add_page("timeline", _("Timeline"), order=20, needs=READERS)
def show_timeline(visit: Visit) -> HttpResponseBase:
    """Show the session over time (4 queries): its latest steps, where there are too many."""
    session: Session = visit.object
    latest = session.steps.order_by("-seq")[: STEPS_DRAWN + 1]
    steps = [one for one in latest if one.kind != Step.Kind.NOTICE]
    audited = _audited(steps)
    stretches = timeline(_events(session, steps[:STEPS_DRAWN]), timezone.now())
    return visit.show(
        "sessions/timeline.html",
        session=session,
        stretches=[(one, _rows(one, audited)) for one in stretches],
        cut=len(steps) > STEPS_DRAWN,
        most=STEPS_DRAWN,
    )


def _events(session: Session, steps: list[Step]) -> list[Event]:
    asked = list(Approval.objects.filter(session=session).order_by("created_at"))
    waits: dict[str, list[Wait]] = {}
    for one in asked:
        for key in {str(one.pk), str(one.call_id)}:
            waits.setdefault(key, []).append(Wait(one.created_at, one.answered_at))
    return [
        *(_event(step, waits) for step in steps),
        *(
            Event(
                key=str(one.pk),
                kind="question",
                state=one.state,
                title=_t("%(server)s asks") % {"server": visible(one.server_name, 80)},
                began=one.created_at,
                ended=one.answered_at,
                waits=(Wait(one.created_at, one.answered_at),),
            )
            for one in Question.objects.filter(session=session).order_by("created_at")
        ),
    ]


def _event(step: Step, waits: dict[str, list[Wait]]) -> Event:
    payload = step.payload
    asked = str((payload.get("approval") or {}).get("approval_id", ""))
    titles = {
        Step.Kind.MESSAGE: visible(str(payload.get("text", "")), 80),
        Step.Kind.MODEL: _t("turn %(n)d") % {"n": step.turn},
        Step.Kind.CALL: visible(str(payload.get("name", "")), 80),
        Step.Kind.END: str(payload.get("code") or _t("done")),
    }
    kind: Any = str(step.kind)
    return Event(
        key=str(step.call_id or ""),
        kind=kind,
        state=step.state,
        title=titles[Step.Kind(step.kind)],
        began=step.started_at,
        ended=step.finished_at,
        waits=tuple(waits.get(asked) or waits.get(str(step.call_id)) or ()),
    )


def _audited(steps: list[Step]) -> dict[str, AuditRow]:
    ids: list[UUID] = [one.call_id for one in steps if one.call_id]
    return {str(row.pk): row for row in AuditRow.objects.filter(pk__in=ids)} if ids else {}


def _rows(stretch: Stretch, audited: dict[str, AuditRow]) -> list[Row]:
    return [_row(bar, audited.get(bar.event.key)) for bar in stretch.bars]


def _row(bar: Bar, audit: AuditRow | None) -> Row:
    named = sorted(labels_of(audit)) if audit and audit.event_type == "call" else []
    return Row(bar, audit, tuple(LEGS[name] for name in named if name in LEGS))
