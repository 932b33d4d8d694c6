"""Parse the configuration file.

A server's connection and sign-in are replaced as a whole; any other field that is left out stays
unchanged. Every problem has its document, line and path.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from agents.budgets.services import BudgetLine
from agents.builtin_tools.toolset_options import clean_toolsets
from agents.config_file.field_readers import ConfigLocation, FieldReader
from agents.model_endpoints.services import ModelEndpointSpec
from agents.models import Agent
from agents.models.agents import DEFAULT_WORKSPACE_FILES, DEFAULT_WORKSPACE_MIB
from agents.policies.services import EFFECTS, PolicySpec, RuleSpec
from agents.policies.services import Entry as RuleEntry
from agents.services import AgentSpec
from agents.sessions.output_schemas import check_output_schema
from agents.skills import SkillSpec
from agents.workflows.definitions import WORKFLOW_FIELDS
from agents.workflows.services import WorkflowSpec
from agents.workflows.triggers import TriggerSpec
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text import placeholders
from bonobot.core.text.json_reader import SourceNode, read_json
from bonobot.core.text.untrusted_text import make_visible
from bonobot.core.text.yaml_reader import is_yaml, read_yaml_documents
from mcp_servers.client_capabilities import BOOLEAN_FIELDS, CAPABILITY_FIELDS
from mcp_servers.import_export.agent_overrides import read_overrides
from mcp_servers.import_export.detect_format import ServerNode, walk_servers
from mcp_servers.import_export.entries import ImportEntry
from mcp_servers.import_export.parse_servers import read_server
from mcp_servers.server_names import check_name
from mcp_servers.server_prices import PRICE_FIELDS

TOOLS = ("builtin_tools", "workspace")
VERSION = 1
WORKFLOW_SETTINGS = ("enabled", "agents", "triggers")
_ARGUMENT_FIELDS = ("name", "description", "required", "default", "choices")
SECTIONS = (
    *("bonobot", "model_endpoints", "servers", "agents", "skills", "workflows"),
    *("policy", "policy_draft", "budgets"),
)
# Sections of other clients' files, and their fields that mean nothing here.
CLIENT_SECTIONS = ("tools", "bot_overrides")
IGNORED_FIELDS = ("profile", "engagement_mode")
_AGENT_RELATIONS = ("model", "policy", "policy_draft", "budgets", "servers", "callable_agents")
# Fields of `AgentSpec` that are elsewhere in the file.
_AGENT_KEYS = ("slug", "workspace_folder", "workspace_mib", "workspace_files")
AGENT_LIMITS = (*("max_turns", "max_calls", "max_run_s", "calls_per_minute", "tool_search_above"),)
ACCESS_FIELDS = ("allowed_tools", "denied_tools", "allowed_resources", "allowed_prompts")
_SLUG = re.compile(r"[-a-zA-Z0-9_]{1,64}")
_EXTRA_SERVER_FIELDS = (
    *("description", "approval", "allow_private", "sandbox", "network"),
    *("env_exceptions", "allowed_tools", "budgets", *PRICE_FIELDS, *CAPABILITY_FIELDS),
)


def read_builtin_tools(agent: FieldReader) -> dict[str, Any]:
    """Read an agent's built-in tools and workspace as fields of AgentSpec, collecting problems."""
    values: dict[str, Any] = {}
    if (toolsets := agent.read_value("builtin_tools")) is not None:
        try:
            values["builtin_tools"] = clean_toolsets(toolsets)
        except InvalidInput as problem:
            agent.reject_field("builtin_tools", problem.code, f"{problem} {problem.remedy}")
    if (workspace := agent.read_nested_fields("workspace")) is not None:
        workspace.reject_unknown_fields(("folder", "mib", "files"))
        values["workspace_folder"] = workspace.read_text("folder")
        values["workspace_mib"] = workspace.read_integer("mib")
        values["workspace_files"] = workspace.read_integer("files")
    return values


def export_builtin_tools(row: Agent) -> dict[str, Any]:
    """Return an agent's built-in tools and non-default workspace in the file's format."""
    workspace_values: dict[str, Any] = {"folder": row.workspace_folder}
    workspace_values["mib"] = (
        row.workspace_mib if row.workspace_mib != DEFAULT_WORKSPACE_MIB else None
    )
    workspace_values["files"] = (
        row.workspace_files if row.workspace_files != DEFAULT_WORKSPACE_FILES else None
    )
    workspace = {name: value for name, value in workspace_values.items() if value}
    return {"builtin_tools": row.builtin_tools, **({"workspace": workspace} if workspace else {})}


@dataclass(frozen=True, kw_only=True)
class WantedServer:
    """A pool server, with its configuration (including secrets) and other settings."""

    name: str
    place: ConfigLocation
    configuration: Mapping[str, Any] = field(repr=False)
    settings: Mapping[str, Any]
    preset: str = ""


@dataclass(frozen=True, kw_only=True)
class WantedModelEndpoint:
    """A model endpoint by slug."""

    slug: str
    place: ConfigLocation
    values: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class WantedAgentServer:
    """What an agent may use of an attached server."""

    server: str
    place: ConfigLocation
    enabled: bool = True
    allowed_tools: tuple[str, ...] = ()
    denied_tools: tuple[str, ...] = ()
    allowed_resources: tuple[str, ...] = ()
    allowed_prompts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WantedAgent:
    """An agent by slug; None means unchanged."""

    slug: str
    place: ConfigLocation
    values: Mapping[str, Any]
    model: str | None = None
    policy: PolicySpec | None = None
    draft: PolicySpec | None = None
    budgets: tuple[BudgetLine, ...] | None = None
    agent_servers: tuple[WantedAgentServer, ...] | None = None
    callable_agents: tuple[str, ...] | None = None


@dataclass(frozen=True)
class WantedPolicy:
    """The organization's policy, or its draft."""

    text: PolicySpec
    place: ConfigLocation


@dataclass(frozen=True)
class WantedBudgets:
    """The budgets of the organization, or of the pool server named `server`."""

    lines: tuple[BudgetLine, ...]
    place: ConfigLocation
    server: str = ""


@dataclass(frozen=True, kw_only=True)
class WantedWorkflow:
    """A workflow by name, with its definition and settings."""

    name: str
    place: ConfigLocation
    definition: Mapping[str, Any]
    settings: Mapping[str, Any]
    # None: the file doesn't list triggers.
    triggers: tuple[TriggerSpec, ...] | None = None

    @property
    def spec(self) -> WorkflowSpec:
        """The specification for the workflow service."""
        source = yaml.safe_dump(dict(self.definition), sort_keys=False, allow_unicode=True)
        return WorkflowSpec(name=self.name, source=source, **self.settings)


@dataclass(frozen=True, kw_only=True)
class WantedSkill:
    """A skill by name; fields not in `values` stay unchanged."""

    name: str
    place: ConfigLocation
    values: Mapping[str, Any]

    @property
    def spec(self) -> SkillSpec:
        """The specification for the skill service."""
        return SkillSpec(name=self.name, **self.values)


@dataclass(kw_only=True)
class WantedConfig:
    """The content of a configuration file.

    `sections` are those present, `server_names` includes servers with problems.
    """

    sections: set[str] = field(default_factory=set)
    endpoints: dict[str, WantedModelEndpoint] = field(default_factory=dict)
    servers: dict[str, WantedServer] = field(default_factory=dict)
    agents: dict[str, WantedAgent] = field(default_factory=dict)
    skills: dict[str, WantedSkill] = field(default_factory=dict)
    workflows: dict[str, WantedWorkflow] = field(default_factory=dict)
    policy: WantedPolicy | None = None
    draft: WantedPolicy | None = None
    budgets: WantedBudgets | None = None
    server_budgets: list[WantedBudgets] = field(default_factory=list)
    server_names: set[str] = field(default_factory=set)
    notices: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def read_config_file(text: str, values: Mapping[str, str]) -> WantedConfig:
    """Parse a configuration, filling `${NAME}` in secrets and addresses from `values`.

    Collects the problems of single fields; raises `InvalidInput` if nothing can be read.
    """
    roots = read_yaml_documents(text) if is_yaml(text) else (read_json(text).root,)
    config = WantedConfig()
    for number, root in enumerate(roots, start=1):
        if root.value is None:
            continue
        _ConfigReader(config, values, number).read_document(root)
    if not config.sections and not config.problems:
        raise InvalidInput(
            "The file contains nothing to apply.",
            code="nothing_to_apply",
            remedy=f"Add at least one of: {', '.join(SECTIONS[1:])}.",
        )
    return config


def allow_private_addresses(config: WantedConfig) -> None:
    """Permit private addresses for the HTTP servers of a file, which needs the permission."""
    for name, server in config.servers.items():
        if server.configuration["transport_type"] != "stdio":
            settings = {"allow_private": True, **server.settings}
            config.servers[name] = replace(server, settings=settings)


class _ConfigReader:
    def __init__(self, config: WantedConfig, values: Mapping[str, str], document: int) -> None:
        self._wanted, self._values, self._document = config, values, document
        self._tool_servers: list[str] = []
        self._builtin_tools: Any = None

    def read_document(self, root: SourceNode) -> None:
        top = self._build_field_reader(root, "")
        if top.read_integer("bonobot") not in (None, VERSION):
            top.reject_field(
                "bonobot", "unknown_version", f"This version of Bonobot supports version {VERSION}."
            )
        for name, location, node in self._iterate_section(top, "model_endpoints"):
            self._wanted.endpoints[name] = self._read_model_endpoint(name, location, node)
        for name, location, node in self._iterate_section(top, "servers"):
            self._add_server(name, location, node)
        self._read_tools(top)
        for name, location, node in self._iterate_section(top, "agents"):
            self._wanted.agents[name] = self._read_agent(name, location, node)
        self._read_overrides(root)
        for name, location, node in self._iterate_section(top, "skills"):
            self._wanted.skills[name] = _read_skill(
                name, location, self._build_field_reader(node, location.path)
            )
        for name, location, node in self._iterate_section(top, "workflows"):
            reader = self._build_field_reader(node, location.path)
            self._wanted.workflows[name] = _read_workflow(name, location, reader, node)
        self._read_organization_policy(top)
        self._read_organization_draft(top)
        self._read_organization_budgets(top)
        if ignored := [name for name in IGNORED_FIELDS if top.has_field(name)]:
            self._wanted.notices.append(f"Ignored fields of other clients: {', '.join(ignored)}.")
        top.reject_unknown_fields((*SECTIONS, *CLIENT_SECTIONS, *IGNORED_FIELDS))

    def _build_field_reader(self, node: SourceNode, path: str) -> FieldReader:
        return FieldReader(node, path, self._document, self._wanted.problems)

    def _iterate_section(
        self, top: FieldReader, name: str
    ) -> Iterator[tuple[str, ConfigLocation, SourceNode]]:
        if not top.has_field(name):
            return
        self._wanted.sections.add(name)
        existing = getattr(self._wanted, {"model_endpoints": "endpoints"}.get(name, name))
        for key, line, node in top.list_entries(name):
            location = ConfigLocation(
                document=self._document, line=line, path=f"{name}.{make_visible(key, 64)}"
            )
            if key in existing:
                if existing[key].place.document != self._document:
                    self._reject_duplicate(location, make_visible(key, 64))
                continue
            yield key, location, node

    def _reject_duplicate(self, location: ConfigLocation, name: str) -> None:
        problem = InvalidInput(
            f"`{name}` is defined twice.", code="duplicate_name", remedy="Remove the duplicate."
        )
        self._wanted.problems.append(location.mark(problem))

    def _read_server(
        self, name: str, location: ConfigLocation, node: SourceNode
    ) -> WantedServer | None:
        reader = self._build_field_reader(node, location.path)
        settings = {
            "description": reader.read_text("description"),
            "approval": reader.read_text("approval"),
            "allow_private": reader.read_boolean("allow_private"),
            "sandbox": reader.read_text("sandbox"),
            "network": reader.read_text("network"),
            "env_exceptions": reader.read_text_mapping("env_exceptions"),
            "only_tools": reader.read_text_list("allowed_tools")
            if reader.has_field("allowed_tools")
            else None,
            **{name: reader.read_integer(name) for name in (*PRICE_FIELDS, "sampling_tokens")},
            **{name: reader.read_boolean(name) for name in BOOLEAN_FIELDS},
            "sampling": reader.read_text("sampling"),
            "session_state": reader.read_text("session_state"),
        }
        entry = read_server(
            ServerNode(name, location.line, node), self._values, {}, _EXTRA_SERVER_FIELDS
        )
        problems = [*entry.problems, *_iterate_omissions(entry, location)]
        try:
            check_name(name, self._wanted.servers)
        except Problem as problem:
            problems.append(problem)
        self._wanted.problems += [location.mark(problem) for problem in problems]
        given_settings = {
            setting: value for setting, value in settings.items() if value is not None
        }
        if (lines := self._read_budgets(reader)) is not None:
            self._wanted.server_budgets.append(WantedBudgets(lines, location, name))
        if problems:
            return None
        return WantedServer(
            name=name,
            place=location,
            configuration=entry.build_configuration(),
            settings=given_settings,
            preset=entry.preset,
        )

    def _add_server(self, name: str, location: ConfigLocation, node: SourceNode) -> None:
        self._wanted.server_names.add(name)
        if (server := self._read_server(name, location, node)) is not None:
            self._wanted.servers[name] = server

    def _read_tools(self, top: FieldReader) -> None:
        """Read `tools`: `mcp_servers`, and `builtin`, the built-in tools of the file's agents."""
        tools = top.read_nested_fields("tools")
        if tools is None:
            return
        tools.reject_unknown_fields(("builtin", "mcp_servers"))
        self._builtin_tools = tools.read_value("builtin")
        self._wanted.sections.add("servers")
        node = top.read_object("tools")
        for server_node in walk_servers(node.get("mcp_servers")) if node else ():
            name = server_node.name or ""
            location = ConfigLocation(
                document=self._document,
                line=server_node.line,
                path=f"tools.mcp_servers.{make_visible(name, 64)}",
            )
            self._tool_servers.append(name)
            self._add_server(name, location, server_node.node)

    def _read_overrides(self, root: SourceNode) -> None:
        """Read `bot_overrides`: the servers and tools of agents by slug."""
        if root.get("bot_overrides") is None:
            return
        self._wanted.sections.add("agents")
        overrides = read_overrides(root)
        location = ConfigLocation(document=self._document, line=root.line, path="bot_overrides")
        self._wanted.problems += [location.mark(problem) for problem in overrides.problems]
        for override in overrides.overrides:
            location = ConfigLocation(
                document=self._document,
                line=override.line,
                path=f"bot_overrides.{make_visible(override.agent, 64)}",
            )
            servers = tuple(
                WantedAgentServer(
                    item.server,
                    place=location,
                    enabled=not item.removed,
                    allowed_tools=item.allowed or (),
                    denied_tools=item.denied or (),
                )
                for item in override.server_overrides
            )
            agent = self._wanted.agents.get(override.agent) or WantedAgent(
                slug=override.agent, place=location, values={}
            )
            self._wanted.agents[override.agent] = replace(
                agent, agent_servers=(*(agent.agent_servers or ()), *servers)
            )

    def _read_model_endpoint(
        self, slug: str, location: ConfigLocation, node: SourceNode
    ) -> WantedModelEndpoint:
        reader = self._build_field_reader(node, location.path)
        if not _SLUG.fullmatch(slug):
            reader.reject_field("", "bad_slug", "Use at most 64 letters, digits, `-`, and `_`.")
        values = reader.read_spec(ModelEndpointSpec, others=("fallback",))
        if (fallback := reader.read_text("fallback")) is not None:
            values["fallback"] = fallback
        if values.get("api_key"):
            values["api_key"] = self._fill_placeholders(reader, "api_key", values["api_key"])
        return WantedModelEndpoint(slug=slug, place=location, values=values)

    def _fill_placeholders(self, reader: FieldReader, name: str, text: str) -> str:
        filled, missing = placeholders.fill_placeholders(text, self._values)
        for reference in missing:
            code = "forbidden_variable" if reference.is_forbidden else "missing_value"
            reader.reject_field(name, code, f"Set the environment variable `{reference.name}`.")
        return filled

    def _read_agent(self, slug: str, location: ConfigLocation, node: SourceNode) -> WantedAgent:
        reader = self._build_field_reader(node, location.path)
        others = (*_AGENT_RELATIONS, "output_schema", *TOOLS)
        values = reader.read_spec(AgentSpec, without=_AGENT_KEYS, others=others)
        values["output_schema"] = self._read_output_schema(reader)
        values |= read_builtin_tools(reader)
        if self._builtin_tools is not None and not reader.has_field("builtin_tools"):
            values["builtin_tools"] = self._clean_builtin_tools(reader)
        return WantedAgent(
            slug=slug,
            place=location,
            values={name: value for name, value in values.items() if value is not None},
            model=reader.read_text("model"),
            policy=self._read_policy(reader, "policy", f"{location.path}.policy"),
            draft=self._read_policy(reader, "policy_draft", f"{location.path}.policy_draft"),
            budgets=self._read_budgets(reader),
            agent_servers=self._read_agent_servers(reader) or self._list_tool_servers(location),
            callable_agents=reader.read_text_list("callable_agents")
            if reader.has_field("callable_agents")
            else None,
        )

    def _read_output_schema(self, reader: FieldReader) -> dict[str, Any] | None:
        if reader.read_object("output_schema") is None:
            return None
        schema: dict[str, Any] = reader.read_value("output_schema")
        try:
            return check_output_schema(schema) if schema else {}
        except InvalidInput as problem:
            reader.reject_field("output_schema", problem.code, f"{problem} {problem.remedy}")
            return None

    def _clean_builtin_tools(self, reader: FieldReader) -> dict[str, Any] | None:
        try:
            return clean_toolsets(self._builtin_tools)
        except InvalidInput as problem:
            reader.reject_field("", problem.code, f"tools.builtin: {problem} {problem.remedy}")
            return None

    def _list_tool_servers(self, location: ConfigLocation) -> tuple[WantedAgentServer, ...] | None:
        """Return the servers of `tools`, which all agents of the file get."""
        if not self._tool_servers:
            return None
        return tuple(WantedAgentServer(name, location) for name in self._tool_servers)

    def _read_organization_policy(self, top: FieldReader) -> None:
        if (location := self._find_organization_field(top, "policy", self._wanted.policy)) is None:
            return
        if (text := self._read_policy(top, "policy", "policy")) is not None:
            self._wanted.policy = WantedPolicy(text, location)

    def _read_organization_draft(self, top: FieldReader) -> None:
        if (
            location := self._find_organization_field(top, "policy_draft", self._wanted.draft)
        ) is None:
            return
        if (text := self._read_policy(top, "policy_draft", "policy_draft")) is not None:
            self._wanted.draft = WantedPolicy(text, location)

    def _read_organization_budgets(self, top: FieldReader) -> None:
        if (
            location := self._find_organization_field(top, "budgets", self._wanted.budgets)
        ) is None:
            return
        if (lines := self._read_budgets(top)) is not None:
            self._wanted.budgets = WantedBudgets(lines, location)

    def _find_organization_field(
        self, top: FieldReader, name: str, existing: object
    ) -> ConfigLocation | None:
        """Return the location of an organization field; None if it is missing or a duplicate."""
        if not top.has_field(name):
            return None
        location = ConfigLocation(document=self._document, line=top.get_line(name), path=name)
        self._wanted.sections.add(name)
        if existing is None:
            return location
        self._reject_duplicate(location, name)
        return None

    def _read_policy(self, owner: FieldReader, name: str, path: str) -> PolicySpec | None:
        node = owner.read_object(name)
        if node is None:
            return None
        reader = self._build_field_reader(node, path)
        reader.reject_unknown_fields(("mode", *EFFECTS))
        mode = reader.read_text("mode") or "none"
        return PolicySpec(mode, **{effect: self._read_rules(reader, effect) for effect in EFFECTS})

    def _read_rules(self, policy: FieldReader, effect: str) -> tuple[RuleEntry, ...]:
        """Read rules: names, globs, and objects with a condition."""
        rules: list[RuleEntry] = []
        for index, node in enumerate(policy.read_items(effect) or ()):
            if isinstance(node.value, str):
                rules.append(node.value)
                continue
            reader = self._build_field_reader(node, f"{policy.path}.{effect}[{index}]")
            reader.reject_unknown_fields(("tool", "when"))
            tool, when = reader.read_text("tool"), reader.read_object("when")
            if tool and when is not None:
                rules.append(RuleSpec(tool, when.to_python()))
            elif isinstance(node.value, dict):
                remedy = "Enter a name, or {tool: name, when: {JSON Schema for the arguments}}."
                reader.reject_field("tool" if not tool else "when", "missing_value", remedy)
        return tuple(rules)

    def _read_budgets(self, owner: FieldReader) -> tuple[BudgetLine, ...] | None:
        items = owner.read_items("budgets")
        if items is None:
            return None
        lines = []
        for index, node in enumerate(items):
            reader = self._build_field_reader(node, f"{owner.path}.budgets[{index}]".lstrip("."))
            values = reader.read_spec(BudgetLine)
            if "limit" not in values:
                reader.reject_field("limit", "missing_value", "Enter a whole number.")
                continue
            lines.append(BudgetLine(**{"unit": "tokens", "period": "month"} | values))
        return tuple(lines)

    def _read_agent_servers(self, agent: FieldReader) -> tuple[WantedAgentServer, ...] | None:
        if not agent.has_field("servers"):
            return None
        agent_servers = []
        for server, line, node in agent.list_entries("servers"):
            path = f"{agent.path}.servers.{make_visible(server, 64)}"
            reader = self._build_field_reader(node, path)
            reader.reject_unknown_fields(("enabled", *ACCESS_FIELDS))
            enabled = reader.read_boolean("enabled")
            agent_servers.append(
                WantedAgentServer(
                    server,
                    ConfigLocation(document=self._document, line=line, path=path),
                    enabled=enabled is not False,
                    **{name: reader.read_text_list(name) for name in ACCESS_FIELDS},
                )
            )
        return tuple(agent_servers)


def _iterate_omissions(entry: ImportEntry, location: ConfigLocation) -> Iterator[Problem]:
    """Yield a problem for each field that an import would ignore."""
    for notice in entry.notices:
        if notice.code == "left_out":
            yield InvalidInput(
                notice.detail,
                code="unknown_field",
                field=location.path,
                remedy="Correct the name, or remove the field.",
            )


def _read_workflow(
    name: str, location: ConfigLocation, reader: FieldReader, node: SourceNode
) -> WantedWorkflow:
    """Read a workflow; its definition is validated when it is applied."""
    enabled = reader.read_boolean("enabled")
    agents = reader.read_text_list("agents") if reader.has_field("agents") else None
    reader.reject_unknown_fields((*WORKFLOW_FIELDS, *WORKFLOW_SETTINGS))
    fields = node.to_python() if isinstance(node.value, dict) else {}
    settings = {"enabled": enabled, "agents": agents}
    return WantedWorkflow(
        name=name,
        place=location,
        definition={key: value for key, value in fields.items() if key not in WORKFLOW_SETTINGS},
        settings={key: value for key, value in settings.items() if value is not None},
        triggers=_read_triggers(reader) if reader.has_field("triggers") else None,
    )


def _read_triggers(reader: FieldReader) -> tuple[TriggerSpec, ...]:
    triggers = []
    section = reader.read_nested_fields("triggers")
    for name, _, _ in reader.list_entries("triggers"):
        trigger = section.read_nested_fields(name) if section else None
        if trigger is None:
            continue
        values = trigger.read_spec(TriggerSpec, without=("name",), others=("inputs",))
        inputs = trigger.read_value("inputs") if trigger.read_object("inputs") else None
        triggers.append(TriggerSpec(name=name, inputs=inputs, **values))
    return tuple(triggers)


def _read_skill(name: str, location: ConfigLocation, reader: FieldReader) -> WantedSkill:
    """Read a skill, collecting problems."""
    values = reader.read_spec(SkillSpec, without=("name",), others=("agents", "arguments"))
    if reader.has_field("agents"):
        values["agents"] = reader.read_text_list("agents")
    if (arguments := reader.read_items("arguments")) is not None:
        values["arguments"] = [_read_argument(reader, node.to_python()) for node in arguments]
    return WantedSkill(name=name, place=location, values=values)


def _read_argument(reader: FieldReader, argument: Any) -> dict[str, Any]:
    if isinstance(argument, dict):
        return argument
    remedy = f"An argument has the fields {', '.join(_ARGUMENT_FIELDS)}."
    reader.reject_field("arguments", "bad_value", remedy)
    return {"name": "broken"}
