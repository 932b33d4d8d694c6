"""Export the configuration without secrets."""

from collections.abc import Iterable
from typing import Any

import yaml

from agents.assignments import list_agent_slugs, list_callable_agents
from agents.budgets.services import BudgetLine, list_budgets
from agents.budgets.services import Owner as BudgetOwner
from agents.config_file.field_readers import export_spec
from agents.config_file.read_config import (
    ACCESS_FIELDS,
    AGENT_LIMITS,
    VERSION,
    export_builtin_tools,
)
from agents.model_endpoints.services import ModelEndpointSpec, build_fallback_chain
from agents.models import Agent, ModelEndpoint, Skill, Trigger, Workflow
from agents.models.skills import SKILL_TEXTS
from agents.policies.services import Owner, PolicySpec, load_policy_spec
from agents.policies.shadow_mode import find_draft
from agents.workflows.triggers import TRIGGER_FIELDS
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.text.yaml_reader import can_omit_quotes
from mcp_servers.import_export.export_servers import (
    SecretPlaceholders,
    build_client_file,
    export_server,
)
from mcp_servers.models import Server


def export_client_file(principal: Principal, agent: Agent | None = None) -> dict[str, Any]:
    """Return the pool, or one agent's part of it, in the format of MCP clients."""
    principal.require(Action.MANAGE_SERVERS)
    return build_client_file(_list_servers(principal, agent))


def export_config(principal: Principal, agent: Agent | None = None) -> dict[str, Any]:
    """Return everything that `apply` can create, or one agent with what it needs.

    Leaves out servers that are private to an agent. Secrets are written as `${NAME}`.
    """
    principal.require(Action.MANAGE_SERVERS)
    names = SecretPlaceholders()
    agents = Agent.objects.for_organization(principal.organization_id)
    endpoints = ModelEndpoint.objects.for_organization(principal.organization_id)
    endpoints = endpoints.select_related("fallback")
    if agent is not None:
        agents = agents.filter(pk=agent.pk)
        endpoints = endpoints.filter(
            pk__in=[endpoint.pk for endpoint in build_fallback_chain(agent.model_endpoint)]
        )
    document = {
        "bonobot": VERSION,
        "model_endpoints": {row.slug: _export_model_endpoint(row, names) for row in endpoints},
        "servers": {
            row.name: _export_server(row, names) for row in _list_servers(principal, agent)
        },
        "agents": {row.slug: _export_agent(row) for row in agents.select_related("model_endpoint")},
    }
    skills = Skill.objects.for_organization(principal.organization_id)
    if agent is None and (exported := _export_skills(skills)):
        document["skills"] = exported
    workflows = Workflow.objects.for_organization(principal.organization_id)
    if agent is None and (exported := _export_workflows(workflows)):
        document["workflows"] = exported
    organization = Organization.objects.get(pk=principal.organization_id)
    if agent is not None:
        return document
    if load_policy_spec(organization) != PolicySpec("all"):
        document["policy"] = _export_policy(organization)
    document |= _export_draft(organization)
    if budgets := _export_budgets(organization):
        document["budgets"] = budgets
    return document


def to_yaml(document: dict[str, Any]) -> str:
    """Return a document as YAML that reads back unchanged."""
    text: str = yaml.dump(
        document, Dumper=_ConfigDumper, sort_keys=False, allow_unicode=True, width=100, indent=2
    )
    return text


def _list_servers(principal: Principal, agent: Agent | None) -> Iterable[Server]:
    pool = Server.objects.for_organization(principal.organization_id).in_organization_pool()
    if agent is not None:
        pool = pool.filter(pk__in=agent.agent_servers.values("server_id"))
    return pool.prefetch_related("secrets")


def _export_server(row: Server, names: SecretPlaceholders) -> dict[str, Any]:
    exported = export_server(row, names)
    budgets = _export_budgets(row)
    return exported | ({"budgets": budgets} if budgets else {})


def _export_budgets(owner: BudgetOwner) -> list[dict[str, Any]]:
    return [export_spec(BudgetLine, budget) for budget in list_budgets(owner)]


def _export_draft(owner: Owner) -> dict[str, Any]:
    """Return the policy draft in shadow mode, if there is one."""
    draft = find_draft(owner)
    if draft is None:
        return {}
    return {"policy_draft": {name: value for name, value in draft.spec.as_dict().items() if value}}


def _export_model_endpoint(row: ModelEndpoint, names: SecretPlaceholders) -> dict[str, Any]:
    exported: dict[str, Any] = {"name": row.name, "kind": row.kind}
    exported["timeout_s"] = row.timeout_s
    if row.api_key:
        exported["api_key"] = names.create_placeholder(row.slug, "api_key")
    exported |= export_spec(ModelEndpointSpec, row, without=(*exported, "api_key", "fallback_on"))
    if row.fallback:
        exported |= {"fallback": row.fallback.slug, "fallback_on": row.fallback_on}
    return exported


def _export_agent(row: Agent) -> dict[str, Any]:
    agent_servers = row.agent_servers.select_related("server")
    return {
        "name": row.name,
        "description": row.description,
        "instructions": row.instructions,
        "model": row.model_endpoint.slug,
        "enabled": row.enabled,
        "tools_in_prompt": row.tools_in_prompt,
        **(
            {"callable_agents": callable_agents}
            if (callable_agents := list_callable_agents(row))
            else {}
        ),
        **{name: getattr(row, name) for name in AGENT_LIMITS},
        **({"output_schema": row.output_schema} if row.output_schema else {}),
        **export_builtin_tools(row),
        "policy": _export_policy(row),
        **_export_draft(row),
        "budgets": _export_budgets(row),
        "servers": {
            agent_server.server.name: _export_agent_server(agent_server)
            for agent_server in agent_servers
            if _is_in_pool(agent_server.server)
        },
    }


def _export_policy(owner: Owner) -> dict[str, Any]:
    return {name: value for name, value in load_policy_spec(owner).as_dict().items() if value}


def _is_in_pool(server: Server) -> bool:
    return not server.private_to_agent


def _export_agent_server(agent_server: Any) -> dict[str, Any]:
    lists = {name: getattr(agent_server, name) for name in ACCESS_FIELDS}
    return {
        "enabled": agent_server.enabled,
        **{name: value for name, value in lists.items() if value},
    }


class _ConfigDumper(yaml.SafeDumper):
    """Writes multi-line strings as blocks, and quotes strings that would be read as other types."""

    def ignore_aliases(self, data: Any) -> bool:
        """Disable aliases, which the reader doesn't support."""
        return True


def _serialize_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if can_omit_quotes(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_ConfigDumper.add_representer(str, _serialize_text)


def _export_workflows(rows: Iterable[Workflow]) -> dict[str, Any]:
    exported = {}
    for row in rows:
        settings: dict[str, Any] = {} if row.enabled else {"enabled": False}
        if agents := list_agent_slugs(row):
            settings["agents"] = agents
        if triggers := {trigger.name: _export_trigger(trigger) for trigger in row.triggers.all()}:
            settings["triggers"] = triggers
        exported[row.name] = {**row.definition, **settings}
    return exported


def _export_trigger(row: Trigger) -> dict[str, Any]:
    """Return a trigger without its secret and default values."""
    defaults = Trigger()
    exported: dict[str, Any] = {"kind": row.kind}
    for name in TRIGGER_FIELDS:
        if (value := getattr(row, name)) != getattr(defaults, name):
            exported[name] = value
    return exported


def _export_skills(rows: Iterable[Skill]) -> dict[str, Any]:
    return {row.name: _export_skill(row) for row in rows}


def _export_skill(row: Skill) -> dict[str, Any]:
    exported = {name: getattr(row, name) for name in SKILL_TEXTS if getattr(row, name)}
    if row.arguments:
        exported["arguments"] = [
            {name: value for name, value in argument.items() if value} for argument in row.arguments
        ]
    if not row.enabled:
        exported["enabled"] = False
    return exported | {"agents": list_agent_slugs(row)}
