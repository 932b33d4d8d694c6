"""Create, answer and expire access requests, and set up what an approved one asks for.

What is there already isn't created or changed again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext as _t

from agents.agent_tools.services import list_settable_tools, save_settings
from agents.agent_tools.settings import (
    Setting,
    find_inherited_setting,
    get_tool_key,
    read_tool_setting,
)
from agents.calls.snapshots import SnapshotTool, get_snapshot_cache
from agents.flow_labels.text_labels import label_text
from agents.models import AccessRequest, Agent, ToolName
from agents.models.access_requests import (
    MAX_REASON_LENGTH,
    MAX_TARGET_LENGTH,
    AccessRequestQuerySet,
)
from agents.models.page_urls import build_page_path, build_page_url
from agents.policies.decisions import EffectivePolicy
from agents.services import (
    AgentSpec,
    attach_server,
    create_agent,
    set_agent_members,
    set_attachment_enabled,
)
from agents.wakeups import wake_pages
from bonobot.accounts.account_emails import EmailContent, queue_email
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action, Role
from bonobot.core.db.transactions import lock_row, lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, InvalidInput, NotFound
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json
from bonobot.core.text.untrusted_text import make_storable, make_visible
from bonobot.ledger.audit.admin_changes import record_change
from bonobot.ledger.types import Actor
from bonobot.notifications.notify import NotificationSubject, notify
from mcp_servers.models import Preset, Server
from mcp_servers.presets.catalog import fill_preset
from mcp_servers.presets.enabled_presets import check_enabled
from mcp_servers.presets.services import build_server_spec
from mcp_servers.services import create_server

MAX_NAMES_SHOWN = 5
MAX_SUGGESTED_NAMES = 500
RECENTLY_ANSWERED = timedelta(days=7)
# Answering requires one of these. A person who can approve calls but not manage agents, a reviewer,
# approves with the permissions of an operator, limited to what was requested.
ANSWER_PERMISSIONS = (Action.MANAGE_AGENTS, Action.APPROVE_CALLS)
REQUEST_ANSWERED = "access_request_answered"
SYSTEM = Actor(kind="system", id="access_requests", label="access requests")
Answer = Literal["approve", "deny"]
ANSWERS: tuple[Answer, ...] = ("approve", "deny")


@dataclass(frozen=True, kw_only=True)
class AccessRequestSpec:
    """What is requested and why; servers and tools are requested for an agent."""

    kind: str
    target: str
    reason: str
    agent: Agent | None = None


def create_access_request(principal: Principal, spec: AccessRequestSpec) -> AccessRequest:
    """Create a pending request and notify the people who can answer it.

    Raises `InvalidInput`, and `Conflict` (`already_requested`, `too_many_access_requests`).
    """
    principal.require(Action.RUN_AGENTS)
    target, reason = make_storable(spec.target.strip()), make_storable(spec.reason.strip())
    agent = None if spec.kind == AccessRequest.Kind.AGENT else spec.agent
    _check_spec(spec.kind, target, reason, agent)
    if agent is None:
        _check_needs_access(principal, target)
    access_request = AccessRequest(
        organization_id=principal.organization_id,
        kind=spec.kind,
        target=target,
        target_key=_build_target_key(spec.kind, target, agent),
        agent=agent,
        reason=reason,
        requested_by_kind=principal.kind,
        requested_by_id=principal.id,
        requested_by=principal.label[:255],
        expires_at=timezone.now() + timedelta(days=settings.BONOBOT_ACCESS_REQUEST_DAYS),
    )
    with record_change(
        **_build_audit_fields(access_request, principal.actor, "access_requested"),
        details={"reason": reason},
    ):
        _save_once(principal, access_request)
        label_text(principal, access_request)
        _notify_approvers(access_request)
        wake_pages(access_request.organization_id)
    return access_request


def answer_access_request(
    principal: Principal, access_request: AccessRequest, answer: str, message: str = ""
) -> AccessRequest:
    """Approve a request and set up what it asks for, or deny it; the requester gets `message`.

    If that can't be set up, the request stays pending and the problem is raised. Also raises
    `Forbidden`, `InvalidInput`, and `Conflict` (`already_answered`, `access_request_expired`).
    """
    _require_answer_permission(principal, access_request, answer)
    message = make_storable(message.strip())
    _check_length("message", message, MAX_REASON_LENGTH)
    if answer == "deny" and not message:
        raise InvalidInput(
            "A denial needs a reason.",
            field="message",
            remedy="Tell the requester why, or what to request instead.",
        )
    is_approved = answer == "approve"
    details = {"message": message, "requested_by": access_request.requested_by}
    with record_change(
        **_build_audit_fields(
            access_request,
            principal.actor,
            "access_request_approved" if is_approved else "access_request_denied",
        ),
        details=details,
    ):
        state = AccessRequest.State.APPROVED if is_approved else AccessRequest.State.DENIED
        _save_answer(principal, access_request, state, message)
        label_text(principal, access_request, is_changed=False)
        if is_approved:
            provisioner = _build_provisioner(principal, access_request)
            details["provisioned"] = provision_access(provisioner, access_request)
        _queue_answer_email(access_request)
        wake_pages(access_request.organization_id)
    return AccessRequest.objects.select_related("agent").get(pk=access_request.pk)


def cancel_access_request(principal: Principal, access_request: AccessRequest) -> AccessRequest:
    """Cancel one's own pending request; raises `Forbidden` and as `answer_access_request`."""
    if not is_requester(principal, access_request):
        raise Forbidden(
            "Only the requester can cancel an access request.",
            rule="requester",
            remedy="Deny the request instead.",
        )
    with record_change(
        **_build_audit_fields(access_request, principal.actor, "access_request_canceled")
    ):
        _save_answer(principal, access_request, AccessRequest.State.WITHDRAWN)
        wake_pages(access_request.organization_id)
    return AccessRequest.objects.select_related("agent").get(pk=access_request.pk)


def expire_overdue() -> int:
    """Expire overdue requests; return how many."""
    overdue = list(AccessRequest.objects.overdue()[:500])
    for access_request in overdue:
        with record_change(**_build_audit_fields(access_request, SYSTEM, "access_request_expired")):
            AccessRequest.objects.expire_pending(access_request.pk, updated_at=timezone.now())
            wake_pages(access_request.organization_id)
    return len(overdue)


def list_recent_requests(principal: Principal) -> AccessRequestQuerySet:
    """Return one's own requests that are pending or were answered in the last week."""
    own_requests = AccessRequest.objects.visible_to(principal).filter(
        requested_by_kind=principal.kind, requested_by_id=principal.id
    )
    is_recent = Q(answered_at__gte=timezone.now() - RECENTLY_ANSWERED)
    rows: AccessRequestQuerySet = own_requests.filter(
        is_recent | Q(pk__in=own_requests.pending().values("pk"))
    )
    return rows.order_by(F("answered_at").desc(nulls_first=True), "-created_at")


def provision_access(principal: Principal, access_request: AccessRequest) -> str:
    """Attach the server, allow the tool, or give the requester the agent; return its name.

    Raises what the same change by hand raises, `NotFound` (`unknown_target`), and
    `Conflict` (`ambiguous_target`, `tool_is_off`).
    """
    if access_request.kind == AccessRequest.Kind.AGENT or access_request.agent is None:
        return _provision_agent(principal, access_request)
    if access_request.kind == AccessRequest.Kind.SERVER:
        return _provision_server(principal, access_request.agent, access_request)
    return _provision_tool(principal, access_request.agent, access_request)


def check_target(principal: Principal, access_request: AccessRequest) -> None:
    """Raise the problem with which `provision_access` would fail because of what is requested."""
    if access_request.kind == AccessRequest.Kind.SERVER:
        if find_server(access_request) is None:
            preset = _get_preset(access_request)
            check_enabled(_build_provisioner(principal, access_request), preset)
            fill_preset(preset, {})
    elif access_request.kind == AccessRequest.Kind.TOOL and access_request.agent:
        _resolve_tool(access_request.agent, access_request)


def build_answer_email(user: User, access_request: str) -> EmailContent | None:
    """Build the email about the answer; None if the request or the account is gone."""
    row = AccessRequest.objects.filter(pk=access_request, answered_at__isnull=False).first()
    if row is None or not user.is_active:
        return None
    values = {
        "target": make_visible(row.target, 120),
        "who": make_visible(row.answered_by, 120),
    }
    subject = (
        _t("Your request for %(target)s was approved")
        if row.state == AccessRequest.State.APPROVED
        else _t("Your request for %(target)s was denied")
    )
    paragraphs = [_t("Answered by %(who)s.") % values]
    if row.message:
        paragraphs.append(make_visible(row.message, 2_000))
    paragraphs.append(build_page_url(row))
    return EmailContent(subject % values, paragraphs)


def can_answer_access_requests(principal: Principal) -> bool:
    """Return whether the principal may answer access requests of others."""
    return any(map(principal.may, ANSWER_PERMISSIONS))


def is_requester(principal: Principal, access_request: AccessRequest) -> bool:
    """Return whether the principal made the request."""
    return (principal.kind, principal.id) == (
        access_request.requested_by_kind,
        access_request.requested_by_id,
    )


def list_known_names(principal: Principal) -> dict[str, list[str]]:
    """Return names to request that a person may know, by kind, sorted (two queries).

    They are presets of the catalog and the tools of the person's agents. Names of other agents and
    of the organization's servers and presets are known only to those who can see them.
    """
    presets = Preset.objects.from_platform().enabled_for(principal.organization_id)
    tools = ToolName.objects.filter(agent__in=Agent.objects.visible_to(principal))
    names = {
        AccessRequest.Kind.SERVER: set(presets.values_list("name", flat=True)),
        AccessRequest.Kind.TOOL: set(tools.values_list("own_name", flat=True)),
    }
    return {
        str(kind): sorted(kind_names, key=str.lower)[:MAX_SUGGESTED_NAMES]
        for kind, kind_names in names.items()
    }


def find_server(access_request: AccessRequest) -> Server | None:
    """Return the server of the organization that a request names, by slug or name."""
    pool = Server.objects.for_organization(access_request.organization_id).in_organization_pool()
    server: Server | None = _find_by_name(access_request, pool)
    return server


def find_preset(access_request: AccessRequest) -> Preset | None:
    """Return the preset that a request names, by slug or name."""
    organization_id, target = access_request.organization_id, access_request.target
    by_slug: Preset | None = Preset.objects.find_by_slug(organization_id, target.lower())
    available = Preset.objects.available_to(organization_id)
    return by_slug or _find_by_name(access_request, available)


def find_agent(access_request: AccessRequest) -> Agent | None:
    """Return the agent that a request names, by slug or name."""
    agents = Agent.objects.for_organization(access_request.organization_id)
    agent: Agent | None = _find_by_name(access_request, agents)
    return agent


def find_tool(access_request: AccessRequest, agent: Agent) -> SnapshotTool | None:
    """Return the agent's tool that a request names; a server's own name if only one has it."""
    target = access_request.target
    tools = list_settable_tools(get_snapshot_cache().load_current("agent", agent.pk))
    by_name = [tool for tool in tools if tool.name == target]
    matches = by_name or [tool for tool in tools if tool.facts.own_name == target]
    return _get_only_match(access_request, [(tool.name, tool) for tool in matches])


def _check_spec(kind: str, target: str, reason: str, agent: Agent | None) -> None:
    if kind not in AccessRequest.Kind.values:
        raise InvalidInput(
            format_message("{kind!r} can't be requested.", kind=kind),
            field="kind",
            remedy=format_message(
                "Use one of: {values}.", values=", ".join(AccessRequest.Kind.values)
            ),
        )
    _check_length("target", target, MAX_TARGET_LENGTH)
    _check_length("reason", reason, MAX_REASON_LENGTH)
    for field, text in (("target", target), ("reason", reason)):
        if not text:
            raise InvalidInput("This field is required.", field=field)
    if agent is None and kind != AccessRequest.Kind.AGENT:
        raise InvalidInput(
            "Servers and tools are requested for an agent.",
            field="agent",
            remedy="Choose the agent that needs it.",
        )


def _check_needs_access(principal: Principal, name: str) -> None:
    """Raise `InvalidInput` if the person can already use an agent with this name."""
    is_named = Q(slug=name.lower()) | Q(name__iexact=name)
    if agent := Agent.objects.visible_to(principal).filter(is_named).first():
        raise InvalidInput(
            format_message("You can already use the agent {agent!r}.", agent=agent.name),
            field="target",
            remedy="Open it in the list of agents, or enter the name of another one.",
        )


def _check_length(field: str, text: str, maximum: int) -> None:
    if len(text) > maximum:
        raise InvalidInput(
            format_message("The text has {count} characters.", count=len(text)),
            field=field,
            remedy=format_message("Use at most {limit} characters.", limit=maximum),
        )


def _build_target_key(kind: str, target: str, agent: Agent | None) -> str:
    parts = [kind, str(agent.pk) if agent else "", target.casefold()]
    return compute_digest(to_canonical_json(parts))


def _save_once(principal: Principal, access_request: AccessRequest) -> None:
    """Insert a request within the limit; raises `Conflict` if the same one is pending."""
    lock_row(Organization(pk=principal.organization_id))
    own_requests = AccessRequest.objects.for_organization(principal.organization_id).filter(
        requested_by_kind=principal.kind, requested_by_id=principal.id
    )
    # Overdue ones that haven't been expired yet are replaced.
    own_requests.overdue().update(state=AccessRequest.State.EXPIRED)
    if own_requests.pending().count() >= settings.BONOBOT_PENDING_ACCESS_REQUESTS:
        raise Conflict(
            format_message(
                "You have {count} pending access requests.",
                count=settings.BONOBOT_PENDING_ACCESS_REQUESTS,
            ),
            code="too_many_access_requests",
            remedy="Wait until some of them are answered.",
        )
    try:
        with transaction.atomic():
            access_request.save(force_insert=True)
    except IntegrityError:
        raise Conflict(
            format_message(
                "You already requested {target!r}. The request is pending.",
                target=access_request.target,
            ),
            code="already_requested",
            field="target",
            remedy="Wait for the answer.",
        ) from None


def _require_answer_permission(
    principal: Principal, access_request: AccessRequest, answer: str
) -> None:
    if answer not in ANSWERS:
        raise InvalidInput(
            format_message("{value!r} isn't a valid answer.", value=answer),
            field="answer",
            remedy=format_message("Use one of: {values}.", values=", ".join(ANSWERS)),
        )
    if principal.may(Action.MANAGE_AGENTS):
        return
    principal.require(Action.APPROVE_CALLS)
    if answer == "approve" and is_requester(principal, access_request):
        raise Forbidden(
            "You made this access request, so someone else has to approve it.",
            rule="requester",
        )


def _build_provisioner(principal: Principal, access_request: AccessRequest) -> Principal:
    """Return who sets up a request: the approver, with an operator's permissions if needed.

    Its audit entries have the approver's ID and both names.
    """
    if principal.may(Action.MANAGE_AGENTS):
        return principal
    label = f"{principal.label[:120]} for {access_request.requested_by[:120]}"
    return replace(principal, label=label, role=Role.OPERATOR, scopes=None, platform_admin=False)


def _save_answer(
    principal: Principal, access_request: AccessRequest, state: str, message: str = ""
) -> None:
    now = timezone.now()
    answer = {"answered_at": now, "answered_by": principal.label[:255], "message": message}
    if AccessRequest.objects.answer_pending(access_request.pk, state, now, **answer):
        return
    access_request.refresh_from_db()
    if access_request.state in (AccessRequest.State.WAITING, AccessRequest.State.EXPIRED):
        raise Conflict("This access request has expired.", code="access_request_expired")
    raise Conflict(
        format_message(
            "This access request was already answered: {state} by {answered_by}.",
            state=access_request.state,
            answered_by=access_request.answered_by,
        ),
        code="already_answered",
    )


def _build_audit_fields(access_request: AccessRequest, actor: Actor, action: str) -> dict[str, Any]:
    return {
        "organization_id": access_request.organization_id,
        "actor": actor,
        "action": action,
        "resource_type": "access_request",
        "resource_id": str(access_request.pk),
        "resource_name": f"{access_request.kind}: {access_request.target}",
        "governed": False,
    }


def _notify_approvers(access_request: AccessRequest) -> None:
    values: Mapping[str, str] = {
        "who": access_request.requested_by,
        "target": access_request.target,
        "agent": access_request.agent.name if access_request.agent else "",
    }
    if access_request.kind == AccessRequest.Kind.SERVER:
        text = format_message("{who} requests the server {target} for the agent {agent}.", **values)
    elif access_request.kind == AccessRequest.Kind.TOOL:
        text = format_message("{who} requests the tool {target} for the agent {agent}.", **values)
    else:
        text = format_message("{who} requests the agent {target}.", **values)
    notify(
        access_request.organization_id,
        "access_requested",
        NotificationSubject(
            "access_request",
            str(access_request.pk),
            access_request.target,
            build_page_path(access_request),
        ),
        text,
        topic=f"access_request:{access_request.pk}",
    )


def _queue_answer_email(access_request: AccessRequest) -> None:
    if access_request.requested_by_kind == "user":
        for user in User.objects.filter(pk=access_request.requested_by_id):
            queue_email(user, REQUEST_ANSWERED, access_request=str(access_request.pk))


def _find_by_name(access_request: AccessRequest, rows: Any) -> Any:
    """Return the row with this slug, else the only one with this name; None if there is none.

    Raises `Conflict` if several have the name: the approver must know which one is meant.
    """
    target = access_request.target
    matches = list(rows.filter(slug=target.lower())[:1])
    matches = matches or list(rows.filter(name__iexact=target).order_by("slug"))
    return _get_only_match(access_request, [(row.slug, row) for row in matches])


def _get_only_match(access_request: AccessRequest, matches: Sequence[tuple[str, Any]]) -> Any:
    if len(matches) > 1:
        names = ", ".join(name for name, _match in matches[:MAX_NAMES_SHOWN])
        raise Conflict(
            format_message("Several are named {target!r}.", target=access_request.target),
            code="ambiguous_target",
            remedy=format_message(
                "Deny the request, and tell the requester to use one of: {names}.", names=names
            ),
        )
    return matches[0][1] if matches else None


def _provision_server(principal: Principal, agent: Agent, access_request: AccessRequest) -> str:
    server = find_server(access_request)
    if server is None:
        preset = _get_preset(access_request)
        server = create_server(principal, build_server_spec(principal, preset, {}), preset=preset)
    attached_server = agent.agent_servers.filter(server=server).first()
    if attached_server is None:
        attach_server(principal, agent, server)
    elif not attached_server.enabled:
        set_attachment_enabled(principal, agent, server, enabled=True)
    return server.name


def _get_preset(access_request: AccessRequest) -> Preset:
    preset = find_preset(access_request)
    if preset is None:
        raise _build_unknown_error(
            access_request, "Add the server or a preset with this name, then approve."
        )
    return preset


def _provision_tool(principal: Principal, agent: Agent, access_request: AccessRequest) -> str:
    """Allow a tool unless its setting is ask or allow already."""
    tool, own_setting, stored = _resolve_tool(agent, access_request)
    key = get_tool_key(tool.facts)
    setting = own_setting or find_inherited_setting(key, stored.policy)
    if setting not in (Setting.ASK, Setting.ALLOW):
        save_settings(principal, agent, {key: Setting.ALLOW}, {})
    return tool.name


def _resolve_tool(
    agent: Agent, access_request: AccessRequest
) -> tuple[SnapshotTool, Setting | None, EffectivePolicy]:
    """Return the tool that a request names, its own setting, and the agent's policy.

    An explicit *Off* stays: an approval is about the request, not about that decision.
    """
    tool = find_tool(access_request, agent)
    if tool is None:
        raise _build_unknown_error(
            access_request, "Attach the tool's server to the agent, then approve."
        )
    stored = get_snapshot_cache().load_current("agent", agent.pk).effective_policy
    own_setting = read_tool_setting(get_tool_key(tool.facts), stored)
    if own_setting is Setting.DENY:
        raise Conflict(
            format_message("{tool!r} is set to off for {agent}.", tool=tool.name, agent=agent.slug),
            code="tool_is_off",
            remedy="Set it to ask or allow on the agent's page, or deny the request.",
        )
    return tool, own_setting, stored


def _provision_agent(principal: Principal, access_request: AccessRequest) -> str:
    """Give a person the agent, which is created if there is none with this name."""
    agent = find_agent(access_request)
    if agent is None:
        agent = create_agent(principal, AgentSpec(name=access_request.target))
    lock_rows(Agent.objects.filter(pk=agent.pk))  # the members must not change in between
    members = set(agent.members.values_list("username", flat=True))
    if access_request.requested_by_kind == "user":
        requester = Membership.objects.filter(
            organization_id=access_request.organization_id,
            user=UUID(access_request.requested_by_id),
        ).values_list("user__username", flat=True)
        if not members.issuperset(requester):
            set_agent_members(principal, agent, members.union(requester))
    return agent.slug


def _build_unknown_error(access_request: AccessRequest, remedy: str) -> NotFound:
    return NotFound(
        format_message(
            "No {kind} is named {target!r}.",
            kind=access_request.kind,
            target=access_request.target,
        ),
        code="unknown_target",
        remedy=remedy,
    )
