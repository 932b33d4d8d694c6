"""Toolsets that people enable for an agent, and their options.

A new agent has no toolset, regardless of its policy. Only platform administrators can set
options that reach beyond the workspace.
"""

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

import re2

from agents.models import Agent
from agents.models.agents import DEFAULT_WORKSPACE_FILES, DEFAULT_WORKSPACE_MIB
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, InvalidInput
from mcp_servers.flow_labels import FlowLabel, decode_labels

MIB = 1024 * 1024
NOTES_TOOLSET = "notes"
HTTP_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
MAX_TEXTS = 100
_HOST = re2.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|[0-9a-f:.]+|\*")

# These run programs, which require a sandbox.
SANDBOXED_TOOLSETS = frozenset({"git", "shell"})

OptionValues = Mapping[str, Any]


class ToolsetSpec(Protocol):
    """The fields of an agent's specification for built-in tools and workspace."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def builtin_tools(self) -> Any:
        """The toolsets, as `clean_toolsets` takes them."""

    @property
    def workspace_folder(self) -> str | None:
        """The attached folder."""

    @property
    def workspace_mib(self) -> int | None:
        """The size of the workspace in MiB."""

    @property
    def workspace_files(self) -> int | None:
        """The number of files in the workspace."""


@dataclass(frozen=True, slots=True)
class ToolsetOption:
    """An option of a toolset: a `flag`, a `number` or a list of `texts`.

    `minimum` and `maximum` bound a number. Only a platform administrator can set a `restricted`
    option to a value other than its default.
    """

    name: str
    title: str
    kind: str
    default: Any
    description: str
    minimum: int = 0
    maximum: int = 0
    restricted: bool = False


@dataclass(frozen=True, slots=True)
class Toolset:
    """A group of tools; only a platform administrator can grant a `restricted` one."""

    name: str
    title: str
    description: str
    options: tuple[ToolsetOption, ...] = ()
    restricted: bool = False

    def find_option(self, name: str) -> ToolsetOption | None:
        """Return the option with this name, or None."""
        return next((option for option in self.options if option.name == name), None)

    @property
    def defaults(self) -> dict[str, Any]:
        return {option.name: option.default for option in self.options}


_READ_ONLY = ToolsetOption(
    "read_only",
    title=format_message("Read-only"),
    kind="flag",
    default=False,
    description=format_message("Only tools that change nothing."),
)
_NETWORK = ToolsetOption(
    "network",
    title=format_message("Network"),
    kind="flag",
    default=False,
    description=format_message(
        "Commands can reach this host's network, including its own addresses."
    ),
    restricted=True,
)
TOOLSETS: dict[str, Toolset] = {
    toolset.name: toolset
    for toolset in (
        Toolset(
            NOTES_TOOLSET,
            format_message("Notes"),
            format_message("Save and search notes across sessions."),
        ),
        Toolset(
            "filesystem",
            format_message("Files and folders"),
            format_message("List, read, write, move, and delete files."),
            (_READ_ONLY,),
        ),
        Toolset(
            "edit",
            format_message("Editing"),
            format_message(
                "Change several passages of a file at once. If one doesn't match, nothing is "
                "changed."
            ),
        ),
        Toolset(
            "search",
            format_message("Search"),
            format_message("Find files by name and lines by content."),
        ),
        Toolset(
            "git",
            format_message("Git"),
            format_message("View and commit changes of a repository in the workspace."),
            (_READ_ONLY,),
        ),
        Toolset(
            "shell",
            format_message("Commands"),
            format_message("Run commands in a sandbox that contains only the workspace."),
            (
                _NETWORK,
                ToolsetOption(
                    "time_s",
                    title=format_message("Time (seconds)"),
                    kind="number",
                    default=60,
                    description=format_message("Maximum run time of a command, in seconds."),
                    minimum=1,
                    maximum=600,
                ),
                ToolsetOption(
                    "memory_mib",
                    title=format_message("Memory (MiB)"),
                    kind="number",
                    default=1024,
                    description=format_message("Writable memory per process, in MiB."),
                    minimum=64,
                    maximum=16384,
                ),
                ToolsetOption(
                    "processes",
                    title=format_message("Processes"),
                    kind="number",
                    default=128,
                    description=format_message("Maximum number of concurrent processes."),
                    minimum=8,
                    maximum=4096,
                ),
            ),
            restricted=True,
        ),
        Toolset(
            "fetch",
            format_message("Web pages"),
            format_message("Fetch pages and data over HTTP, from public addresses."),
            (
                ToolsetOption(
                    "hosts",
                    title=format_message("Hosts"),
                    kind="texts",
                    default=(),
                    description=format_message(
                        "Allowed hosts, such as `*.example.com`. Leave empty to allow all."
                    ),
                ),
                ToolsetOption(
                    "methods",
                    title=format_message("Methods"),
                    kind="texts",
                    default=("GET", "HEAD"),
                    description=format_message("Allowed HTTP methods."),
                ),
                ToolsetOption(
                    "allow_private",
                    title=format_message("Private addresses"),
                    kind="flag",
                    default=False,
                    description=format_message("Also allow private addresses."),
                    restricted=True,
                ),
            ),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class AgentToolsets:
    """An agent's toolsets with all their options, and its workspace.

    `folder` is the folder that a platform administrator attached; "" means the agent's own, which
    has a quota. `stored_labels` are the flow labels of the sessions that wrote to the workspace;
    sessions that read from it get them.
    """

    options_by_toolset: Mapping[str, OptionValues] = field(default_factory=dict)
    folder: str = ""
    max_bytes: int = DEFAULT_WORKSPACE_MIB * MIB
    max_files: int = DEFAULT_WORKSPACE_FILES
    stored_labels: tuple[FlowLabel, ...] = ()

    def has_toolset(self, toolset_name: str, *, writes: bool) -> bool:
        """Return whether the agent has a toolset, with write access if `writes`."""
        options = self.options_by_toolset.get(toolset_name)
        return options is not None and not (writes and options.get("read_only"))

    def list_labels(self) -> tuple[FlowLabel, ...]:
        """Return the flow labels that a session gets by reading from the workspace."""
        folder_labels = (FlowLabel.PRIVATE_DATA,) if self.folder else ()
        return tuple(dict.fromkeys((*folder_labels, *self.stored_labels)))


def clean_toolsets(value: Any) -> dict[str, dict[str, Any]]:
    """Return toolsets as they are stored: by name, each with its non-default options.

    `value` is a list of names, or an object of names and options. Raises `InvalidInput`.
    """
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        value = {name: {} for name in value}
    if not isinstance(value, Mapping):
        raise InvalidInput(
            "It must be a list of names, or an object that maps names to options.",
            field="builtin_tools",
            remedy="Use, for example, [filesystem, search].",
        )
    return {toolset.name: options for toolset, options in _iterate_cleaned_toolsets(value)}


def apply_defaults(stored_options: Mapping[str, Any]) -> dict[str, OptionValues]:
    """Return stored toolsets with all their options; unknown ones are left out."""
    return {
        name: {**TOOLSETS[name].defaults, **options}
        for name, options in stored_options.items()
        if name in TOOLSETS
    }


def list_restricted_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the changes that need a platform administrator, such as `fetch.allow_private`.

    Removing access doesn't need one.
    """
    old_options, new_options = apply_defaults(old), apply_defaults(new)
    changes = []
    for name, options in new_options.items():
        toolset, previous = TOOLSETS[name], old_options.get(name)
        if toolset.restricted and previous is None:
            changes.append(name)
        for option in toolset.options:
            value, previous_value = (
                options[option.name],
                (previous or toolset.defaults)[option.name],
            )
            is_grant = value != previous_value and value != option.default
            if (
                option.restricted or (toolset.restricted and _is_increase(value, previous_value))
            ) and is_grant:
                changes.append(f"{name}.{option.name}")
    return changes


def _is_increase(value: Any, previous: Any) -> bool:
    return isinstance(value, int) and value > previous


def _iterate_cleaned_toolsets(
    toolsets: Mapping[str, Any],
) -> Iterator[tuple[Toolset, dict[str, Any]]]:
    for name, options in toolsets.items():
        toolset = TOOLSETS.get(name)
        if toolset is None:
            raise InvalidInput(
                format_message("The built-in tools {name!r} don't exist.", name=str(name)[:60]),
                code="unknown_toolset",
                field="builtin_tools",
                remedy=format_message("Available: {toolsets}.", toolsets=", ".join(TOOLSETS)),
            )
        if options in (None, True):
            options = {}
        if not isinstance(options, Mapping):
            raise _build_option_error(
                name, "It must be an object of options.", "Use {} for the defaults."
            )
        yield toolset, dict(_iterate_changed_options(toolset, options))


def _iterate_changed_options(
    toolset: Toolset, values: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        option = toolset.find_option(name)
        if option is None:
            known_names = ", ".join(known_option.name for known_option in toolset.options) or "none"
            raise _build_option_error(
                f"{toolset.name}.{str(name)[:60]}",
                "The option doesn't exist.",
                format_message("Available: {names}.", names=known_names),
            )
        cleaned = _clean_option_value(toolset, option, value)
        if cleaned != option.default and cleaned != list(
            option.default if option.kind == "texts" else ()
        ):
            yield name, cleaned


def _clean_option_value(toolset: Toolset, option: ToolsetOption, value: Any) -> Any:
    path = f"{toolset.name}.{option.name}"
    if option.kind == "flag" and isinstance(value, bool):
        return value
    if option.kind == "number" and isinstance(value, int) and not isinstance(value, bool):
        if option.minimum <= value <= option.maximum:
            return value
        allowed_range = f"{option.minimum:,} to {option.maximum:,}"
        raise _build_option_error(
            path,
            format_message("{value} is out of range.", value=value),
            format_message("Use a number from {bounds}.", bounds=allowed_range),
        )
    if option.kind == "texts" and isinstance(value, list | tuple):
        if len(value) > MAX_TEXTS:
            raise _build_option_error(
                path,
                "The list is too long.",
                format_message("Use at most {limit} entries.", limit=MAX_TEXTS),
            )
        return [_clean_text(path, option, item) for item in value]
    kind_labels = {"flag": "true or false", "number": "an integer", "texts": "a list of strings"}
    raise _build_option_error(
        path,
        format_message("It must be {kinds}.", kinds=kind_labels[option.kind]),
        "Change this option.",
    )


def _clean_text(path: str, option: ToolsetOption, value: Any) -> str:
    text = str(value)
    if option.name == "methods" and text.upper() in HTTP_METHODS:
        return text.upper()
    if option.name == "hosts" and len(text) < 254 and _HOST.fullmatch(text.lower()):
        return text.lower()
    remedy = (
        format_message("Use one or more of: {values}.", values=", ".join(HTTP_METHODS))
        if option.name == "methods"
        else "Use host names, such as `docs.example.com` or `*.example.com`."
    )
    raise _build_option_error(path, format_message("{text!r} isn't valid.", text=text[:80]), remedy)


def _build_option_error(path: str, detail: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"`{path}`: {detail}", field=f"builtin_tools.{path}", remedy=remedy)


Spec = TypeVar("Spec", bound=ToolsetSpec)


def clean_toolset_spec(principal: Principal, agent: Agent, spec: Spec) -> Spec:
    """Return the specification with its toolsets as they are stored.

    Raises `InvalidInput`, or `Forbidden` (`platform_admin_only`) for newly granted access beyond
    the workspace.
    """
    if spec.builtin_tools is not None:
        toolset_options = clean_toolsets(spec.builtin_tools)
        if restricted_changes := list_restricted_changes(agent.builtin_tools, toolset_options):
            require_host_access(
                principal,
                f"builtin_tools.{restricted_changes[0]}",
                format_message("grant `{granted}`", granted=restricted_changes[0]),
            )
        spec = replace(spec, builtin_tools=toolset_options)
    return spec


def build_toolbox(agent: Agent) -> AgentToolsets:
    """Return the toolsets and workspace limits of an agent."""
    return AgentToolsets(
        options_by_toolset=apply_defaults(agent.builtin_tools),
        folder=agent.workspace_folder,
        max_bytes=agent.workspace_mib * MIB,
        max_files=agent.workspace_files,
        stored_labels=decode_labels(agent.workspace_labels),
    )


def require_host_access(principal: Principal, field: str, action: str) -> None:
    if not principal.may(Action.GRANT_HOST_ACCESS):
        raise Forbidden(
            format_message("Only a platform administrator can {what}.", what=action),
            code="platform_admin_only",
            field=field,
            rule="platform_admin",
            remedy="Contact a platform administrator.",
        )
