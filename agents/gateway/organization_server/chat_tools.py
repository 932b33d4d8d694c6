"""Tools to chat with agents, and to read and cancel their sessions.

Each agent is a separate tool, so that a client's rules and a model's choice apply to one agent.
The session tools work for all agents.

Sessions don't depend on the client: one that disconnects or stops waiting doesn't end its session.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Max, Q

from agents.approvals import services as approvals
from agents.elicitations import services as elicitations
from agents.flow_labels.session_labels import label_reader, label_reader_of
from agents.gateway.client_request import GatewayRequest
from agents.gateway.organization_server.tools import (
    READS,
    OrganizationTool,
    OrganizationToolHints,
    Run,
    ToolInputSchema,
    build_output_schema,
)
from agents.models import Agent, Approval, Question, Session, Step
from agents.sessions.events import PROGRESS, RESTING, STATE, TEXT, SessionEvent, watch_session
from agents.sessions.history import list_current_steps
from agents.sessions.services import MESSAGE_LENGTH, cancel, send, start
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.runtime import get_runtime
from mcp_servers.tool_names import LONGEST_TOOL_NAME

MOST_CALLS = 200
TEXT_SCHEMA: dict[str, Any] = {"type": "string"}
WAITING = build_output_schema(
    {
        "kind": {"enum": ["approval", "question"]},
        "id": TEXT_SCHEMA,
        "text": {**TEXT_SCHEMA, "description": "What a person is asked."},
        "url": {**TEXT_SCHEMA, "description": "Where a person answers it."},
        "expires_at": {**TEXT_SCHEMA, "description": "Then it is a no."},
    }
)
CALL = build_output_schema(
    {
        "tool": TEXT_SCHEMA,
        "state": {"enum": [str(state) for state in Step.State]},
        "code": {**TEXT_SCHEMA, "description": "Why it failed; blank where it didn't."},
    }
)
STANDING = build_output_schema(
    {
        "session_id": TEXT_SCHEMA,
        "agent": {**TEXT_SCHEMA, "description": "Slug of the agent."},
        "status": {"enum": [str(status) for status in Session.Status]},
        "resting": {
            "type": "boolean",
            "description": "Whether nothing happens by itself: it is over, or waits for a person.",
        },
        "answer": {**TEXT_SCHEMA, "description": "The agent's answer; blank until it is done."},
        "calls": {
            "type": "array",
            "items": CALL,
            "description": f"What it called since the last message; the last {MOST_CALLS}.",
        },
        "waits_for": {
            "type": "array",
            "items": WAITING,
            "description": "What a person has to answer before it goes on.",
        },
        "error": {
            **build_output_schema({"code": TEXT_SCHEMA, "detail": TEXT_SCHEMA}),
            "description": "Why it failed; both are blank where it didn't.",
        },
    }
)


def load_session_status(session_id: UUID, after_seq: int | None = None) -> dict[str, Any]:
    """Return a session's status and calls since `after_seq`, or its last message (5 queries)."""
    session = Session.objects.select_related("agent").get(pk=session_id)
    if after_seq is None:
        after_seq = find_last_message_seq(session)
    new = list(session.steps.filter(seq__gt=after_seq).order_by("seq"))
    ends = [step for step in new if step.kind == Step.Kind.END]
    done = session.status == Session.Status.DONE
    return {
        "session_id": str(session.pk),
        "agent": session.agent.slug,
        "status": session.status,
        "resting": session.status in RESTING,
        "answer": ends[-1].payload.get("answer", "") if ends and done else "",
        "calls": [_build_call(step) for step in new if step.kind == Step.Kind.CALL][-MOST_CALLS:],
        "waits_for": [*_list_pending_requests(session.pk)],
        "error": {"code": session.error_code, "detail": session.error_detail},
    }


def find_last_message_seq(session: Session) -> int:
    """Return the number of the last message step, 0 for none (one query)."""
    said = session.steps.filter(kind=Step.Kind.MESSAGE)
    return said.aggregate(last=Max("seq"))["last"] or 0


def _build_call(step: Step) -> dict[str, Any]:
    return {
        "tool": step.payload.get("name", ""),
        "state": step.state,
        "code": step.payload.get("code", ""),
    }


def _list_pending_requests(session_id: UUID) -> Iterable[dict[str, Any]]:
    """Yield the pending approvals and questions of a session tree (2 queries)."""
    here = Q(session=session_id) | Q(session__root_id=session_id)
    for call in Approval.objects.waiting().filter(here).order_by("created_at"):
        text = f"Allow {call.label}? {call.reason}"
        yield _build_pending_request(
            "approval", call.pk, text, approvals.build_page_url(call), call.expires_at
        )
    for one in Question.objects.waiting().filter(here).order_by("created_at"):
        yield _build_pending_request(
            "question", one.pk, one.message, elicitations.build_page_url(one), one.expires_at
        )


def _build_pending_request(
    kind: str, number: UUID, text: str, url: str, expires_at: datetime
) -> dict[str, Any]:
    ends = expires_at.isoformat()
    return {"kind": kind, "id": str(number), "text": text, "url": url, "expires_at": ends}


class SessionProgress:
    """Tracks what a client was sent of a session: each text once, each call's start and end."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._states: dict[int, str] = {}

    def news(self, events: Sequence[SessionEvent]) -> Iterator[str]:
        """Yield new lines and pieces of text."""
        yield from filter(None, (line for event in events for line in self._lines(event)))

    def _lines(self, event: SessionEvent) -> Iterator[str]:
        if event.kind in (Step.Kind.MODEL, TEXT):
            yield from self._text(event)
        elif event.kind == Step.Kind.CALL:
            yield from self._call(event.data)
        elif event.kind == Step.Kind.NOTICE:
            yield str(event.data.get("text", ""))
        elif event.kind == PROGRESS:
            yield str(event.data.get("message", ""))
        elif event.kind == STATE:
            yield f"[{event.data['status']}]"

    def _text(self, event: SessionEvent) -> Iterator[str]:
        number, known = event.data["seq"], self._texts.get(event.data["seq"], "")
        said = str(event.data.get("text", ""))
        whole = known[: event.data["at"]] + said if event.kind == TEXT else said
        if whole.startswith(known) and whole != known:
            self._texts[number] = whole
            yield whole[len(known) :]

    def _call(self, step: dict[str, Any]) -> Iterator[str]:
        number, state = step["seq"], step["state"]
        if self._states.get(number) == state:
            return
        self._states[number] = state
        if state == Step.State.INTENT:
            yield f"[calls {step.get('name', '')}]"
        else:
            why = f", {step['code']}" if step.get("code") else ""
            yield f"[{step.get('name', '')}: {state}{why}]"


async def wait_until_resting(
    inbound: GatewayRequest, session_id: UUID, after_seq: int, wait_s: float
) -> None:
    """Wait until a session rests, at most `wait_s`; send progress if the client wants it."""
    told, lines = SessionProgress(), 0
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            # The watch may end early, for a slow reader or after an outdated poll.
            while True:
                async with aclosing(watch_session(session_id, after_seq)) as looks:
                    async for events in looks:
                        if events:
                            await get_runtime().orm(
                                label_reader_of, inbound.visitor.principal, session_id
                            )
                        for line in told.news(events) if inbound.wants_progress else ():
                            lines += 1
                            await inbound.progress(lines, None, line)
                if await get_runtime().orm(_is_resting, session_id):
                    return


def _is_resting(session_id: UUID) -> bool:
    return not Session.objects.filter(pk=session_id).exclude(status__in=RESTING).exists()


CHAT = "_chat"
# Many clients time out after a minute; return the session's status before that.
USUAL_WAIT_S = 45
LONGEST_WAIT_S = 600
MOST_MESSAGES = 100
MARK_LENGTH = 8

SESSION_ID = {"type": "string", "format": "uuid", "maxLength": 64}
WAIT: dict[str, Any] = {
    "type": "number",
    "minimum": 0,
    "maximum": LONGEST_WAIT_S,
}
TALK = ToolInputSchema(
    {
        "message": {
            "type": "string",
            "minLength": 1,
            "maxLength": MESSAGE_LENGTH,
            "description": "What the agent is to do, or to know.",
        },
        "session_id": {
            **SESSION_ID,
            "description": "The session to go on with; left out, a new one begins.",
        },
        "wait_s": {
            **WAIT,
            "default": USUAL_WAIT_S,
            "description": "Seconds to wait for the answer; 0 to only send the message.",
        },
    },
    ("message",),
)
STATUS = ToolInputSchema(
    {
        "session_id": SESSION_ID,
        "wait_s": {
            **WAIT,
            "default": 0,
            "description": "Seconds to wait until it rests; it is told at once where it does.",
        },
    },
    ("session_id",),
)
CANCEL = ToolInputSchema({"session_id": SESSION_ID}, ("session_id",))
READ = ToolInputSchema(
    {
        "session_id": SESSION_ID,
        "after_seq": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "Only messages behind this `seq`.",
        },
    },
    ("session_id",),
)
MESSAGE = build_output_schema(
    {
        "seq": {"type": "integer"},
        "from": {"enum": ["person", "agent"]},
        "name": {
            **TEXT_SCHEMA,
            "description": "Who: a person's or token's name, or the agent's slug.",
        },
        "text": TEXT_SCHEMA,
        "at": TEXT_SCHEMA,
    }
)
MESSAGES = build_output_schema(
    {
        "session_id": TEXT_SCHEMA,
        "status": STANDING["properties"]["status"],
        "messages": {"type": "array", "items": MESSAGE, "description": "The oldest first."},
        "more": {"type": "boolean", "description": "Whether there are more behind these."},
    }
)
CANCELLED = build_output_schema(
    {
        "session_id": TEXT_SCHEMA,
        "cancelled": {"type": "boolean", "description": "False where nothing was running."},
    }
)


def build_chat_tools(agents: list[Agent]) -> list[OrganizationTool]:
    """Return a chat tool for each agent."""
    return [_build_chat_tool(agent) for agent in agents]


def list_session_tools(principal: Principal) -> list[OrganizationTool]:
    """Return the session tools that a principal may use."""
    runs = principal.may(Action.RUN_AGENTS)
    found = [STATUS_TOOL, MESSAGES_TOOL] if runs or principal.may(Action.VIEW) else []
    return [*found, CANCEL_TOOL] if runs else found


def build_chat_tool_name(agent: Agent) -> str:
    """Return the name of an agent's tool: its slug and `_chat`; a long slug ends in a digest."""
    name = f"{agent.slug}{CHAT}"
    if len(name) <= LONGEST_TOOL_NAME:
        return name
    mark = hashlib.sha256(agent.slug.encode()).hexdigest()[:MARK_LENGTH]
    return f"{agent.slug[: LONGEST_TOOL_NAME - MARK_LENGTH - 1 - len(CHAT)]}_{mark}{CHAT}"


def _build_chat_tool(agent: Agent) -> OrganizationTool:
    about = f"{agent.description.strip()}\n\n" if agent.description.strip() else ""
    return OrganizationTool(
        name=build_chat_tool_name(agent),
        title=f"Talk with {agent.name}",
        description=(
            f"Give the AI agent {agent.name} a message and wait for its answer. {about}"
            "The agent works in a session that is kept: give its `session_id` to go on with it. "
            "It works on when you stop waiting; `session_status` tells how it stands, "
            "`session_cancel` ends it. What `waits_for` lists only a person can answer, at its url."
        ),
        takes=TALK,
        gives=STANDING,
        # Its effects depend on the agent's own tools.
        hints=OrganizationToolHints(destroys=True, reaches_out=True),
        run=_build_chat_runner(agent),
        agent=agent,
    )


def _build_chat_runner(agent: Agent) -> Run:
    async def talk(inbound: GatewayRequest, arguments: dict[str, Any]) -> dict[str, Any]:
        principal = inbound.visitor.principal
        said, number = arguments["message"], arguments.get("session_id")
        session_id, after = await get_runtime().orm(_send_message, principal, agent, said, number)
        if wait_s := arguments.get("wait_s", USUAL_WAIT_S):
            await wait_until_resting(inbound, session_id, after, wait_s)
        return await get_runtime().orm(_stands, principal, session_id, after)

    return talk


def _send_message(
    principal: Principal, agent: Agent, message: str, session_id: str | None
) -> tuple[UUID, int]:
    """Send an agent a message; return the session's id and the last step before the message."""
    if session_id is None:
        return start(principal, agent, message).pk, 0
    session = _get_session(principal, session_id, agent=agent)
    last = session.steps.aggregate(last=Max("seq"))["last"] or 0
    send(principal, session, message)
    return session.pk, last


def _get_session(principal: Principal, session_id: str, **lookup: Any) -> Session:
    """Return a session that a principal may read; raises `NotFound`."""
    visible = Session.objects.visible_to(principal).select_related("agent").filter(**lookup)
    found: Session = visible.get_or_404(principal.organization_id, pk=session_id)
    return found


async def _get_session_status(inbound: GatewayRequest, arguments: dict[str, Any]) -> dict[str, Any]:
    principal, number = inbound.visitor.principal, arguments["session_id"]
    session_id, after = await get_runtime().orm(_get_last_message, principal, number)
    if wait_s := arguments.get("wait_s", 0):
        await wait_until_resting(inbound, session_id, after, wait_s)
    return await get_runtime().orm(_stands, principal, session_id)


def _stands(principal: Principal, session_id: UUID, after: int | None = None) -> dict[str, Any]:
    """Return a session's status, and add the session's flow labels to the reader."""
    found = load_session_status(session_id, after)
    label_reader_of(principal, session_id)
    return found


def _get_last_message(principal: Principal, session_id: str) -> tuple[UUID, int]:
    """Return a session's id and the number of its last message."""
    session = _get_session(principal, session_id)
    return session.pk, find_last_message_seq(session)


async def _cancel(inbound: GatewayRequest, arguments: dict[str, Any]) -> dict[str, Any]:
    return await get_runtime().orm(
        _cancel_session, inbound.visitor.principal, arguments["session_id"]
    )


def _cancel_session(principal: Principal, session_id: str) -> dict[str, Any]:
    session = _get_session(principal, session_id)
    return {"session_id": str(session.pk), "cancelled": cancel(principal, session)}


async def _list_messages(inbound: GatewayRequest, arguments: dict[str, Any]) -> dict[str, Any]:
    principal, after = inbound.visitor.principal, arguments.get("after_seq", 0)
    return await get_runtime().orm(_read, principal, arguments["session_id"], after)


def _read(principal: Principal, session_id: str, after_seq: int) -> dict[str, Any]:
    session = _get_session(principal, session_id)
    talk = session.steps.filter(kind__in=(Step.Kind.MESSAGE, Step.Kind.END))
    steps = list_current_steps(list(talk.order_by("seq")))
    label_reader(principal, session)
    said = [
        one for step in steps if step.seq > after_seq for one in _build_step_messages(session, step)
    ]
    return {
        "session_id": str(session.pk),
        "status": session.status,
        "messages": said[:MOST_MESSAGES],
        "more": len(said) > MOST_MESSAGES,
    }


def _build_step_messages(session: Session, step: Step) -> list[dict[str, Any]]:
    if step.kind == Step.Kind.MESSAGE:
        who, name = "person", step.payload.get("by", session.started_by)
        text = step.payload.get("text", "")
    elif step.kind == Step.Kind.END and step.payload.get("answer"):
        who, name, text = "agent", session.agent.slug, step.payload["answer"]
    else:
        return []
    at = step.started_at.isoformat()
    return [{"seq": step.seq, "from": who, "name": name, "text": text, "at": at}]


STATUS_TOOL = OrganizationTool(
    name="session_status",
    title="How a session stands",
    description=(
        "Tell how an agent's session stands: its status, the answer to the last message, what it "
        "called, and what waits for a person. With `wait_s` it waits until the session rests."
    ),
    takes=STATUS,
    gives=STANDING,
    hints=READS,
    run=_get_session_status,
)
MESSAGES_TOOL = OrganizationTool(
    name="session_messages",
    title="Read a session",
    description="Read what was said in a session: people's messages and the agent's answers.",
    takes=READ,
    gives=MESSAGES,
    hints=READS,
    run=_list_messages,
)
CANCEL_TOOL = OrganizationTool(
    name="session_cancel",
    title="Cancel a session",
    description=(
        "Cancel what a session does now. It stays, and a later message goes on with it; a call "
        "that was out already may have had its effect."
    ),
    takes=CANCEL,
    gives=CANCELLED,
    hints=OrganizationToolHints(destroys=True, repeatable=True),
    run=_cancel,
)
