"""Compare a configuration file with the database.

Planning only reads. Secrets are compared decrypted and never shown: a plan names fields only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.assignments import list_agent_slugs, list_callable_agents
from agents.budgets.services import build_line, list_budgets
from agents.config_file.read_config import (
    ACCESS_FIELDS,
    WantedAgent,
    WantedAgentServer,
    WantedBudgets,
    WantedConfig,
    WantedModelEndpoint,
    WantedServer,
    WantedSkill,
    WantedWorkflow,
)
from agents.models import Agent, ModelEndpoint, Skill, Workflow
from agents.models.skills import SKILL_TEXTS
from agents.policies.services import Owner, PolicySpec, is_current_policy
from agents.policies.shadow_mode import is_current_draft
from agents.skills import read_arguments
from agents.workflows.triggers import TRIGGER_FIELDS
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.core.problems import Conflict, InvalidInput, NotFound, Problem
from bonobot.ledger.models import Head
from mcp_servers.models import Secret, Server
from mcp_servers.models.servers import find_document, hash_document
from mcp_servers.server_config import ServerSpec, clean_server_spec
from mcp_servers.server_names import slugify

_PREFIXES: Mapping[str, str] = {Secret.Placement.ENV: "env", Secret.Placement.HEADER: "headers"}


@dataclass(frozen=True, kw_only=True)
class ConfigPlanStep:
    """The action on one object (create, change, unchanged, remove), with the changed fields."""

    # model_endpoint, server, agent, skill, agent_server, policy, policy_draft, budgets; or with an
    # owner: organization_policy, organization_budgets, server_budgets …
    kind: str
    name: str
    action: str
    fields: tuple[str, ...] = ()
    wanted: Any = field(default=None, repr=False)
    row: Any = field(default=None, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON representation."""
        serialized = {"kind": self.kind, "name": self.name, "action": self.action}
        return serialized | {"fields": list(self.fields)}


@dataclass(frozen=True, kw_only=True)
class ConfigPlan:
    """The steps in order, and the problems that prevent applying them.

    `generation` is the organization's policy generation for which they were planned.
    """

    steps: tuple[ConfigPlanStep, ...]
    problems: tuple[Problem, ...] = ()
    generation: int = 0

    @property
    def changes(self) -> tuple[ConfigPlanStep, ...]:
        return tuple(step for step in self.steps if step.action != "unchanged")

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON representation."""
        return {
            "steps": [step.as_dict() for step in self.steps],
            "problems": [problem.as_dict() for problem in self.problems],
        }


def build_plan(principal: Principal, config: WantedConfig, *, prune: bool = False) -> ConfigPlan:
    """Plan how to apply `config`; `prune` removes what its sections don't name."""
    planner = _ConfigPlanner(principal, config, prune)
    generation = _load_generation(principal)
    steps = (
        *planner.plan_model_endpoints(),
        *planner.plan_servers(),
        *planner.plan_server_budgets(),
        *planner.plan_organization_policy(),
        *planner.plan_organization_budgets(),
        *planner.plan_agents(),
        *planner.plan_callable_agents(),
        *planner.plan_skills(),
        *planner.plan_workflows(),
        *(planner.plan_removals() if prune else ()),
    )
    problems = (*config.problems, *planner.problems)
    return ConfigPlan(steps=steps, problems=problems, generation=generation)


def _load_generation(principal: Principal) -> int:
    heads = Head.objects.filter(organization_id=principal.organization_id)
    return heads.values_list("generation", flat=True).first() or 0


def _count_fallbacks(endpoints: Mapping[str, WantedModelEndpoint], slug: str) -> int:
    """Return the number of an endpoint's fallbacks in the file; these are created first."""
    count = 0
    while (slug := str(endpoints[slug].values.get("fallback", ""))) in endpoints and count <= len(
        endpoints
    ):
        count += 1
    return count


def _get_stored_value(row: ModelEndpoint, name: str) -> object:
    if name == "api_key":
        return row.api_key.open()
    if name == "fallback":
        return row.fallback.slug if row.fallback else ""
    return getattr(row, name)


class _ConfigPlanner:
    def __init__(self, principal: Principal, config: WantedConfig, prune: bool) -> None:
        self._principal, self._wanted, self._prune = principal, config, prune
        self.problems: list[Problem] = []
        organization = principal.organization_id
        endpoints = ModelEndpoint.objects.for_organization(organization)
        endpoints = endpoints.select_related("fallback")
        self._endpoints = {row.slug: row for row in endpoints}
        pool = (
            Server.objects.for_organization(organization)
            .in_organization_pool()
            .prefetch_related("secrets")
        )
        self._servers = {row.name: row for row in pool}
        agents = Agent.objects.for_organization(organization).select_related("model_endpoint")
        self._agents = {row.slug: row for row in agents}
        workflows = Workflow.objects.for_organization(organization)
        self._workflows = {row.name: row for row in workflows}
        self._skills = {row.name: row for row in Skill.objects.for_organization(organization)}

    def plan_model_endpoints(self) -> Iterator[ConfigPlanStep]:
        wanted_endpoints = self._wanted.endpoints
        for slug in sorted(
            wanted_endpoints, key=lambda endpoint: _count_fallbacks(wanted_endpoints, endpoint)
        ):
            yield self._plan_model_endpoint(wanted_endpoints[slug], self._endpoints.get(slug))

    def _plan_model_endpoint(
        self, entry: WantedModelEndpoint, row: ModelEndpoint | None
    ) -> ConfigPlanStep:
        if row is None:
            return ConfigPlanStep(
                kind="model_endpoint", name=entry.slug, action="create", wanted=entry
            )
        changed_names = [
            name for name, value in entry.values.items() if _get_stored_value(row, name) != value
        ]
        return _build_step("model_endpoint", entry.slug, changed_names, entry, row)

    def plan_servers(self) -> Iterator[ConfigPlanStep]:
        slugs = {row.slug: row for row in self._servers.values()}
        for name, entry in self._wanted.servers.items():
            row = self._servers.get(name)
            if row is None and (other_name := slugs.get(slugify(name))) is not None:
                self.problems.append(
                    entry.place.mark(_build_similar_name_error(name, other_name.name))
                )
                continue
            try:
                yield self._plan_server(entry, row)
            except Problem as problem:
                self.problems.append(entry.place.mark(problem))

    def _plan_server(self, entry: WantedServer, row: Server | None) -> ConfigPlanStep:
        spec = build_server_spec(entry, row)
        checked = clean_server_spec(self._principal, spec, old=row)
        if row is None:
            return ConfigPlanStep(kind="server", name=entry.name, action="create", wanted=entry)
        changed_names = [n for n, value in checked.columns.items() if getattr(row, n) != value]
        if checked.document is not None and not _has_same_document(row, checked.document):
            changed_names.append("document")
        stored_values = {(s.placement, s.name): s.value.open() for s in row.secrets.all()}
        changed_names += [
            f"{_PREFIXES.get(key[0], key[0])}.{key[1]}"
            for key in sorted(stored_values.keys() | checked.secrets.keys())
            if stored_values.get(key) != checked.secrets.get(key)
        ]
        return _build_step("server", entry.name, changed_names, entry, row)

    def plan_organization_policy(self) -> Iterator[ConfigPlanStep]:
        if (entry := self._wanted.policy) is not None:
            organization = Organization.objects.get(pk=self._principal.organization_id)
            changed_names = [] if _is_same_policy(organization, entry.text) else ["policy"]
            yield _build_step(
                "organization_policy", organization.slug, changed_names, entry, organization
            )

        if (draft := self._wanted.draft) is not None:
            organization = Organization.objects.get(pk=self._principal.organization_id)
            changed_names = [] if _is_same_draft(organization, draft.text) else ["policy_draft"]
            yield _build_step(
                "organization_policy_draft", organization.slug, changed_names, draft, organization
            )

    def plan_organization_budgets(self) -> Iterator[ConfigPlanStep]:
        if (entry := self._wanted.budgets) is not None:
            organization = Organization.objects.get(pk=self._principal.organization_id)
            yield _build_step(
                "organization_budgets",
                organization.slug,
                _list_budget_changes(organization, entry),
                entry,
                organization,
            )

    def plan_server_budgets(self) -> Iterator[ConfigPlanStep]:
        for entry in self._wanted.server_budgets:
            row = self._servers.get(entry.server)
            changed_names = _list_budget_changes(row, entry)
            yield _build_step("server_budgets", entry.server, changed_names, entry, row)

    def plan_agents(self) -> Iterator[ConfigPlanStep]:
        for slug, entry in self._wanted.agents.items():
            row = self._agents.get(slug)
            if entry.model is not None and not self._has_endpoint(entry.model):
                missing = _build_missing_error("model endpoint", entry.model, "model")
                self.problems.append(entry.place.mark(missing))
                continue
            yield self._plan_agent(entry, row)
            yield from self._plan_agent_servers(entry, row)
            yield from self._plan_agent_policies(entry, row)

    def _has_endpoint(self, slug: str) -> bool:
        return slug in self._endpoints or slug in self._wanted.endpoints

    def _plan_agent(self, entry: WantedAgent, row: Agent | None) -> ConfigPlanStep:
        if row is None:
            return ConfigPlanStep(kind="agent", name=entry.slug, action="create", wanted=entry)
        changed_names = [n for n, value in entry.values.items() if getattr(row, n) != value]
        if entry.model is not None and row.model_endpoint.slug != entry.model:
            changed_names.append("model")
        return _build_step("agent", entry.slug, changed_names, entry, row)

    def _plan_agent_servers(
        self, entry: WantedAgent, row: Agent | None
    ) -> Iterator[ConfigPlanStep]:
        stored_rows = row.agent_servers.select_related("server") if row else ()
        stored_by_name = {
            agent_server.server.name: agent_server
            for agent_server in stored_rows
            if not agent_server.server.private_to_agent
        }
        for agent_server in entry.agent_servers or ():
            if (
                agent_server.server not in self._servers
                and agent_server.server not in self._wanted.server_names
            ):
                self.problems.append(
                    agent_server.place.mark(_build_missing_error("server", agent_server.server, ""))
                )
                continue
            name = f"{entry.slug}/{agent_server.server}"
            wanted = (entry, agent_server, agent_server.server not in self._servers)
            if (existing := stored_by_name.get(agent_server.server)) is None:
                yield ConfigPlanStep(kind="agent_server", name=name, action="create", wanted=wanted)
            else:
                yield _build_step(
                    "agent_server",
                    name,
                    _list_agent_server_changes(agent_server, existing),
                    wanted,
                    existing,
                )
        if self._prune and entry.agent_servers is not None:
            for name in sorted(
                stored_by_name.keys()
                - {agent_server.server for agent_server in entry.agent_servers}
            ):
                yield ConfigPlanStep(
                    kind="agent_server",
                    name=f"{entry.slug}/{name}",
                    action="remove",
                    row=stored_by_name[name],
                )

    def _plan_agent_policies(
        self, entry: WantedAgent, row: Agent | None
    ) -> Iterator[ConfigPlanStep]:
        if entry.policy is not None:
            is_unchanged = row is not None and _is_same_policy(row, entry.policy)
            changed_names = [] if is_unchanged else ["policy"]
            yield _build_step("policy", entry.slug, changed_names, entry, row)
        if entry.draft is not None:
            is_unchanged = row is not None and _is_same_draft(row, entry.draft)
            changed_names = [] if is_unchanged else ["policy_draft"]
            yield _build_step("policy_draft", entry.slug, changed_names, entry, row)
        if entry.budgets is not None:
            stored_values = {build_line(budget) for budget in row.budgets.all()} if row else set()
            changed_names = ["budgets"] if stored_values != set(entry.budgets) else []
            yield _build_step("budgets", entry.slug, changed_names, entry, row)

    def plan_callable_agents(self) -> Iterator[ConfigPlanStep]:
        for slug, entry in self._wanted.agents.items():
            if entry.callable_agents is None:
                continue
            unknown = set(entry.callable_agents) - self._agents.keys() - self._wanted.agents.keys()
            if unknown:
                missing = _build_missing_error("agent", min(unknown), "callable_agents")
                self.problems.append(entry.place.mark(missing))
                continue
            row = self._agents.get(slug)
            stored_values = set(list_callable_agents(row)) if row else set()
            changed_names = (
                [] if stored_values == set(entry.callable_agents) else ["callable_agents"]
            )
            yield _build_step("callable_agents", slug, changed_names, entry, row)

    def plan_skills(self) -> Iterator[ConfigPlanStep]:
        for name, entry in self._wanted.skills.items():
            row = self._skills.get(name)
            unknown = set(entry.values.get("agents", ())) - self._agents.keys()
            if unknown := unknown - self._wanted.agents.keys():
                missing = _build_missing_error("agent", min(unknown), "agents")
                self.problems.append(entry.place.mark(missing))
            elif row is None:
                yield ConfigPlanStep(kind="skill", name=name, action="create", wanted=entry)
            else:
                try:
                    yield _build_step("skill", name, _list_skill_changes(row, entry), entry, row)
                except Problem as problem:
                    self.problems.append(entry.place.mark(problem))

    def plan_workflows(self) -> Iterator[ConfigPlanStep]:
        for name, entry in self._wanted.workflows.items():
            row = self._workflows.get(name)
            changed_names = _list_workflow_changes(row, entry) if row else []
            if row is None:
                yield ConfigPlanStep(kind="workflow", name=name, action="create", wanted=entry)
            else:
                yield _build_step("workflow", name, changed_names, entry, row)

    def plan_removals(self) -> Iterator[ConfigPlanStep]:
        """Yield removals of rows that the file's sections don't name; agents first."""
        for section, kind, rows, entries in (
            ("workflows", "workflow", self._workflows, self._wanted.workflows),
            ("skills", "skill", self._skills, self._wanted.skills),
            ("agents", "agent", self._agents, self._wanted.agents),
            ("servers", "server", self._servers, self._wanted.servers),
            ("model_endpoints", "model_endpoint", self._endpoints, self._wanted.endpoints),
        ):
            if section in self._wanted.sections:
                for name in sorted(rows.keys() - entries.keys()):
                    yield ConfigPlanStep(kind=kind, name=name, action="remove", row=rows[name])


def build_server_spec(entry: WantedServer, row: Server | None) -> ServerSpec:
    """Return the specification of a server; missing settings keep the stored values."""
    stored_values: Mapping[str, Any] = {}
    if row is not None:
        stored_values = {
            name: getattr(row, name) for name in ("description", "approval", "allow_private")
        }
    return ServerSpec(**{**entry.configuration, **stored_values, **entry.settings})


def _has_same_document(row: Server, text: str) -> bool:
    stored_values = find_document(row)
    return stored_values is not None and stored_values.digest == hash_document(text)


def _build_step(
    kind: str, name: str, changed_names: list[str], entry: Any, row: Any
) -> ConfigPlanStep:
    action = "change" if changed_names else "unchanged"
    return ConfigPlanStep(
        kind=kind, name=name, action=action, fields=tuple(changed_names), wanted=entry, row=row
    )


def _list_agent_server_changes(agent_server: WantedAgentServer, stored_server: Any) -> list[str]:
    entry_values = {
        "enabled": agent_server.enabled,
        **{name: list(getattr(agent_server, name)) for name in ACCESS_FIELDS},
    }
    return [name for name, value in entry_values.items() if getattr(stored_server, name) != value]


def _list_budget_changes(owner: Organization | Server | None, entry: WantedBudgets) -> list[str]:
    stored_values = (
        {build_line(budget) for budget in list_budgets(owner)} if owner is not None else set()
    )
    return ["budgets"] if stored_values != set(entry.lines) else []


def _is_same_draft(owner: Owner, policy: PolicySpec) -> bool:
    try:
        return is_current_draft(owner, policy)
    except InvalidInput:
        return False  # see `_is_same_policy`


def _is_same_policy(owner: Owner, policy: PolicySpec) -> bool:
    try:
        return is_current_policy(owner, policy)
    except InvalidInput:
        # It names a server of the same file or an unknown one; applying finds out which.
        return False


def _build_missing_error(kind: str, name: str, field_name: str) -> NotFound:
    return NotFound(
        f"The {kind} `{name}` doesn't exist, and the file doesn't define it.",
        field=field_name,
        remedy="Correct the name, or add it to the file.",
    )


def _build_similar_name_error(name: str, other_name: str) -> Conflict:
    return Conflict(
        f"`{name}` is too similar to the existing name `{other_name}`.",
        code="name_taken",
        remedy="Use the existing name, or choose a different one.",
    )


def _list_workflow_changes(row: Workflow, entry: WantedWorkflow) -> list[str]:
    """Return the fields in which a stored workflow differs."""
    changed_names = [] if row.definition == entry.definition else ["definition"]
    stored_values = {"enabled": row.enabled, "agents": list_agent_slugs(row)}
    for name, value in entry.settings.items():
        wanted_value = sorted(value) if name == "agents" else value
        if wanted_value != stored_values[name]:
            changed_names.append(name)
    return changed_names if _has_same_triggers(row, entry) else [*changed_names, "triggers"]


def _has_same_triggers(row: Workflow, entry: WantedWorkflow) -> bool:
    if entry.triggers is None:
        return True
    stored_values = {trigger.name: trigger for trigger in row.triggers.all()}
    return stored_values.keys() == {trigger.name for trigger in entry.triggers} and all(
        getattr(stored_values[trigger.name], name) == value
        for trigger in entry.triggers
        for name in TRIGGER_FIELDS
        if (value := getattr(trigger, name)) is not None
    )


def _list_skill_changes(row: Skill, entry: WantedSkill) -> list[str]:
    """Return the fields in which a stored skill differs; raises `InvalidInput`."""
    wanted_values = dict(entry.values)
    if "arguments" in wanted_values:
        wanted_values["arguments"] = [
            argument.as_dict() for argument in read_arguments(wanted_values["arguments"])
        ]
    stored_values: dict[str, Any] = {
        name: getattr(row, name) for name in (*SKILL_TEXTS, "enabled", "arguments")
    }
    stored_values["agents"] = list_agent_slugs(row)
    wanted_values["agents"] = (
        sorted(wanted_values["agents"]) if "agents" in wanted_values else stored_values["agents"]
    )
    return [name for name, value in wanted_values.items() if stored_values[name] != value]
