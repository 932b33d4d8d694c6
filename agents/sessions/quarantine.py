"""Quarantine sessions that kill their workers, and release them.

A quarantined session is failed and accepts no messages. Its unsettled steps stay as they are: when
it is released, the next worker handles them as after any crash.
"""

from django.db.models import Max
from django.utils import timezone

from agents.models import Session, Step
from agents.wakeups import notify_watchers, notify_worker, wake_parent
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Problem
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.ledger.types import Actor
from bonobot.notifications.notify import NotificationSubject, notify

QUARANTINE_CODE = "session_quarantined"
SYSTEM = Actor(kind="system", id="sessions", label="sessions")


class SessionQuarantined(Conflict):
    """The session is quarantined because its worker died repeatedly."""

    code = QUARANTINE_CODE


def build_quarantine_problem(crashes: int) -> Problem:
    """Return the problem of a quarantined session."""
    return SessionQuarantined(
        format_message(
            "The session was quarantined because its worker died {crashes} times in a row while "
            "running it.",
            crashes=crashes,
        ),
        remedy=(
            "Find the cause in the worker's log, then have an operator or owner release the "
            "session."
        ),
    )


def quarantine_session(session: Session) -> None:
    """Fail a session whose worker died; call it in the transaction that stops the worker.

    Records the change and notifies the organization. The session must still name its dead runner.
    """
    crashes, now = session.crashes + 1, timezone.now()
    problem = build_quarantine_problem(crashes)
    with record_change(
        **describe_row("session", session, str(session)),
        actor=SYSTEM,
        action="session_quarantined",
        details={"agent_id": str(session.agent_id), "crashes": crashes},
        governed=False,
    ):
        last_seq = session.steps.aggregate(last=Max("seq"))["last"] or 0
        Step.objects.create(
            session=session,
            seq=last_seq + 1,
            kind=Step.Kind.END,
            state=Step.State.DONE,
            payload=problem.as_dict(),
            fence=session.fence,
            finished_at=now,
        )
        Session.objects.filter(pk=session.pk).update(
            status=Session.Status.FAILED,
            error_code=problem.code,
            error_detail=f"{problem} {problem.remedy}",
            crashes=crashes,
            quarantined_at=now,
            runner=None,
            finished_at=now,
            updated_at=now,
        )
        notify(
            session.organization_id,
            "session_quarantined",
            NotificationSubject("session", str(session.pk), str(session)),
            format_message(
                "The session {name} was quarantined because its worker died {crashes} times in a "
                "row while running it.",
                name=str(session),
                crashes=crashes,
            ),
            topic=f"session_quarantined:{session.pk}:{now.isoformat()}",
        )
        wake_parent(session.pk)
    notify_watchers(session.pk)


def require_not_quarantined(session: Session) -> None:
    """Raise `SessionQuarantined` if the session is quarantined."""
    row = Session.objects.filter(pk=session.pk, quarantined_at__isnull=False).first()
    if row is not None:
        raise build_quarantine_problem(row.crashes)


def release_quarantined_session(principal: Principal, session: Session) -> None:
    """Queue a quarantined session again; its next crash counts as the first one.

    Raises `Forbidden`, `Conflict` (code `not_quarantined`).
    """
    principal.require(Action.MANAGE_AGENTS)
    with record_change(
        **describe_row("session", session, str(session)),
        actor=principal.actor,
        action="session_released",
        details={"agent_id": str(session.agent_id)},
        governed=False,
    ):
        quarantined_session = Session.objects.filter(pk=session.pk, quarantined_at__isnull=False)
        if not quarantined_session.update(
            status=Session.Status.QUEUED,
            error_code="",
            error_detail="",
            crashes=0,
            crash_progress=0,
            quarantined_at=None,
            finished_at=None,
            updated_at=timezone.now(),
        ):
            raise Conflict(
                "The session isn't quarantined.",
                code="not_quarantined",
                remedy="Send a message to continue it.",
            )
        notify_worker(session.pk)
