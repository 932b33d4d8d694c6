"""Start sessions, send and resend messages, and cancel sessions."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from json import JSONDecodeError, JSONDecoder
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from agents.approvals.ended_requests import Cancellation
from agents.approvals.services import SESSION_CANCELED, withdraw_approvals
from agents.attachments import Attachment, store_attachments
from agents.builtin_tools.workspaces import clean_attached_folder
from agents.calls import pending_calls
from agents.elicitations.services import withdraw_requests
from agents.flow_labels.session_labels import label_session
from agents.flow_labels.text_labels import label_session_with_texts
from agents.models import (
    Agent,
    Approval,
    Inbox,
    ModelEndpoint,
    Session,
    Skill,
    Step,
    WorkflowRun,
)
from agents.models.agents import build_agent_lookup, can_see_all_agents
from agents.models.sessions import COMMAND
from agents.policies.effective_policies import require_enabled
from agents.sessions.history import list_current_steps
from agents.sessions.output_schemas import OutputSchema, check_output_schema, map_texts
from agents.sessions.quarantine import require_not_quarantined
from agents.skills import build_template, render_skill
from agents.wakeups import notify_runners_of_cancel, notify_watchers, notify_worker
from bonobot.accounts.models import Token
from bonobot.accounts.principals import Principal, require_platform_admin
from bonobot.accounts.roles import Action, Role
from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, InvalidInput, NotFound
from bonobot.core.text.argument_summary import summarize_arguments
from bonobot.ledger.audit.admin_changes import record_change, record_changes_at_end

MAX_MESSAGE_LENGTH = 100_000
MAX_TITLE_LENGTH = 80
# A session waits while a child has one of these statuses.
_OPEN_STATUSES = (Session.Status.WAITING, Session.Status.QUEUED, Session.Status.RUNNING)
# Endpoints named in an error.
MAX_NAMED_ENDPOINTS = 20


def build_title(agent: Agent, text: str) -> str:
    """Return a text as a title in one line; an ellipsis ends a title that is cut.

    The title of a command, such as `/mcp_clock_now {"zone": "UTC"}`, is the server and its tool,
    with the arguments: `Clock: now (zone UTC)` (one query).
    """
    title = " ".join(text.split())
    if match := COMMAND.fullmatch(title):
        tool = agent.tool_names.filter(name=match[1]).select_related("server").first()
        arguments = summarize_arguments(_parse_first_object(title), MAX_TITLE_LENGTH)
        title = f"{tool.server.name}: {tool.own_name}" if tool else match[1]
        title += f" ({arguments})" if arguments else ""
    if len(title) <= MAX_TITLE_LENGTH:
        return title
    return f"{title[: MAX_TITLE_LENGTH - 1].rstrip()}…"


def _parse_first_object(text: str) -> Any:
    """Return the first JSON object in a text; None without one."""
    start = text.find("{")
    with suppress(JSONDecodeError):
        return JSONDecoder().raw_decode(text, start)[0] if start >= 0 else None
    return None


def start_session(
    principal: Principal,
    agent: Agent,
    text: str,
    *,
    working_dir: str = "",
    attachments: Sequence[Attachment] = (),
    model_endpoint: ModelEndpoint | None = None,
    output_schema: OutputSchema | None = None,
) -> Session:
    """Start a session with a first message; a worker runs it.

    `model_endpoint` is used instead of the agent's, with its own fallbacks, and `output_schema`
    instead of the agent's for this message. Raises `Forbidden`
    (code `model_not_selectable` for the endpoint), `NotFound` (another organization's agent),
    `InvalidInput` (empty text or unsupported files), `Conflict` (codes `kill_switch_enabled`,
    `agent_disabled`).
    """
    _require_startable(principal, agent, model_endpoint)
    message = _build_message(
        agent.organization_id,
        model_endpoint or agent.model_endpoint,
        text,
        attachments,
        output_schema,
    )
    session = Session(
        organization_id=agent.organization_id,
        agent=agent,
        model_endpoint=model_endpoint,
        title=build_title(agent, message["text"]),
        started_by_kind=principal.kind,
        started_by_id=principal.id,
        started_by=principal.label,
        token_id=principal.token_id,
        token_calls_per_minute=principal.calls_per_minute,
        working_dir=_check_working_directory(principal, working_dir),
    )
    with record_change(
        organization_id=agent.organization_id,
        actor=principal.actor,
        action="session_started",
        resource_type="session",
        resource_id=str(session.pk),
        resource_name=session.title,
        details={"agent_id": str(agent.pk), "agent": agent.slug}
        | ({"model_endpoint": model_endpoint.slug} if model_endpoint else {}),
        governed=False,
    ):
        session.save()
        _label_message(principal, session)
        _add_to_inbox(principal, session, Inbox.Kind.MESSAGE, message)
    notify_worker(session.pk)
    return session


def run_skill(
    principal: Principal, skill: Skill, agent: Agent, arguments: Mapping[str, str]
) -> Session:
    """Start a session of an agent with a rendered skill as its first message.

    Raises `InvalidInput` for an argument, `Forbidden`, and what `start_session` raises.
    """
    require_run_permission(principal, agent)
    if not skill.assignments.filter(agent=agent).exists():
        raise Forbidden(
            format_message(
                "The skill `{skill}` isn't attached to the agent `{agent_slug}`.",
                agent_slug=agent.slug,
                skill=skill.name,
            ),
            code="skill_not_attached",
            rule="skill:given",
            remedy="Attach the skill first, or choose an agent that has it.",
        )
    if not skill.enabled:
        raise Conflict(
            format_message("The skill `{skill}` is disabled.", skill=skill.name),
            code="skill_disabled",
            remedy="An operator or owner can enable it.",
        )
    return start_session(principal, agent, render_skill(build_template(skill), arguments))


def send_message(
    principal: Principal,
    session: Session,
    text: str,
    attachments: Sequence[Attachment] = (),
    output_schema: OutputSchema | None = None,
) -> None:
    """Send a message to a session; a finished one is queued again.

    `output_schema` is used instead of the agent's for this message.
    """
    _require_startable(principal, session.agent, session.model_endpoint)
    _check_accepts_messages(session)
    endpoint = session.model_endpoint or session.agent.model_endpoint
    message = _build_message(session.organization_id, endpoint, text, attachments, output_schema)
    _label_message(principal, session)
    with transaction.atomic():
        # Lock the session's row first, as a runner does that ends the run: the second of the two
        # sees what the first did, so no message stays unread.
        Session.objects.filter(pk=session.pk).update(updated_at=timezone.now())
        _add_to_inbox(principal, session, Inbox.Kind.MESSAGE, message)
        _enqueue_session(session)
    notify_worker(session.pk)


def resend_message(
    principal: Principal,
    session: Session,
    seq: int | None = None,
    text: str | None = None,
    attachments: Sequence[Attachment] = (),
) -> None:
    """Resend a message in place of an earlier one, which is superseded with all later steps.

    `seq` is the earlier message (default: the last one), `text` the new text (default: unchanged).
    Its attachments and output schema are kept. Raises `NotFound` (no such message), `Conflict`
    (code `session_busy`), and what `send_message` raises.
    """
    _require_startable(principal, session.agent, session.model_endpoint)
    _check_accepts_messages(session)
    replaced_step = _get_message_step(session, seq)
    new_text = replaced_step.payload["text"] if text is None else text
    endpoint = session.model_endpoint or session.agent.model_endpoint
    message = _build_message(session.organization_id, endpoint, new_text, attachments)
    for name in ("images", "files"):
        if attachment_list := [*replaced_step.payload.get(name, ()), *message.get(name, ())]:
            message[name] = attachment_list
    if schema := replaced_step.payload.get("output_schema"):
        message["output_schema"] = schema
    _label_message(principal, session)
    with transaction.atomic():
        if not _enqueue_session(session):
            raise Conflict(
                "The session is running.",
                code="session_busy",
                remedy="Cancel it first, or wait until it finishes.",
            )
        _add_to_inbox(
            principal, session, Inbox.Kind.MESSAGE, message | {"replaces": replaced_step.seq}
        )
    notify_worker(session.pk)


def _label_message(principal: Principal, session: Session) -> None:
    """Add the labels of a message's writer, and of the texts that the model reads before it."""
    label_session(principal, session)
    label_session_with_texts(principal.actor, session)


def _enqueue_session(session: Session) -> bool:
    """Queue a finished session again; False if it isn't finished."""
    finished_statuses = (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)
    return bool(
        Session.objects.filter(pk=session.pk, status__in=finished_statuses).update(
            status=Session.Status.QUEUED,
            error_code="",
            error_detail="",
            finished_at=None,
            updated_at=timezone.now(),
        )
    )


def _get_message_step(session: Session, seq: int | None) -> Step:
    """Return a message of the current conversation, by default the last; raises `NotFound`."""
    steps = list_current_steps(list(session.steps.order_by("seq")))
    messages = [step for step in steps if step.kind == Step.Kind.MESSAGE]
    matching_steps = [step for step in messages if seq in (None, step.seq)]
    if not matching_steps:
        raise NotFound(
            format_message("The message {seq} doesn't exist in this session.", seq=seq)
            if seq is not None
            else "This session has no messages.",
            field="seq",
            remedy="Use the `seq` of a message that wasn't replaced.",
        )
    return matching_steps[-1]


def _build_message(
    organization_id: UUID,
    endpoint: ModelEndpoint | None,
    text: str,
    attachments: Sequence[Attachment],
    output_schema: OutputSchema | None = None,
) -> dict[str, Any]:
    """Return the inbox payload of a message, and store its files; raises `InvalidInput`."""
    check_message(text)
    message: dict[str, Any] = {"text": mask_organization_secrets(text, organization_id)}
    if output_schema:
        mask = partial(mask_organization_secrets, organization_id=organization_id)
        message["output_schema"] = map_texts(check_output_schema(output_schema), mask)
    pdf_input = endpoint is not None and endpoint.pdf_input
    return message | store_attachments(organization_id, attachments, pdf_input=pdf_input)


def cancel_session(principal: Principal, session: Session) -> bool:
    """Request a session's cancellation; return False if it is already finished."""
    require_run_permission(principal, session.agent)
    return request_cancel(principal, session)


def request_cancel(principal: Principal, session: Session, reason: str = "") -> bool:
    """Request a session's cancellation without a permission check; `why` is shown to people."""
    now = timezone.now()
    with record_changes_at_end():
        this_session = Session.objects.filter(pk=session.pk)
        # A session that was never claimed has no steps to close, so it is canceled here.
        unclaimed_session = this_session.filter(status=Session.Status.QUEUED, fence=0)
        changes = {"status": Session.Status.CANCELLED, "error_detail": reason}
        if unclaimed_session.update(**changes, finished_at=now, updated_at=now):
            Inbox.objects.filter(session=session, processed_at=None).update(processed_at=now)
            notify_watchers(session.pk)
            return True
        this_session.filter(status=Session.Status.WAITING).update(
            status=Session.Status.QUEUED, updated_at=now
        )
        if not this_session.unfinished().exists():
            return False
        _add_to_inbox(principal, session, Inbox.Kind.CANCEL, {"why": reason} if reason else {})
        cancellation = Cancellation(principal.actor, reason or SESSION_CANCELED)
        withdraw_approvals(session.pk, cancellation=cancellation)
        withdraw_requests(session.pk)
        notify_worker(session.pk)
        notify_runners_of_cancel()
        return True


def cancel_sessions(principal: Principal, sessions: QuerySet[Session], reason: str) -> int:
    """Request the cancellation of the unfinished sessions; return how many."""
    finished_statuses = (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)
    open_sessions = sessions.filter(~Q(status__in=finished_statuses)).order_by("pk")
    return sum(request_cancel(principal, session, reason) for session in open_sessions.iterator())


def can_run_agent(principal: Principal, agent: Agent) -> bool:
    """Tell whether the principal may run this agent; members need it assigned to them."""
    if agent.organization_id != principal.organization_id:
        return False
    if not principal.may(Action.RUN_AGENTS):
        return False
    if can_see_all_agents(principal):
        return True
    return Agent.objects.visible_to(principal).filter(pk=agent.pk).exists()


def require_run_permission(principal: Principal, agent: Agent) -> None:
    """Raise `NotFound` or `Forbidden` unless the principal may run this agent."""
    if agent.organization_id != principal.organization_id:
        raise NotFound(
            format_message("The agent {name!r} doesn't exist.", name=str(agent.pk)),
            field="agent",
        )
    if not can_run_agent(principal, agent):
        raise Forbidden(
            format_message(
                "You don't have permission to run the agent `{agent_slug}`.", agent_slug=agent.slug
            ),
            rule="role:run_agents",
            remedy="An operator or owner can give you access.",
        )


def _check_accepts_messages(session: Session) -> None:
    """Raise `Conflict` for a quarantined session, and a workflow's: they take no messages."""
    require_not_quarantined(session)
    if WorkflowRun.objects.filter(session=session).exists():
        raise Conflict(
            "This session runs a workflow.",
            code="workflow_run",
            remedy="Start another run, or a session with the agent.",
        )


def _require_startable(
    principal: Principal, agent: Agent, model_endpoint: ModelEndpoint | None
) -> None:
    require_run_permission(principal, agent)
    require_enabled(agent)
    if model_endpoint is not None:
        require_selectable(principal, agent, model_endpoint)


def check_message(text: str) -> None:
    """Raise `InvalidInput` for a message that is empty or too long."""
    if not text.strip():
        raise InvalidInput(
            "The message is empty.", field="message", remedy="Enter a message for the agent."
        )
    if len(text) > MAX_MESSAGE_LENGTH:
        raise InvalidInput(
            format_message("The message has {count} characters.", count=len(text)),
            field="message",
            remedy=format_message("Use at most {limit} characters.", limit=MAX_MESSAGE_LENGTH),
        )


def _check_working_directory(principal: Principal, path: str) -> str:
    """Return the absolute path of the folder; only a platform administrator may attach one."""
    if not path:
        return ""
    require_platform_admin(
        principal,
        format_message("Only a platform administrator can attach a folder of this host."),
        format_message("Omit `working_dir`."),
    )
    try:
        return clean_attached_folder(path)
    except InvalidInput as problem:
        problem.field = "working_dir"
        raise


def _add_to_inbox(
    principal: Principal, session: Session, kind: str, payload: dict[str, Any]
) -> None:
    Inbox.objects.create(
        session=session,
        kind=kind,
        payload=payload,
        actor_kind=principal.kind,
        actor_id=principal.id,
        actor=principal.label,
    )


def requeue_answered_sessions() -> list[UUID]:
    """Queue suspended sessions that no longer wait for anything; return their ids."""
    waiting_sessions = Session.objects.filter(status=Session.Status.WAITING).exclude(
        pk__in=Approval.objects.filter(
            state=Approval.State.WAITING, session_id__isnull=False
        ).values("session_id")
    )
    waiting_sessions = waiting_sessions.exclude(children__status__in=_OPEN_STATUSES)
    # A task whose next poll is due no longer keeps its session waiting.
    still_waiting = pending_calls.filter_waiting_sessions(waiting_sessions).values("pk")
    waiting_sessions = waiting_sessions.exclude(pk__in=still_waiting)
    session_ids = list(waiting_sessions.values_list("pk", flat=True)[:500])
    now = timezone.now()
    waiting_sessions.filter(pk__in=session_ids).update(status=Session.Status.QUEUED, updated_at=now)
    return session_ids


def build_principal(session: Session) -> Principal:
    """Return the principal a session acts as: a member with the rate of the session's token."""
    return Principal(
        kind="session",
        id=str(session.pk),
        label=session.started_by,
        organization_id=session.organization_id,
        role=Role.MEMBER,
        agent_ids=frozenset({session.agent_id}),
        token_id=session.token_id,
        calls_per_minute=session.token_calls_per_minute,
    )


def load_token_rate(session: Session) -> int | None:
    """Return the current rate limit of the token that started a session; None for the default.

    A token of an external issuer has no row; its rate is that of the session's start.
    """
    if session.token_id is None:
        return None
    rates = Token.objects.filter(pk=session.token_id).values_list("calls_per_minute", flat=True)
    return next(iter(rates), session.token_calls_per_minute)


def list_selectable_endpoints(principal: Principal, agent: Agent) -> list[ModelEndpoint]:
    """Return the endpoints that the principal may choose for a session of the agent."""
    endpoints = ModelEndpoint.objects.for_organization(agent.organization_id)
    return [endpoint for endpoint in endpoints if _is_selectable(principal, agent, endpoint)]


def find_selectable_endpoint(principal: Principal, agent: Agent, name: str) -> ModelEndpoint | None:
    """Return an endpoint by ID or slug; None for an empty name.

    Raises `NotFound`, and what `require_selectable` raises.
    """
    if not name:
        return None
    try:
        endpoint: ModelEndpoint = ModelEndpoint.objects.get_or_404(
            agent.organization_id, **build_agent_lookup(name)
        )
    except NotFound as problem:
        problem.field = "model_endpoint"
        raise
    require_selectable(principal, agent, endpoint)
    return endpoint


def require_selectable(principal: Principal, agent: Agent, endpoint: ModelEndpoint) -> None:
    """Raise `Forbidden` unless the principal may choose the endpoint for a session of the agent."""
    if _is_selectable(principal, agent, endpoint):
        return
    selectable_endpoints = list_selectable_endpoints(principal, agent)[:MAX_NAMED_ENDPOINTS]
    raise Forbidden(
        format_message(
            "You don't have permission to choose the model endpoint `{slug}`.", slug=endpoint.slug
        ),
        code="model_not_selectable",
        rule="model_endpoint:selectable",
        field="model_endpoint",
        remedy=format_message(
            "Choose one of: {slugs}. An operator or owner can make others selectable.",
            slugs=", ".join(selectable.slug for selectable in selectable_endpoints),
        ),
    )


def _is_selectable(principal: Principal, agent: Agent, endpoint: ModelEndpoint) -> bool:
    if endpoint.organization_id != agent.organization_id:
        return False
    is_own = endpoint.pk == agent.model_endpoint_id
    return is_own or endpoint.selectable or principal.may(Action.MANAGE_AGENTS)
