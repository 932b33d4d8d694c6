"""Tools to chat with agents, and to read and cancel their sessions.

Each agent is a separate tool, so that a client's rules and a model's choice apply to one agent.
The session tools work for all agents.

Sessions don't depend on the client: one that disconnects or stops waiting doesn't end its session.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Max

from agents.flow_labels.session_labels import label_reader, label_session_reader
from agents.gateway.client_request import GatewayRequest
from agents.gateway.organization_server.tools import (
    READ_ONLY_HINTS,
    OrganizationTool,
    OrganizationToolHints,
    ToolInputSchema,
    ToolRunner,
    build_output_schema,
)
from agents.models import Agent, Approval, ElicitationRequest, Session, Step
from agents.models.page_urls import build_page_url
from agents.sessions.events import (
    PROGRESS,
    RESTING_STATUSES,
    STATE,
    TEXT,
    SessionEvent,
    watch_session,
)
from agents.sessions.history import list_current_steps
from agents.sessions.services import (
    MAX_MESSAGE_LENGTH,
    cancel_session,
    find_selectable_endpoint,
    send_message,
    start_session,
)
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import InvalidInput
from bonobot.core.runtime import get_runtime
from mcp_servers.tool_names import MAX_TOOL_NAME_LENGTH

MAX_CALLS = 200
TEXT_SCHEMA: dict[str, Any] = {"type": "string"}
PENDING_REQUEST_SCHEMA = build_output_schema(
    {
        "kind": {"enum": ["approval", "question"]},
        "id": TEXT_SCHEMA,
        "text": {**TEXT_SCHEMA, "description": "The question for the person."},
        "url": {**TEXT_SCHEMA, "description": "URL of the page where a person answers."},
        "expires_at": {**TEXT_SCHEMA, "description": "Then denied or canceled."},
    }
)
CALL_SCHEMA = build_output_schema(
    {
        "tool": TEXT_SCHEMA,
        "state": {"enum": [str(state) for state in Step.State]},
        "code": {**TEXT_SCHEMA, "description": "Why it failed; empty if it didn't."},
    }
)
STATUS_SCHEMA = build_output_schema(
    {
        "session_id": TEXT_SCHEMA,
        "agent": {**TEXT_SCHEMA, "description": "Slug of the agent."},
        "status": {"enum": [str(status) for status in Session.Status]},
        "resting": {
            "type": "boolean",
            "description": "True if the session has ended or is waiting for a person.",
        },
        "answer": {**TEXT_SCHEMA, "description": "The agent's answer; empty until it is done."},
        "output": {
            "type": ["object", "null"],
            "description": "The parsed answer if it had to match an output schema, else null.",
        },
        "calls": {
            "type": "array",
            "items": CALL_SCHEMA,
            "description": f"The calls since the last message, at most the latest {MAX_CALLS}.",
        },
        "waits_for": {
            "type": "array",
            "items": PENDING_REQUEST_SCHEMA,
            "description": "Requests that a person must answer before the session continues.",
        },
        "error": {
            **build_output_schema({"code": TEXT_SCHEMA, "detail": TEXT_SCHEMA}),
            "description": "Why the session failed; empty fields if it didn't.",
        },
    }
)
CHAT_SUFFIX = "_chat"
# Many clients time out after a minute; return the session's status before that.
DEFAULT_WAIT_S = 45
MAX_WAIT_S = 600
MAX_MESSAGES = 100
DIGEST_LENGTH = 8
SESSION_ID_SCHEMA = {"type": "string", "format": "uuid", "maxLength": 64}
WAIT_SCHEMA: dict[str, Any] = {
    "type": "number",
    "minimum": 0,
    "maximum": MAX_WAIT_S,
}
CHAT_INPUT = ToolInputSchema(
    {
        "message": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_MESSAGE_LENGTH,
            "description": "The message for the agent.",
        },
        "session_id": {
            **SESSION_ID_SCHEMA,
            "description": "The session to continue. Default: a new session.",
        },
        "model_endpoint": {
            "type": "string",
            "maxLength": 64,
            "description": (
                "ID or slug of a model endpoint for a new session. Default: the agent's."
            ),
        },
        "output_schema": {
            "type": "object",
            "description": (
                "JSON Schema of an object that the answer must match; the parsed answer is "
                "`output`. Default: the agent's."
            ),
        },
        "wait_s": {
            **WAIT_SCHEMA,
            "default": DEFAULT_WAIT_S,
            "description": "Seconds to wait for the answer; 0 to only send the message.",
        },
    },
    ("message",),
)
STATUS_INPUT = ToolInputSchema(
    {
        "session_id": SESSION_ID_SCHEMA,
        "wait_s": {
            **WAIT_SCHEMA,
            "default": 0,
            "description": "Seconds to wait until the session ends or waits for a person.",
        },
    },
    ("session_id",),
)
CANCEL_INPUT = ToolInputSchema({"session_id": SESSION_ID_SCHEMA}, ("session_id",))
MESSAGES_INPUT = ToolInputSchema(
    {
        "session_id": SESSION_ID_SCHEMA,
        "after_seq": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "Only messages after this `seq`.",
        },
    },
    ("session_id",),
)


def load_session_status(session_id: UUID, after_seq: int | None = None) -> dict[str, Any]:
    """Return a session's status and calls since `after_seq`, or its last message (5 queries)."""
    session = Session.objects.select_related("agent").get(pk=session_id)
    if after_seq is None:
        after_seq = find_last_message_seq(session)
    new_steps = list(session.steps.filter(seq__gt=after_seq).order_by("seq"))
    end_steps = [step for step in new_steps if step.kind == Step.Kind.END]
    end = end_steps[-1].payload if end_steps and session.status == Session.Status.DONE else {}
    return {
        "session_id": str(session.pk),
        "agent": session.agent.slug,
        "status": session.status,
        "resting": session.status in RESTING_STATUSES,
        "answer": end.get("answer", ""),
        "output": end.get("output"),
        "calls": [_build_call(step) for step in new_steps if step.kind == Step.Kind.CALL][
            -MAX_CALLS:
        ],
        "waits_for": [*_iterate_pending_requests(session.pk)],
        "error": {"code": session.error_code, "detail": session.error_detail},
    }


def find_last_message_seq(session: Session) -> int:
    """Return the number of the last message step, 0 for none (one query)."""
    messages = session.steps.filter(kind=Step.Kind.MESSAGE)
    return messages.aggregate(last=Max("seq"))["last"] or 0


def _build_call(step: Step) -> dict[str, Any]:
    return {
        "tool": step.payload.get("name", ""),
        "state": step.state,
        "code": step.payload.get("code", ""),
    }


def _iterate_pending_requests(session_id: UUID) -> Iterable[dict[str, Any]]:
    """Yield the pending approvals and questions of a session tree (2 queries)."""
    for call in Approval.objects.pending().in_session_tree(session_id):
        text = f"Allow {call.label}? {call.reason}"
        yield _build_pending_request(
            "approval", call.pk, text, build_page_url(call), call.expires_at
        )
    for question in ElicitationRequest.objects.pending().in_session_tree(session_id):
        yield _build_pending_request(
            "question",
            question.pk,
            question.message,
            build_page_url(question),
            question.expires_at,
        )


def _build_pending_request(
    kind: str, request_id: UUID, text: str, url: str, expires_at: datetime
) -> dict[str, Any]:
    expiry = expires_at.isoformat()
    return {"kind": kind, "id": str(request_id), "text": text, "url": url, "expires_at": expiry}


class SessionProgress:
    """Tracks what a client was sent of a session: each text once, each call's start and end."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._states: dict[int, str] = {}

    def collect_new_lines(self, events: Sequence[SessionEvent]) -> Iterator[str]:
        """Yield new lines and pieces of text."""
        yield from filter(None, (line for event in events for line in self._format_event(event)))

    def _format_event(self, event: SessionEvent) -> Iterator[str]:
        if event.kind in (Step.Kind.MODEL, TEXT):
            yield from self._format_text(event)
        elif event.kind == Step.Kind.CALL:
            yield from self._format_call(event.data)
        elif event.kind == Step.Kind.NOTICE:
            yield str(event.data.get("text", ""))
        elif event.kind == PROGRESS:
            yield str(event.data.get("message", ""))
        elif event.kind == STATE:
            yield f"[{event.data['status']}]"

    def _format_text(self, event: SessionEvent) -> Iterator[str]:
        seq, known_text = event.data["seq"], self._texts.get(event.data["seq"], "")
        new_text = str(event.data.get("text", ""))
        full_text = known_text[: event.data["at"]] + new_text if event.kind == TEXT else new_text
        if full_text.startswith(known_text) and full_text != known_text:
            self._texts[seq] = full_text
            yield full_text[len(known_text) :]

    def _format_call(self, step: dict[str, Any]) -> Iterator[str]:
        seq, state = step["seq"], step["state"]
        if self._states.get(seq) == state:
            return
        self._states[seq] = state
        if state == Step.State.INTENT:
            yield f"[calls {step.get('name', '')}]"
        else:
            reason = f", {step['code']}" if step.get("code") else ""
            yield f"[{step.get('name', '')}: {state}{reason}]"


async def wait_until_resting(
    inbound: GatewayRequest, session_id: UUID, after_seq: int, wait_s: float
) -> None:
    """Wait until a session rests, at most `wait_s`; send progress if the client requested it."""
    progress, line_count = SessionProgress(), 0
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            # The watch may end early, for a slow reader or after an outdated poll.
            while True:
                async with aclosing(watch_session(session_id, after_seq)) as event_batches:
                    async for events in event_batches:
                        if events:
                            await get_runtime().run_orm(
                                label_session_reader, inbound.caller.principal, session_id
                            )
                        for line in (
                            progress.collect_new_lines(events) if inbound.wants_progress else ()
                        ):
                            line_count += 1
                            await inbound.report_progress(line_count, None, line)
                if await get_runtime().run_orm(_is_resting, session_id):
                    return


def _is_resting(session_id: UUID) -> bool:
    return not Session.objects.filter(pk=session_id).exclude(status__in=RESTING_STATUSES).exists()


MESSAGE_SCHEMA = build_output_schema(
    {
        "seq": {"type": "integer"},
        "from": {"enum": ["person", "agent"]},
        "name": {
            **TEXT_SCHEMA,
            "description": "Sender: name of a person or token, or the agent's slug.",
        },
        "text": TEXT_SCHEMA,
        "at": TEXT_SCHEMA,
    }
)
MESSAGES_SCHEMA = build_output_schema(
    {
        "session_id": TEXT_SCHEMA,
        "status": STATUS_SCHEMA["properties"]["status"],
        "messages": {"type": "array", "items": MESSAGE_SCHEMA, "description": "Oldest first."},
        "more": {"type": "boolean", "description": "True if there are more messages."},
    }
)
CANCEL_RESULT_SCHEMA = build_output_schema(
    {
        "session_id": TEXT_SCHEMA,
        "cancelled": {"type": "boolean", "description": "False if nothing was running."},
    }
)


def build_chat_tools(agents: list[Agent]) -> list[OrganizationTool]:
    """Return a chat tool for each agent."""
    return [_build_chat_tool(agent) for agent in agents]


def list_session_tools(principal: Principal) -> list[OrganizationTool]:
    """Return the session tools that a principal may use."""
    can_run = principal.may(Action.RUN_AGENTS)
    tools = [STATUS_TOOL, MESSAGES_TOOL] if can_run or principal.may(Action.VIEW) else []
    return [*tools, CANCEL_TOOL] if can_run else tools


def build_chat_tool_name(agent: Agent) -> str:
    """Return the name of an agent's tool: its slug and `_chat`; a long slug ends in a digest."""
    name = f"{agent.slug}{CHAT_SUFFIX}"
    if len(name) <= MAX_TOOL_NAME_LENGTH:
        return name
    digest = hashlib.sha256(agent.slug.encode()).hexdigest()[:DIGEST_LENGTH]
    slug = agent.slug[: MAX_TOOL_NAME_LENGTH - DIGEST_LENGTH - 1 - len(CHAT_SUFFIX)]
    return f"{slug}_{digest}{CHAT_SUFFIX}"


def _build_chat_tool(agent: Agent) -> OrganizationTool:
    agent_description = f"{agent.description.strip()}\n\n" if agent.description.strip() else ""
    return OrganizationTool(
        name=build_chat_tool_name(agent),
        title=f"Chat with {agent.name}",
        description=(
            f"Send a message to the AI agent {agent.name} and wait for its answer. "
            f"{agent_description}The agent works in a durable session: to continue it, send its "
            "`session_id`. The session continues if you stop waiting: use `session_status` to "
            "check it, and `session_cancel` to cancel it. Only a person can answer the requests in "
            "`waits_for`, at their `url`."
        ),
        input_schema=CHAT_INPUT,
        output_schema=STATUS_SCHEMA,
        # Its effects depend on the agent's own tools.
        hints=OrganizationToolHints(destructive=True, open_world=True),
        run=_build_chat_runner(agent),
        agent=agent,
    )


def _build_chat_runner(agent: Agent) -> ToolRunner:
    async def run_chat(inbound: GatewayRequest, arguments: dict[str, Any]) -> dict[str, Any]:
        principal = inbound.caller.principal
        session_id, after_seq = await get_runtime().run_orm(
            _send_message, principal, agent, arguments
        )
        if wait_s := arguments.get("wait_s", DEFAULT_WAIT_S):
            await wait_until_resting(inbound, session_id, after_seq, wait_s)
        return await get_runtime().run_orm(_load_labeled_status, principal, session_id, after_seq)

    return run_chat


def _send_message(
    principal: Principal, agent: Agent, arguments: Mapping[str, Any]
) -> tuple[UUID, int]:
    """Send an agent a message; return the session's id and the last step before the message."""
    message, schema = arguments["message"], arguments.get("output_schema")
    endpoint_name, session_id = arguments.get("model_endpoint", ""), arguments.get("session_id")
    if session_id is None:
        session = start_session(
            principal,
            agent,
            message,
            model_endpoint=find_selectable_endpoint(principal, agent, endpoint_name),
            output_schema=schema,
        )
        return session.pk, 0
    if endpoint_name:
        raise InvalidInput(
            "The model of a session can't be changed.",
            field="model_endpoint",
            remedy="Omit `model_endpoint`, or omit `session_id` to start a new session.",
        )
    session = _get_session(principal, session_id, agent=agent)
    last_seq = session.steps.aggregate(last=Max("seq"))["last"] or 0
    send_message(principal, session, message, output_schema=schema)
    return session.pk, last_seq


def _get_session(principal: Principal, session_id: str, **lookup: Any) -> Session:
    """Return a session that a principal may read; raises `NotFound`."""
    visible_sessions = (
        Session.objects.visible_to(principal).select_related("agent").filter(**lookup)
    )
    session: Session = visible_sessions.get_or_404(principal.organization_id, pk=session_id)
    return session


async def _get_session_status(inbound: GatewayRequest, arguments: dict[str, Any]) -> dict[str, Any]:
    principal, requested_id = inbound.caller.principal, arguments["session_id"]
    session_id, after_seq = await get_runtime().run_orm(_get_last_message, principal, requested_id)
    if wait_s := arguments.get("wait_s", 0):
        await wait_until_resting(inbound, session_id, after_seq, wait_s)
    return await get_runtime().run_orm(_load_labeled_status, principal, session_id)


def _load_labeled_status(
    principal: Principal, session_id: UUID, after_seq: int | None = None
) -> dict[str, Any]:
    """Return a session's status, and add the session's flow labels to the reader."""
    status = load_session_status(session_id, after_seq)
    label_session_reader(principal, session_id)
    return status


def _get_last_message(principal: Principal, session_id: str) -> tuple[UUID, int]:
    """Return a session's id and the number of its last message."""
    session = _get_session(principal, session_id)
    return session.pk, find_last_message_seq(session)


async def _run_cancel(inbound: GatewayRequest, arguments: dict[str, Any]) -> dict[str, Any]:
    return await get_runtime().run_orm(
        _cancel_session, inbound.caller.principal, arguments["session_id"]
    )


def _cancel_session(principal: Principal, session_id: str) -> dict[str, Any]:
    session = _get_session(principal, session_id)
    return {"session_id": str(session.pk), "cancelled": cancel_session(principal, session)}


async def _list_messages(inbound: GatewayRequest, arguments: dict[str, Any]) -> dict[str, Any]:
    principal, after_seq = inbound.caller.principal, arguments.get("after_seq", 0)
    return await get_runtime().run_orm(
        _load_messages, principal, arguments["session_id"], after_seq
    )


def _load_messages(principal: Principal, session_id: str, after_seq: int) -> dict[str, Any]:
    session = _get_session(principal, session_id)
    message_steps = session.steps.filter(kind__in=(Step.Kind.MESSAGE, Step.Kind.END))
    steps = list_current_steps(list(message_steps.order_by("seq")))
    label_reader(principal, session)
    messages = [
        message
        for step in steps
        if step.seq > after_seq
        for message in _build_step_messages(session, step)
    ]
    return {
        "session_id": str(session.pk),
        "status": session.status,
        "messages": messages[:MAX_MESSAGES],
        "more": len(messages) > MAX_MESSAGES,
    }


def _build_step_messages(session: Session, step: Step) -> list[dict[str, Any]]:
    if step.kind == Step.Kind.MESSAGE:
        sender, name = "person", step.payload.get("by", session.started_by)
        text = step.payload.get("text", "")
    elif step.kind == Step.Kind.END and step.payload.get("answer"):
        sender, name, text = "agent", session.agent.slug, step.payload["answer"]
    else:
        return []
    at = step.started_at.isoformat()
    return [{"seq": step.seq, "from": sender, "name": name, "text": text, "at": at}]


STATUS_TOOL = OrganizationTool(
    name="session_status",
    title="Get a session's status",
    description=(
        "Get the status of a session, the answer to its last message, its calls, and requests that "
        "wait for a person. With `wait_s`, wait until the session ends or waits for a person."
    ),
    input_schema=STATUS_INPUT,
    output_schema=STATUS_SCHEMA,
    hints=READ_ONLY_HINTS,
    run=_get_session_status,
)
MESSAGES_TOOL = OrganizationTool(
    name="session_messages",
    title="Get a session's messages",
    description="Get the messages of a session: people's messages and the agent's answers.",
    input_schema=MESSAGES_INPUT,
    output_schema=MESSAGES_SCHEMA,
    hints=READ_ONLY_HINTS,
    run=_list_messages,
)
CANCEL_TOOL = OrganizationTool(
    name="session_cancel",
    title="Cancel a session",
    description=(
        "Cancel what a session is doing. The session is kept, and a later message continues it. "
        "Calls that were already sent to a server can have had an effect."
    ),
    input_schema=CANCEL_INPUT,
    output_schema=CANCEL_RESULT_SCHEMA,
    hints=OrganizationToolHints(destructive=True, idempotent=True),
    run=_run_cancel,
)
