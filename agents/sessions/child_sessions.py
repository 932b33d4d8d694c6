"""Sessions started by another session.

A child's id is derived from the step that started it, so a repeated call joins the existing child.
A tree has at most `MAX_DEPTH` levels below its root.
"""

import asyncio
from collections.abc import Callable
from uuid import UUID, uuid5

from agents.models import Agent, Inbox, Session, Step
from agents.policies.queries import require_on
from agents.session_wakeups import notify_worker, take_here
from agents.sessions.services import TITLE_LENGTH, check_message, end
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.admin_changes import record_change

DEEPEST = 3
LOOK_EVERY_S = 0.5
RESTING = (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)
# The code of a call whose child session waits for a person: the parent session waits too.
WAITS = "child_waits"

Begin = Callable[[Session], object]


class ChildSessionWaiting(Problem):
    """The child session of a call waits for a person."""

    code = WAITS
    status = 409


class CallDepthExceeded(Problem):
    """The session tree would exceed its maximum depth."""

    code = "too_deep"
    status = 422


class ChildSessionFailed(Problem):
    """The child session of a call ended without an answer."""

    code = "child_failed"
    status = 502


def begin(
    principal: Principal, parent_id: UUID, call_id: UUID, agent_id: UUID, text: str, more: Begin
) -> UUID:
    """Start the child session of a call, or find the existing one; return its id.

    `initialize` is called with the new session, in its transaction. Raises `CallDepthExceeded`,
    `Conflict` (the agent is disabled), `InvalidInput`.
    """
    parent = Session.objects.get(pk=parent_id)
    child_id = _build_child_id(parent_id, call_id)
    if Session.objects.filter(pk=child_id).exists():
        return child_id
    agent = Agent.objects.select_related("organization").get(
        pk=agent_id, organization_id=parent.organization_id
    )
    _may_begin(parent, agent, text)
    child = Session(
        id=child_id,
        organization_id=parent.organization_id,
        agent=agent,
        parent=parent,
        root_id=parent.root_id or parent.pk,
        depth=parent.depth + 1,
        title=" ".join(text.split())[:TITLE_LENGTH],
        started_by_kind=parent.started_by_kind,
        started_by_id=parent.started_by_id,
        started_by=parent.started_by,
        token_id=parent.token_id,
    )
    with record_change(
        organization_id=parent.organization_id,
        actor=principal.actor,
        action="session_started",
        resource_type="session",
        resource_id=str(child_id),
        resource_name=child.title,
        details={"agent_id": str(agent.pk), "agent": agent.slug, "parent": str(parent_id)},
        governed=False,
    ):
        child.save(force_insert=True)
        more(child)
    notify_worker(child_id)
    return child_id


def with_message(principal: Principal, text: str) -> Begin:
    """Return a function that adds the first message to a new session's inbox."""

    def leave(child: Session) -> None:
        Inbox.objects.create(
            session=child,
            kind=Inbox.Kind.MESSAGE,
            payload={"text": text},
            actor_kind=principal.kind,
            actor_id=principal.id,
            actor=principal.label,
        )

    return leave


async def wait_for_child(child_id: UUID) -> str:
    """Wait until a child ends and return its status; raises `ChildSessionWaiting`.

    At most two queries per second. A queued child is run in this process if it has a runner.
    """
    while True:
        status = await get_runtime().orm(_load_status, child_id)
        if status in RESTING:
            return str(status)
        if status == Session.Status.WAITING:
            raise ChildSessionWaiting("The session that this call began waits for a person.")
        if status == Session.Status.QUEUED:
            await take_here(child_id)
        await asyncio.sleep(LOOK_EVERY_S)


def answer_of(child_id: UUID) -> str:
    """Return the answer of a finished session; raises `ChildSessionFailed`."""
    child = Session.objects.get(pk=child_id)
    last = child.steps.filter(kind=Step.Kind.END).order_by("-seq").first()
    if child.status != Session.Status.DONE or last is None or "answer" not in last.payload:
        why = child.error_detail or "it ended without an answer"
        raise ChildSessionFailed(
            format_message(
                "The session {child_id} did not answer: {why}", child_id=child_id, why=why
            ),
            code=child.error_code or ChildSessionFailed.code,
            remedy="Its page shows what it did.",
        )
    return str(last.payload["answer"])


def end_children(session_id: UUID, why: str) -> None:
    """Request the cancellation of a session's unfinished child sessions."""
    for child in Session.objects.filter(parent_id=session_id).exclude(status__in=RESTING):
        actor = Principal(
            kind="session",
            id=str(session_id),
            label=child.started_by,
            organization_id=child.organization_id,
            role=Role.MEMBER,
        )
        end(actor, child, why)


def _may_begin(parent: Session, agent: Agent, text: str) -> None:
    if parent.depth >= DEEPEST:
        raise CallDepthExceeded(
            format_message(
                "Sessions begin sessions {deepest} deep at most, and this one is that deep.",
                deepest=DEEPEST,
            ),
            rule="session:depth",
            remedy="Do it without asking another agent.",
        )
    require_on(agent)
    check_message(text)


def _build_child_id(parent_id: UUID, call_id: UUID) -> UUID:
    """Return the id of a child, derived from its step or, without a step, from its call."""
    step = Step.objects.filter(session_id=parent_id, call_id=call_id).first()
    return uuid5(parent_id, f"{step.turn}:{step.index}" if step else str(call_id))


def _load_status(session_id: UUID) -> str:
    found = Session.objects.filter(pk=session_id).values_list("status", flat=True).first()
    return str(found or Session.Status.CANCELLED)
