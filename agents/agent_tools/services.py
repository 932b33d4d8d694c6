"""List the tools of an agent that have settings, and save the settings."""

from collections.abc import Mapping
from uuid import UUID

from django.db import transaction

from agents.agent_tools.settings import (
    MatrixChanges,
    Setting,
    ToolKey,
    apply_changes,
    list_changes,
)
from agents.calls.snapshots import CallSnapshot, SnapshotTool
from agents.models import Agent, ToolRule
from agents.policies.decisions import EffectivePolicy
from agents.policies.effective_policies import load_policy
from agents.policies.services import build_policy_spec, replace_policy
from agents.services import attach_server
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock_rows
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from mcp_servers.models import Server


def list_settable_tools(snapshot: CallSnapshot) -> list[SnapshotTool]:
    """Return the tools of an agent that still exist.

    Without those of disabled toolsets, whose settings would have no effect.
    """
    return [
        tool
        for tool in snapshot.tools.values()
        if tool.facts.state != "gone" and tool.facts.granted
    ]


def save_settings(
    principal: Principal,
    agent: Agent,
    tools: Mapping[ToolKey, Setting],
    defaults: Mapping[UUID, Setting],
) -> MatrixChanges:
    """Save the settings of tools and servers; return those that differ from the stored ones.

    Effective immediately. Tools and servers that aren't given keep their settings.
    """
    principal.require(Action.MANAGE_AGENTS)
    with transaction.atomic():
        lock_rows(Agent.objects.filter(pk=agent.pk))
        stored = load_policy("agent", agent.pk)
        changes = list_changes(stored, tools, defaults)
        if not changes:
            return changes
        saved = apply_changes(stored, changes)
        if saved.policy != stored.policy:
            _replace_agent_policy(principal, agent, saved.policy.mode, _build_rules(agent, saved))
        changed_scopes = {
            server_id: scope
            for server_id, scope in saved.scopes.items()
            if scope != stored.scopes[server_id]
        }
        for server in Server.objects.filter(pk__in=changed_scopes):
            scope = changed_scopes[server.pk]
            attach_server(
                principal,
                agent,
                server,
                enabled=scope.enabled,
                allowed_tools=scope.allowed,
                denied_tools=scope.denied,
            )
    return changes


def _build_rules(agent: Agent, saved: EffectivePolicy) -> list[ToolRule]:
    servers = Server.objects.in_bulk({rule.server_id for rule in saved.policy.rules} - {None})
    return [
        ToolRule(
            organization_id=agent.organization_id,
            effect=rule.effect,
            source=rule.source,
            server=servers[rule.server_id] if rule.server_id else None,
            pattern=rule.pattern,
            condition=rule.condition,
            condition_digest=compute_digest(to_canonical_json(rule.condition))
            if rule.condition
            else "",
        )
        for rule in saved.policy.rules
    ]


def _replace_agent_policy(
    principal: Principal, agent: Agent, mode: str, rules: list[ToolRule]
) -> None:
    with record_change(
        **describe_row("agent", agent),
        actor=principal.actor,
        action="tool_policy_updated",
        details=build_policy_spec(agent, mode, rules).as_dict(),
    ):
        replace_policy(agent, mode, rules)
