"""Sessions started by another session.

A child's id is derived from the step that started it, so a repeated call joins the existing child.
A tree has at most `MAX_DEPTH` levels below its root.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import UUID, uuid5
from weakref import WeakValueDictionary

from django.conf import settings

from agents.flow_labels.text_labels import label_session_with_texts
from agents.models import Agent, Inbox, Session, Step
from agents.policies.effective_policies import require_enabled
from agents.sessions.answer_notices import ANSWER_NOTICE_CODES
from agents.sessions.services import build_title, check_message, request_cancel
from agents.wakeups import build_session_topic, notify_worker, run_locally
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.core.i18n.messages import format_message
from bonobot.core.message_bus import WakeupListener, listen
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.admin_changes import record_change

MAX_DEPTH = 3
# Minimum pause between two queries for a child's status.
MIN_QUERY_INTERVAL_S = 0.05
FINISHED_STATUSES = (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)
# The code of a call whose child session waits for a person: the parent session waits too.
CHILD_WAITING_CODE = "child_waits"
# The code of a call that stopped waiting for its child session, because its process is stopping.
PARENT_STOPPING_CODE = "parent_stops"

ChildInitializer = Callable[[Session], object]
# The limits of the sessions that run in this process, while one of their calls uses it.
_child_limits: WeakValueDictionary[UUID, asyncio.Semaphore] = WeakValueDictionary()


class ChildSessionWaiting(Problem):
    """The child session of a call waits for a person."""

    code = CHILD_WAITING_CODE
    status = 409


class ParentSessionStopping(Problem):
    """The process of the parent session is stopping; the call is made again in another one."""

    code = PARENT_STOPPING_CODE
    status = 503


class CallDepthExceeded(Problem):
    """The session tree would exceed its maximum depth."""

    code = "too_deep"
    status = 422


class ChildSessionFailed(Problem):
    """The child session of a call ended without an answer."""

    code = "child_failed"
    status = 502


def start_child(
    principal: Principal,
    parent_id: UUID,
    call_id: UUID,
    agent_id: UUID,
    text: str,
    initialize: ChildInitializer,
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
    _check_can_start_child(parent, agent, text)
    child = Session(
        id=child_id,
        organization_id=parent.organization_id,
        agent=agent,
        parent=parent,
        root_id=parent.root_id or parent.pk,
        depth=parent.depth + 1,
        title=build_title(agent, text),
        started_by_kind=parent.started_by_kind,
        started_by_id=parent.started_by_id,
        started_by=parent.started_by,
        token_id=parent.token_id,
        token_calls_per_minute=parent.token_calls_per_minute,
    )
    label_session_with_texts(principal.actor, child)
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
        initialize(child)
    notify_worker(child_id)
    return child_id


def build_message_initializer(principal: Principal, text: str) -> ChildInitializer:
    """Return a function that adds the first message to a new session's inbox."""

    def add_message(child: Session) -> None:
        Inbox.objects.create(
            session=child,
            kind=Inbox.Kind.MESSAGE,
            payload={"text": text},
            actor_kind=principal.kind,
            actor_id=principal.id,
            actor=principal.label,
        )

    return add_message


async def run_child(
    parent_id: UUID, start: Callable[[], UUID], stopping: asyncio.Event | None = None
) -> str:
    """Start a child with `start`, which returns its id, and return its answer when it ends.

    Of the children of one session, `BONOBOT_PARALLEL_CHILD_SESSIONS` run at once; the others start
    when one ends or waits for a person. None is started once `stopping` is set. Raises what
    `wait_for_child` and `get_child_answer` raise.
    """
    async with _get_child_limit(parent_id):
        _check_not_stopping(stopping)
        child_id = await get_runtime().run_orm(start)
        await wait_for_child(child_id, stopping)
    return await get_runtime().run_orm(get_child_answer, child_id)


def _get_child_limit(parent_id: UUID) -> asyncio.Semaphore:
    """Return the limit on a session's running children. Call on the loop only."""
    limit = _child_limits.get(parent_id)
    if limit is None:
        limit = asyncio.Semaphore(settings.BONOBOT_PARALLEL_CHILD_SESSIONS)
        _child_limits[parent_id] = limit
    return limit


async def wait_for_child(child_id: UUID, stopping: asyncio.Event | None = None) -> str:
    """Wait until a child ends and return its status.

    Raises `ChildSessionWaiting`, and `ParentSessionStopping` as soon as `stopping` is set. A queued
    child is run in this process if it has a runner. Its steps wake up this process, too, so between
    two queries there is a short pause.
    """
    async with (
        listen(build_session_topic(child_id)) as listener,
        _wake_when_set(stopping, listener),
    ):
        while True:
            status = await get_runtime().run_orm(_load_status, child_id)
            if status in FINISHED_STATUSES:
                return str(status)
            if status == Session.Status.WAITING:
                raise ChildSessionWaiting(
                    "The session started by this call is waiting for a person."
                )
            _check_not_stopping(stopping)
            if status == Session.Status.QUEUED:
                await run_locally(child_id)
            await listener.wait()
            await asyncio.sleep(MIN_QUERY_INTERVAL_S)


def _check_not_stopping(stopping: asyncio.Event | None) -> None:
    if stopping is not None and stopping.is_set():
        raise ParentSessionStopping("The process that runs this session is stopping.")


@asynccontextmanager
async def _wake_when_set(
    event: asyncio.Event | None, listener: WakeupListener
) -> AsyncIterator[None]:
    """Wake a listener when an event is set."""
    if event is None:
        yield
        return
    task = asyncio.create_task(event.wait(), name="wait for the stop")
    task.add_done_callback(lambda _: listener.wake())
    try:
        yield
    finally:
        task.cancel()


def get_child_answer(child_id: UUID) -> str:
    """Return the answer of a finished session, marked if it is incomplete.

    Raises `ChildSessionFailed`.
    """
    child = Session.objects.get(pk=child_id)
    end_step = child.steps.filter(kind=Step.Kind.END).order_by("-seq").first()
    if child.status != Session.Status.DONE or end_step is None or "answer" not in end_step.payload:
        reason = child.error_detail or "it ended without an answer"
        raise ChildSessionFailed(
            format_message(
                "The session {child_id} didn't answer: {why}", child_id=child_id, why=reason
            ),
            code=child.error_code or ChildSessionFailed.code,
            remedy="See the session page for details.",
        )
    last_turn = child.steps.filter(kind=Step.Kind.MODEL).order_by("-seq").first()
    notices = child.steps.filter(
        kind=Step.Kind.NOTICE,
        seq__gt=last_turn.seq if last_turn else 0,
        payload__code__in=ANSWER_NOTICE_CODES,
    ).order_by("seq")
    marks = (f"[{notice.payload['text']}]" for notice in notices)
    return "\n\n".join((str(end_step.payload["answer"]), *marks))


def cancel_children(session_id: UUID, reason: str) -> None:
    """Request the cancellation of a session's unfinished child sessions."""
    for child in Session.objects.filter(parent_id=session_id).exclude(status__in=FINISHED_STATUSES):
        actor = Principal(
            kind="session",
            id=str(session_id),
            label=child.started_by,
            organization_id=child.organization_id,
            role=Role.MEMBER,
        )
        request_cancel(actor, child, reason)


def _check_can_start_child(parent: Session, agent: Agent, text: str) -> None:
    if parent.depth >= MAX_DEPTH:
        raise CallDepthExceeded(
            format_message(
                "Sessions can be nested at most {deepest} levels deep, and this session is "
                "at that level.",
                deepest=MAX_DEPTH,
            ),
            rule="session:depth",
            remedy="Complete the task without another agent.",
        )
    require_enabled(agent)
    check_message(text)


def _build_child_id(parent_id: UUID, call_id: UUID) -> UUID:
    """Return the id of a child, derived from its step or, without a step, from its call."""
    step = Step.objects.filter(session_id=parent_id, call_id=call_id).first()
    return build_child_id_of_step(step) if step else uuid5(parent_id, str(call_id))


def build_child_id_of_step(step: Step) -> UUID:
    """Return the id of the child that a step of its parent starts."""
    return uuid5(step.session_id, f"{step.turn}:{step.index}")


def _load_status(session_id: UUID) -> str:
    status = Session.objects.filter(pk=session_id).values_list("status", flat=True).first()
    return str(status or Session.Status.CANCELLED)
