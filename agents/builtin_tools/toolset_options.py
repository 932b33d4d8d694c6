"""Toolsets that people enable for an agent, and their options. Pure.

An agent has no toolset at first, whatever its policy says. Only platform administrators can set
options that reach beyond the workspace.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import re2

from agents.models.workspace_limits import USUAL_FILES, USUAL_MIB
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from mcp_servers.flow_labels import FlowLabel

MIB = 1024 * 1024
NOTES = "notes"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
MOST_HOSTS = 100
_HOST = re2.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|[0-9a-f:.]+|\*")

# These run programs, which require a sandbox.
SANDBOXED = frozenset({"git", "shell"})

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolsetOption:
    """An option of a toolset: a `flag`, a `number` or a list of `texts`.

    `minimum` and `maximum` bound a number. Only a platform administrator can set a `restricted`
    option to a value other than its default.
    """

    name: str
    title: str
    kind: str
    usual: Any
    about: str
    least: int = 0
    most: int = 0
    restricted: bool = False


@dataclass(frozen=True, slots=True)
class Toolset:
    """A group of tools; only a platform administrator can grant a `restricted` one."""

    name: str
    title: str
    about: str
    options: tuple[ToolsetOption, ...] = ()
    restricted: bool = False

    def option(self, name: str) -> ToolsetOption | None:
        """Return the option with this name, or None."""
        return next((one for one in self.options if one.name == name), None)

    @property
    def usual(self) -> dict[str, Any]:
        """The default values of the options."""
        return {one.name: one.usual for one in self.options}


_READ_ONLY = ToolsetOption(
    "read_only",
    format_message("Reading only"),
    "flag",
    False,
    format_message("Only tools that change nothing."),
)
_NETWORK = ToolsetOption(
    "network",
    format_message("Network"),
    "flag",
    False,
    format_message("Commands reach the network of this host, its own addresses too."),
    restricted=True,
)
KITS: dict[str, Toolset] = {
    kit.name: kit
    for kit in (
        Toolset(
            NOTES,
            format_message("Notes"),
            format_message("Keep and search what it wants to know in later sessions."),
        ),
        Toolset(
            "filesystem",
            format_message("Files and folders"),
            format_message("List, read, write, move and delete files."),
            (_READ_ONLY,),
        ),
        Toolset(
            "edit",
            format_message("Editing"),
            format_message("Change passages of a file, several at once or none."),
        ),
        Toolset(
            "search",
            format_message("Searching"),
            format_message("Find files by name and lines by what they say."),
        ),
        Toolset(
            "git",
            format_message("Git"),
            format_message("See and commit changes of a repository in the workspace."),
            (_READ_ONLY,),
        ),
        Toolset(
            "shell",
            format_message("Commands"),
            format_message("Run commands in a sandbox that holds the workspace alone."),
            (
                _NETWORK,
                ToolsetOption(
                    "time_s",
                    format_message("Time in seconds"),
                    "number",
                    60,
                    format_message("Seconds that a command may take."),
                    1,
                    600,
                ),
                ToolsetOption(
                    "memory_mib",
                    format_message("Memory in MiB"),
                    "number",
                    1024,
                    format_message("MiB that a process may write to."),
                    64,
                    16384,
                ),
                ToolsetOption(
                    "processes",
                    format_message("Processes"),
                    "number",
                    128,
                    format_message("Processes at the same time."),
                    8,
                    4096,
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
                    format_message("Hosts"),
                    "texts",
                    (),
                    format_message("Only these hosts (`*.example.com`); none: all."),
                ),
                ToolsetOption(
                    "methods",
                    format_message("Methods"),
                    "texts",
                    ("GET", "HEAD"),
                    format_message("The HTTP methods that it may use."),
                ),
                ToolsetOption(
                    "allow_private",
                    format_message("Private addresses"),
                    "flag",
                    False,
                    format_message("Private addresses, too."),
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

    kits: Mapping[str, Options] = field(default_factory=dict)
    folder: str = ""
    most_bytes: int = USUAL_MIB * MIB
    most_files: int = USUAL_FILES
    holds: tuple[FlowLabel, ...] = ()

    def has(self, kit: str, *, writes: bool) -> bool:
        """Return whether the agent has a toolset, with write access if `writes`."""
        options = self.kits.get(kit)
        return options is not None and not (writes and options.get("read_only"))

    def labels(self) -> tuple[FlowLabel, ...]:
        """Return the flow labels that a session gets by reading from the workspace."""
        own = (FlowLabel.PRIVATE_DATA,) if self.folder else ()
        return tuple(dict.fromkeys((*own, *self.holds)))


def check_kits(said: Any) -> dict[str, dict[str, Any]]:
    """Return toolsets as they are stored: by name, each with its non-default options.

    `value` is a list of names, or an object of names and options. Raises `InvalidInput`.
    """
    if isinstance(said, list | tuple) and all(isinstance(name, str) for name in said):
        said = {name: {} for name in said}
    if not isinstance(said, Mapping):
        raise InvalidInput(
            "It must be a list of names, or an object of names with their options.",
            field="builtin_tools",
            remedy="Write, for example, [filesystem, search].",
        )
    return {kit.name: options for kit, options in _clean_toolsets(said)}


def apply_defaults(stored: Mapping[str, Any]) -> dict[str, Options]:
    """Return stored toolsets with all their options; unknown ones are left out."""
    return {
        name: {**KITS[name].usual, **options} for name, options in stored.items() if name in KITS
    }


def list_restricted_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the changes that need a platform administrator, such as `fetch.allow_private`.

    Removing access doesn't need one.
    """
    was, is_now = apply_defaults(old), apply_defaults(new)
    found = []
    for name, options in is_now.items():
        kit, before = KITS[name], was.get(name)
        if kit.restricted and before is None:
            found.append(name)
        for option in kit.options:
            value, earlier = options[option.name], (before or kit.usual)[option.name]
            grants = value != earlier and value != option.usual
            if (option.restricted or (kit.restricted and _is_increase(value, earlier))) and grants:
                found.append(f"{name}.{option.name}")
    return found


def _is_increase(value: Any, earlier: Any) -> bool:
    return isinstance(value, int) and value > earlier


def _clean_toolsets(said: Mapping[str, Any]) -> Iterator[tuple[Toolset, dict[str, Any]]]:
    for name, options in said.items():
        kit = KITS.get(name)
        if kit is None:
            raise InvalidInput(
                format_message(
                    "There are no built-in tools {name!r} to switch on.", name=str(name)[:60]
                ),
                code="unknown_kit",
                field="builtin_tools",
                remedy=format_message("There are: {kits}.", kits=", ".join(KITS)),
            )
        if options in (None, True):
            options = {}
        if not isinstance(options, Mapping):
            raise _build_error(
                name, "It must be an object of options.", "Write {} for the usual ones."
            )
        yield kit, dict(_clean_options(kit, options))


def _clean_options(kit: Toolset, said: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in said.items():
        option = kit.option(name)
        if option is None:
            there = ", ".join(one.name for one in kit.options) or "none"
            raise _build_error(
                f"{kit.name}.{str(name)[:60]}",
                "There is no such option.",
                format_message("There are: {there}.", there=there),
            )
        found = _value(kit, option, value)
        if found != option.usual and found != list(option.usual if option.kind == "texts" else ()):
            yield name, found


def _value(kit: Toolset, option: ToolsetOption, value: Any) -> Any:
    at = f"{kit.name}.{option.name}"
    if option.kind == "flag" and isinstance(value, bool):
        return value
    if option.kind == "number" and isinstance(value, int) and not isinstance(value, bool):
        if option.least <= value <= option.most:
            return value
        bounds = f"{option.least:,} to {option.most:,}"
        raise _build_error(
            at,
            format_message("{value} is out of its bounds.", value=value),
            format_message("Write a number of {bounds}.", bounds=bounds),
        )
    if option.kind == "texts" and isinstance(value, list | tuple):
        return [_clean_text(at, option, one) for one in value[: MOST_HOSTS + 1]]
    kinds = {"flag": "true or false", "number": "a whole number", "texts": "a list of texts"}
    raise _build_error(
        at, format_message("It must be {kinds}.", kinds=kinds[option.kind]), "Change this option."
    )


def _clean_text(at: str, option: ToolsetOption, value: Any) -> str:
    text = str(value)
    if option.name == "methods" and text.upper() in METHODS:
        return text.upper()
    if option.name == "hosts" and len(text) < 254 and _HOST.fullmatch(text.lower()):
        return text.lower()
    remedy = (
        format_message("Use some of: {methods}.", methods=", ".join(METHODS))
        if option.name == "methods"
        else "Write host names, such as `docs.example.com` or `*.example.com`."
    )
    raise _build_error(at, format_message("{text!r} can't be used.", text=text[:80]), remedy)


def _build_error(at: str, why: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"`{at}`: {why}", field=f"builtin_tools.{at}", remedy=remedy)
