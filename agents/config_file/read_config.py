"""Parse the configuration file.

A server's connection and sign-in are replaced as a whole; any other field that is left out stays
unchanged. Every problem has its document, line and path.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.budgets.services import WARN_AT, BudgetLine
from agents.builtin_tools.toolset_options import check_kits
from agents.config_file.field_readers import ConfigLocation, FieldReader
from agents.config_file.skills_and_workflows import (
    WantedSkill,
    WantedWorkflow,
    read_skill,
    read_workflow,
)
from agents.models import Agent
from agents.models.workspace_limits import USUAL_FILES, USUAL_MIB
from agents.policies.services import EFFECTS, PolicySpec, RuleSpec
from agents.policies.services import Entry as RuleEntry
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text import placeholders
from bonobot.core.text.json_reader import SourceNode, read
from bonobot.core.text.untrusted_text import make_visible
from bonobot.core.text.yaml_reader import is_yaml, read_documents
from mcp_servers.client_capabilities import ASKED_BACK, SWITCHES
from mcp_servers.import_export.detect_format import ServerNode
from mcp_servers.import_export.entries import ImportEntry
from mcp_servers.import_export.parse_servers import read_server
from mcp_servers.server_config import PRICED
from mcp_servers.tool_names import check_name

TOOLS = ("builtin_tools", "workspace")


def read_builtin_tools(agent: FieldReader) -> dict[str, Any]:
    """Read an agent's built-in tools and workspace as fields of AgentSpec, collecting problems."""
    found: dict[str, Any] = {}
    if (kits := agent.plain("builtin_tools")) is not None:
        try:
            found["builtin_tools"] = check_kits(kits)
        except InvalidInput as problem:
            agent.refuse("builtin_tools", problem.code, f"{problem} {problem.remedy}")
    if (place := agent.inner("workspace")) is not None:
        place.refuse_others(("folder", "mib", "files"))
        found["workspace_folder"] = place.text("folder")
        found["workspace_mib"] = place.number("mib")
        found["workspace_files"] = place.number("files")
    return found


def export_builtin_tools(row: Agent) -> dict[str, Any]:
    """Return an agent's built-in tools and non-default workspace in the file's format."""
    said: dict[str, Any] = {"folder": row.workspace_folder}
    said["mib"] = row.workspace_mib if row.workspace_mib != USUAL_MIB else None
    said["files"] = row.workspace_files if row.workspace_files != USUAL_FILES else None
    place = {name: value for name, value in said.items() if value}
    return {"builtin_tools": row.builtin_tools, **({"workspace": place} if place else {})}


VERSION = 1
_ENDPOINT_TEXTS = (
    *("name", "kind", "base_url", "model", "api_key", "region", "access_key_id", "api_version"),
    *("thinking", "fallback", "falls_over"),
)
_ENDPOINT_FLAGS = ("allow_private", "native_tools", "sees_images")
_ENDPOINT_NUMBERS = (
    *("timeout_s", "input_price", "output_price", "max_tokens", "context_window", "retries"),
)
SECTIONS = (
    *("bonobot", "model_endpoints", "servers", "agents", "skills", "workflows"),
    *("policy", "policy_draft", "budgets"),
)
_BESIDE_AGENT = ("model", "policy", "policy_draft", "budgets", "servers", "may_ask")
AGENT_LIMITS = (*("max_turns", "max_calls", "max_run_s", "calls_per_minute", "tool_search_above"),)
SHARES = ("allowed_tools", "denied_tools", "allowed_resources", "allowed_prompts")
_SLUG = re.compile(r"[-a-zA-Z0-9_]{1,64}")
_BESIDE_ENTRY = (
    *("description", "approval", "allow_private", "confinement", "network"),
    *("env_exceptions", "allowed_tools", "budgets", *PRICED, *ASKED_BACK),
)


@dataclass(frozen=True, kw_only=True)
class WantedServer:
    """A pool server, with its configuration (including secrets) and other settings."""

    name: str
    place: ConfigLocation
    configuration: Mapping[str, Any] = field(repr=False)
    beside: Mapping[str, Any]


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
    bindings: tuple[WantedAgentServer, ...] | None = None
    may_ask: tuple[str, ...] | None = None


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
    problems: list[Problem] = field(default_factory=list)


def read_wanted(text: str, values: Mapping[str, str]) -> WantedConfig:
    """Parse a configuration, filling `${NAME}` in secrets and addresses from `values`.

    Collects the problems of single fields; raises `InvalidInput` if nothing can be read.
    """
    roots = read_documents(text) if is_yaml(text) else (read(text).root,)
    wanted = WantedConfig()
    for number, root in enumerate(roots, start=1):
        if root.value is None:
            continue
        _ConfigReader(wanted, values, number).read(root)
    if not wanted.sections and not wanted.problems:
        raise InvalidInput(
            "There is nothing to apply.",
            code="nothing_to_apply",
            remedy=f"Write one of: {', '.join(SECTIONS[1:])}.",
        )
    return wanted


class _ConfigReader:
    def __init__(self, wanted: WantedConfig, values: Mapping[str, str], number: int) -> None:
        self._wanted, self._values, self._number = wanted, values, number

    def read(self, root: SourceNode) -> None:
        top = self._members(root, "")
        if top.number("bonobot") not in (None, VERSION):
            top.refuse("bonobot", "unknown_version", f"This Bonobot reads version {VERSION}.")
        for name, place, node in self._section(top, "model_endpoints"):
            self._wanted.endpoints[name] = self._endpoint(name, place, node)
        for name, place, node in self._section(top, "servers"):
            self._wanted.server_names.add(name)
            if (server := self._server(name, place, node)) is not None:
                self._wanted.servers[name] = server
        for name, place, node in self._section(top, "agents"):
            self._wanted.agents[name] = self._agent(name, place, node)
        for name, place, node in self._section(top, "skills"):
            self._wanted.skills[name] = read_skill(name, place, self._members(node, place.path))
        for name, place, node in self._section(top, "workflows"):
            members = self._members(node, place.path)
            self._wanted.workflows[name] = read_workflow(name, place, members, node)
        self._own_policy(top)
        self._own_draft(top)
        self._own_budgets(top)
        top.refuse_others(SECTIONS)

    def _members(self, node: SourceNode, path: str) -> FieldReader:
        return FieldReader(node, path, self._number, self._wanted.problems)

    def _section(
        self, top: FieldReader, name: str
    ) -> Iterator[tuple[str, ConfigLocation, SourceNode]]:
        if not top.has(name):
            return
        self._wanted.sections.add(name)
        known = getattr(self._wanted, {"model_endpoints": "endpoints"}.get(name, name))
        for key, line, node in top.children(name):
            place = ConfigLocation(
                document=self._number, line=line, path=f"{name}.{make_visible(key, 64)}"
            )
            if key in known:
                if known[key].place.document != self._number:
                    self._refuse(
                        place, "duplicate_name", f"`{make_visible(key, 64)}` is there twice."
                    )
                continue
            yield key, place, node

    def _refuse(self, place: ConfigLocation, code: str, detail: str) -> None:
        self._wanted.problems.append(
            place.mark(InvalidInput(detail, code=code, field="", remedy="Keep one of them."))
        )

    def _server(self, name: str, place: ConfigLocation, node: SourceNode) -> WantedServer | None:
        members = self._members(node, place.path)
        beside = {
            "description": members.text("description"),
            "approval": members.text("approval"),
            "allow_private": members.flag("allow_private"),
            "confinement": members.text("confinement"),
            "network": members.text("network"),
            "env_exceptions": members.mapping("env_exceptions"),
            "only_tools": members.list("allowed_tools") if members.has("allowed_tools") else None,
            **{name: members.number(name) for name in (*PRICED, "sampling_tokens")},
            **{name: members.flag(name) for name in SWITCHES},
            "sampling": members.text("sampling"),
        }
        entry = read_server(ServerNode(name, place.line, node), self._values, {}, _BESIDE_ENTRY)
        problems = [*entry.problems, *_list_omissions(entry, place)]
        try:
            check_name(name, self._wanted.servers)
        except Problem as problem:
            problems.append(problem)
        self._wanted.problems += [place.mark(problem) for problem in problems]
        said = {member: value for member, value in beside.items() if value is not None}
        if (lines := self._budgets(members)) is not None:
            self._wanted.server_budgets.append(WantedBudgets(lines, place, name))
        if problems:
            return None
        return WantedServer(
            name=name, place=place, configuration=entry.configuration(), beside=said
        )

    def _endpoint(self, slug: str, place: ConfigLocation, node: SourceNode) -> WantedModelEndpoint:
        members = self._members(node, place.path)
        if not _SLUG.fullmatch(slug):
            members.refuse("", "bad_slug", "Use letters, digits, `-` and `_`; at most 64.")
        values = members.texts_of(*_ENDPOINT_TEXTS)
        values |= {name: members.flag(name) for name in _ENDPOINT_FLAGS}
        values |= {name: members.number(name) for name in _ENDPOINT_NUMBERS}
        members.refuse_others(tuple(values))
        if values["api_key"]:
            values["api_key"] = self._filled(members, "api_key", values["api_key"])
        said = {name: value for name, value in values.items() if value is not None}
        return WantedModelEndpoint(slug=slug, place=place, values=said)

    def _filled(self, members: FieldReader, name: str, text: str) -> str:
        filled, missing = placeholders.fill(text, self._values)
        for reference in missing:
            code = "forbidden_variable" if reference.forbidden else "missing_value"
            members.refuse(name, code, f"Give a value for `{reference.name}` in the environment.")
        return filled

    def _agent(self, slug: str, place: ConfigLocation, node: SourceNode) -> WantedAgent:
        members = self._members(node, place.path)
        values = members.texts_of("name", "description", "instructions")
        values["enabled"] = members.flag("enabled")
        for name in AGENT_LIMITS:
            values[name] = members.number(name)
        values |= read_builtin_tools(members)
        beside = ("model", "policy", "policy_draft", "budgets", "servers", "may_ask", *TOOLS)
        model = members.text("model")
        members.refuse_others((*values, *beside))
        return WantedAgent(
            slug=slug,
            place=place,
            values={name: value for name, value in values.items() if value is not None},
            model=model,
            policy=self._policy(members, "policy", f"{place.path}.policy"),
            draft=self._policy(members, "policy_draft", f"{place.path}.policy_draft"),
            budgets=self._budgets(members),
            bindings=self._bindings(members),
            may_ask=members.list("may_ask") if members.has("may_ask") else None,
        )

    def _own_policy(self, top: FieldReader) -> None:
        if (place := self._own(top, "policy", self._wanted.policy)) is None:
            return
        if (text := self._policy(top, "policy", "policy")) is not None:
            self._wanted.policy = WantedPolicy(text, place)

    def _own_draft(self, top: FieldReader) -> None:
        if (place := self._own(top, "policy_draft", self._wanted.draft)) is None:
            return
        if (text := self._policy(top, "policy_draft", "policy_draft")) is not None:
            self._wanted.draft = WantedPolicy(text, place)

    def _own_budgets(self, top: FieldReader) -> None:
        if (place := self._own(top, "budgets", self._wanted.budgets)) is None:
            return
        if (lines := self._budgets(top)) is not None:
            self._wanted.budgets = WantedBudgets(lines, place)

    def _own(self, top: FieldReader, name: str, there: object) -> ConfigLocation | None:
        """Return the location of an organization field; None if it is missing or a duplicate."""
        if not top.has(name):
            return None
        place = ConfigLocation(document=self._number, line=top.line_of(name), path=name)
        self._wanted.sections.add(name)
        if there is None:
            return place
        self._refuse(place, "duplicate_name", f"`{name}` is there twice.")
        return None

    def _policy(self, owner: FieldReader, name: str, path: str) -> PolicySpec | None:
        node = owner.object(name)
        if node is None:
            return None
        members = self._members(node, path)
        members.refuse_others(("mode", *EFFECTS))
        mode = members.text("mode") or "none"
        return PolicySpec(mode, **{effect: self._rules(members, effect) for effect in EFFECTS})

    def _rules(self, policy: FieldReader, effect: str) -> tuple[RuleEntry, ...]:
        """Read rules: names, globs, and objects with a condition."""
        found: list[RuleEntry] = []
        for index, node in enumerate(policy.items(effect) or ()):
            if isinstance(node.value, str):
                found.append(node.value)
                continue
            members = self._members(node, f"{policy.path}.{effect}[{index}]")
            members.refuse_others(("tool", "when"))
            tool, when = members.text("tool"), members.object("when")
            if tool and when is not None:
                found.append(RuleSpec(tool, when.plain()))
            elif isinstance(node.value, dict):
                remedy = "Write a name, or {tool: name, when: {JSON Schema over the arguments}}."
                members.refuse("tool" if not tool else "when", "missing_value", remedy)
        return tuple(found)

    def _budgets(self, owner: FieldReader) -> tuple[BudgetLine, ...] | None:
        items = owner.items("budgets")
        if items is None:
            return None
        lines = []
        for index, node in enumerate(items):
            members = self._members(node, f"{owner.path}.budgets[{index}]".lstrip("."))
            members.refuse_others(("unit", "period", "limit", "each_session", "warn_at"))
            limit = members.number("limit")
            if limit is None:
                members.refuse("limit", "missing_value", "Write a whole number.")
                continue
            unit, period = members.text("unit") or "tokens", members.text("period") or "month"
            warn_at = members.number("warn_at")
            lines.append(
                BudgetLine(
                    unit,
                    period,
                    limit,
                    each_session=bool(members.flag("each_session")),
                    warn_at=WARN_AT if warn_at is None else warn_at,
                )
            )
        return tuple(lines)

    def _bindings(self, agent: FieldReader) -> tuple[WantedAgentServer, ...] | None:
        if not agent.has("servers"):
            return None
        found = []
        for server, line, node in agent.children("servers"):
            path = f"{agent.path}.servers.{make_visible(server, 64)}"
            members = self._members(node, path)
            members.refuse_others(("enabled", *SHARES))
            enabled = members.flag("enabled")
            found.append(
                WantedAgentServer(
                    server,
                    ConfigLocation(document=self._number, line=line, path=path),
                    enabled=enabled is not False,
                    **{name: members.list(name) for name in SHARES},
                )
            )
        return tuple(found)


def _list_omissions(entry: ImportEntry, place: ConfigLocation) -> Iterator[Problem]:
    """Yield a problem for each field that an import would ignore."""
    for notice in entry.notices:
        if notice.code == "left_out":
            yield InvalidInput(
                notice.detail,
                code="unknown_field",
                field=place.path,
                remedy="Correct the name, or leave the member away.",
            )
