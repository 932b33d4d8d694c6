"""Conversing: talk with an agent, see how its session stands, read it, end it.

Each agent that may be run is a tool of its own, so that a client's rules and a model's choice are
about one agent. What is common to all sessions is there once, whoever's session it is.
"""

import hashlib
from typing import Any
from uuid import UUID

from django.db.models import Max

from agents.models import Agent, Session, Step
from agents.session_labels import label_reader, label_reader_of
from agents.sessions.branches import current
from agents.sessions.requests import MESSAGE_LENGTH, cancel, send, start
from bonobot.gateway.bots.following import until_rest
from bonobot.gateway.bots.standing import STANDING, TEXT, last_message, stands
from bonobot.gateway.bots.tools import READS, Form, Hints, Run, Tool, given
from bonobot.gateway.inbound import Inbound
from bonobot.lib.runtime import runtime
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.naming import LONGEST_TOOL_NAME

CHAT = "_chat"
# Many clients wait a minute for an answer; after this they are told how to go on.
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
TALK = Form(
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
STATUS = Form(
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
CANCEL = Form({"session_id": SESSION_ID}, ("session_id",))
READ = Form(
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
MESSAGE = given(
    {
        "seq": {"type": "integer"},
        "from": {"enum": ["person", "agent"]},
        "name": {**TEXT, "description": "Who: a person's or token's name, or the agent's slug."},
        "text": TEXT,
        "at": TEXT,
    }
)
MESSAGES = given(
    {
        "session_id": TEXT,
        "status": STANDING["properties"]["status"],
        "messages": {"type": "array", "items": MESSAGE, "description": "The oldest first."},
        "more": {"type": "boolean", "description": "Whether there are more behind these."},
    }
)
CANCELLED = given(
    {
        "session_id": TEXT,
        "cancelled": {"type": "boolean", "description": "False where nothing was running."},
    }
)


def chats(agents: list[Agent]) -> list[Tool]:
    """Return a tool for each agent, to talk with it."""
    return [_chat(agent) for agent in agents]


def session_tools(principal: Principal) -> list[Tool]:
    """Return what a principal may do with sessions, whichever agent's they are."""
    runs = principal.may(Action.RUN_AGENTS)
    found = [STATUS_TOOL, MESSAGES_TOOL] if runs or principal.may(Action.VIEW) else []
    return [*found, CANCEL_TOOL] if runs else found


def chat_name(agent: Agent) -> str:
    """Return the name of an agent's tool: its slug and `_chat`; a long one is cut and marked."""
    name = f"{agent.slug}{CHAT}"
    if len(name) <= LONGEST_TOOL_NAME:
        return name
    mark = hashlib.sha256(agent.slug.encode()).hexdigest()[:MARK_LENGTH]
    return f"{agent.slug[: LONGEST_TOOL_NAME - MARK_LENGTH - 1 - len(CHAT)]}_{mark}{CHAT}"


def _chat(agent: Agent) -> Tool:
    about = f"{agent.description.strip()}\n\n" if agent.description.strip() else ""
    return Tool(
        name=chat_name(agent),
        title=f"Talk with {agent.name}",
        description=(
            f"Give the AI agent {agent.name} a message and wait for its answer. {about}"
            "The agent works in a session that is kept: give its `session_id` to go on with it. "
            "It works on when you stop waiting; `session_status` tells how it stands, "
            "`session_cancel` ends it. What `waits_for` lists only a person can answer, at its url."
        ),
        takes=TALK,
        gives=STANDING,
        # What it may do depends on the agent's own tools.
        hints=Hints(destroys=True, reaches_out=True),
        run=_talking(agent),
        agent=agent,
    )


def _talking(agent: Agent) -> Run:
    async def talk(inbound: Inbound, arguments: dict[str, Any]) -> dict[str, Any]:
        principal = inbound.visitor.principal
        said, number = arguments["message"], arguments.get("session_id")
        session_id, after = await runtime().orm(_sent, principal, agent, said, number)
        if wait_s := arguments.get("wait_s", USUAL_WAIT_S):
            await until_rest(inbound, session_id, after, wait_s)
        return await runtime().orm(_stands, principal, session_id, after)

    return talk


def _sent(
    principal: Principal, agent: Agent, message: str, session_id: str | None
) -> tuple[UUID, int]:
    """Give an agent a message; return the session, and the last step before it."""
    if session_id is None:
        return start(principal, agent, message).pk, 0
    session = _session(principal, session_id, agent=agent)
    last = session.steps.aggregate(last=Max("seq"))["last"] or 0
    send(principal, session, message)
    return session.pk, last


def _session(principal: Principal, session_id: str, **lookup: Any) -> Session:
    """Return a session that a principal may read; raises `NotFound`."""
    visible = Session.objects.visible_to(principal).select_related("agent").filter(**lookup)
    found: Session = visible.get_or_404(principal.organization_id, pk=session_id)
    return found


async def _status(inbound: Inbound, arguments: dict[str, Any]) -> dict[str, Any]:
    principal, number = inbound.visitor.principal, arguments["session_id"]
    session_id, after = await runtime().orm(_last, principal, number)
    if wait_s := arguments.get("wait_s", 0):
        await until_rest(inbound, session_id, after, wait_s)
    return await runtime().orm(_stands, principal, session_id)


def _stands(principal: Principal, session_id: UUID, after: int | None = None) -> dict[str, Any]:
    """Return how a session stands, to a token that holds from then on what the session holds."""
    found = stands(session_id, after)
    label_reader_of(principal, session_id)
    return found


def _last(principal: Principal, session_id: str) -> tuple[UUID, int]:
    """Return a session, and its last message."""
    session = _session(principal, session_id)
    return session.pk, last_message(session)


async def _cancel(inbound: Inbound, arguments: dict[str, Any]) -> dict[str, Any]:
    return await runtime().orm(_ended, inbound.visitor.principal, arguments["session_id"])


def _ended(principal: Principal, session_id: str) -> dict[str, Any]:
    session = _session(principal, session_id)
    return {"session_id": str(session.pk), "cancelled": cancel(principal, session)}


async def _messages(inbound: Inbound, arguments: dict[str, Any]) -> dict[str, Any]:
    principal, after = inbound.visitor.principal, arguments.get("after_seq", 0)
    return await runtime().orm(_read, principal, arguments["session_id"], after)


def _read(principal: Principal, session_id: str, after_seq: int) -> dict[str, Any]:
    session = _session(principal, session_id)
    talk = session.steps.filter(kind__in=(Step.Kind.MESSAGE, Step.Kind.END))
    steps = current(list(talk.order_by("seq")))
    label_reader(principal, session)
    said = [one for step in steps if step.seq > after_seq for one in _said(session, step)]
    return {
        "session_id": str(session.pk),
        "status": session.status,
        "messages": said[:MOST_MESSAGES],
        "more": len(said) > MOST_MESSAGES,
    }


def _said(session: Session, step: Step) -> list[dict[str, Any]]:
    if step.kind == Step.Kind.MESSAGE:
        who, name = "person", step.payload.get("by", session.started_by)
        text = step.payload.get("text", "")
    elif step.kind == Step.Kind.END and step.payload.get("answer"):
        who, name, text = "agent", session.agent.slug, step.payload["answer"]
    else:
        return []
    at = step.started_at.isoformat()
    return [{"seq": step.seq, "from": who, "name": name, "text": text, "at": at}]


STATUS_TOOL = Tool(
    name="session_status",
    title="How a session stands",
    description=(
        "Tell how an agent's session stands: its status, the answer to the last message, what it "
        "called, and what waits for a person. With `wait_s` it waits until the session rests."
    ),
    takes=STATUS,
    gives=STANDING,
    hints=READS,
    run=_status,
)
MESSAGES_TOOL = Tool(
    name="session_messages",
    title="Read a session",
    description="Read what was said in a session: people's messages and the agent's answers.",
    takes=READ,
    gives=MESSAGES,
    hints=READS,
    run=_messages,
)
CANCEL_TOOL = Tool(
    name="session_cancel",
    title="Cancel a session",
    description=(
        "Cancel what a session does now. It stays, and a later message goes on with it; a call "
        "that was out already may have had its effect."
    ),
    takes=CANCEL,
    gives=CANCELLED,
    hints=Hints(destroys=True, repeatable=True),
    run=_cancel,
)
