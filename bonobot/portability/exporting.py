"""Write an organization's configuration as the file that `apply` reads, without any secret."""

from collections.abc import Iterable
from typing import Any

import yaml

from agents.budgets import WARN_AT, BudgetLine, budgets_of, line_of
from agents.budgets import Owner as BudgetOwner
from agents.callees import callees_of
from agents.drafts import draft_of
from agents.endpoint_rules import EndpointSpec, chain
from agents.models import Agent, ModelEndpoint, Skill, Workflow
from agents.tool_policies import Owner, PolicyText, policy_text
from bonobot.portability.documents import AGENT_LIMITS, SHARES, VERSION
from bonobot.portability.skills import exported
from bonobot.portability.workflows import exported as exported_workflows
from bonobot.portability.workspaces import workspace_of
from bonobot.tenancy.models import Organization
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.exporting import Names, as_client_file, described
from mcp_servers.models import Server
from mcp_servers.portability.yaml_reader import stays_text

ENDPOINT_MEMBERS = (
    *("base_url", "model", "allow_private", "timeout_s"),
    *("region", "access_key_id", "api_version", "thinking", "sees_images"),
)


def client_file(principal: Principal, agent: Agent | None = None) -> dict[str, Any]:
    """Return the pool, or what one agent has of it, in the words of MCP clients."""
    principal.require(Action.MANAGE_SERVERS)
    return as_client_file(_servers(principal, agent))


def configuration(principal: Principal, agent: Agent | None = None) -> dict[str, Any]:
    """Return everything that `apply` can make, or one agent with what it needs.

    Servers private to an agent are not in it. Secrets are `${NAME}`.
    """
    principal.require(Action.MANAGE_SERVERS)
    names = Names()
    agents = Agent.objects.for_organization(principal.organization_id)
    endpoints = ModelEndpoint.objects.for_organization(principal.organization_id)
    endpoints = endpoints.select_related("fallback")
    if agent is not None:
        agents = agents.filter(pk=agent.pk)
        endpoints = endpoints.filter(pk__in=[one.pk for one in chain(agent.model_endpoint)])
    found = {
        "bonobot": VERSION,
        "model_endpoints": {row.slug: _endpoint(row, names) for row in endpoints},
        "servers": {row.name: _server(row, names) for row in _servers(principal, agent)},
        "agents": {row.slug: _agent(row) for row in agents.select_related("model_endpoint")},
    }
    skills = Skill.objects.for_organization(principal.organization_id)
    if agent is None and (said := exported(skills)):
        found["skills"] = said
    workflows = Workflow.objects.for_organization(principal.organization_id)
    if agent is None and (said := exported_workflows(workflows)):
        found["workflows"] = said
    own = Organization.objects.get(pk=principal.organization_id)
    if agent is not None:
        return found
    if policy_text(own) != PolicyText("all"):
        found["policy"] = _policy(own)
    found |= _draft(own)
    if budgets := _budgets(own):
        found["budgets"] = budgets
    return found


def as_yaml(document: dict[str, Any]) -> str:
    """Return a document as YAML that is read back as it was."""
    text: str = yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100, indent=2
    )
    return text


def _servers(principal: Principal, agent: Agent | None) -> Iterable[Server]:
    pool = Server.objects.for_organization(principal.organization_id).pool()
    if agent is not None:
        pool = pool.filter(pk__in=agent.bindings.values("server_id"))
    return pool.prefetch_related("secrets")


def _server(row: Server, names: Names) -> dict[str, Any]:
    found = described(row, names)
    budgets = _budgets(row)
    return found | ({"budgets": budgets} if budgets else {})


def _budgets(owner: BudgetOwner) -> list[dict[str, Any]]:
    return [_budget(line_of(one)) for one in budgets_of(owner)]


def _draft(owner: Owner) -> dict[str, Any]:
    """Return what runs in the shadow of a policy, if something does."""
    draft = draft_of(owner)
    if draft is None:
        return {}
    return {"policy_draft": {name: said for name, said in draft.text.as_dict().items() if said}}


def _endpoint(row: ModelEndpoint, names: Names) -> dict[str, Any]:
    found: dict[str, Any] = {"name": row.name, "kind": row.kind}
    if row.api_key:
        found["api_key"] = names.placeholder(row.slug, "api_key")
    for name in ENDPOINT_MEMBERS:
        if value := getattr(row, name):
            found[name] = value
    # A price of 0 says something else than none.
    for name in ("input_price", "output_price", "max_tokens", "context_window"):
        if (value := getattr(row, name)) is not None:
            found[name] = value
    for name in ("native_tools", "retries"):  # 0 and false say something here
        if (value := getattr(row, name)) != getattr(EndpointSpec, name):
            found[name] = value
    if row.fallback:
        found |= {"fallback": row.fallback.slug, "falls_over": row.falls_over}
    return found


def _agent(row: Agent) -> dict[str, Any]:
    bound = row.bindings.select_related("server")
    return {
        "name": row.name,
        "description": row.description,
        "instructions": row.instructions,
        "model": row.model_endpoint.slug,
        "enabled": row.enabled,
        **({"may_ask": callees} if (callees := callees_of(row)) else {}),
        **{name: getattr(row, name) for name in AGENT_LIMITS},
        **workspace_of(row),
        "policy": _policy(row),
        **_draft(row),
        "budgets": _budgets(row),
        "servers": {one.server.name: _share(one) for one in bound if _is_pool(one.server)},
    }


def _budget(line: BudgetLine) -> dict[str, Any]:
    found: dict[str, Any] = {"unit": line.unit, "period": line.period, "limit": line.limit}
    if line.each_session:
        found["each_session"] = True
    return found if line.warn_at == WARN_AT else found | {"warn_at": line.warn_at}


def _policy(owner: Owner) -> dict[str, Any]:
    return {name: said for name, said in policy_text(owner).as_dict().items() if said}


def _is_pool(server: Server) -> bool:
    return not server.private_to_agent


def _share(binding: Any) -> dict[str, Any]:
    lists = {name: getattr(binding, name) for name in SHARES}
    return {"enabled": binding.enabled, **{name: value for name, value in lists.items() if value}}


class _Dumper(yaml.SafeDumper):
    """Writes long texts as blocks, and quotes what our reader would take for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out: the reader knows no aliases."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if stays_text(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
