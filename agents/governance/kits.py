"""Kits: the built-in tools that an agent gets only where somebody switches them on. Pure (E3).

A kit is a handful of tools that belong together. An agent has none at first, whatever its policy
says; each may have options, and those that reach beyond the workspace are for platform
administrators.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import re2

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from mcp_servers.labels import Label

MIB = 1024 * 1024
NOTES = "notes"
USUAL_MIB = 256
USUAL_FILES = 10_000
MOST_FILES = 100_000  # counting them takes about a second
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
MOST_HOSTS = 100
_HOST = re2.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|[0-9a-f:.]+|\*")

# What these do is done by programs, which run in a sandbox or not at all.
SANDBOXED = frozenset({"git", "shell"})

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a kit: a `flag`, a `number` within its bounds, or a list of `texts`.

    Programs know it by its `name`, people by its `title`. `most` and `least` bound a number. Who
    sets one that is `restricted` to something else than its usual value, or changes it, is a
    platform administrator.
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
class Kit:
    """A handful of tools; only a platform administrator grants one that is `restricted`."""

    name: str
    title: str
    about: str
    options: tuple[Option, ...] = ()
    restricted: bool = False

    def option(self, name: str) -> Option | None:
        """Return an option by its name."""
        return next((one for one in self.options if one.name == name), None)

    @property
    def usual(self) -> dict[str, Any]:
        """The options as they are where nobody says anything."""
        return {one.name: one.usual for one in self.options}


_READ_ONLY = Option(
    "read_only", say("Reading only"), "flag", False, say("Only tools that change nothing.")
)
_NETWORK = Option(
    "network",
    say("Network"),
    "flag",
    False,
    say("Commands reach the network of this host, its own addresses too."),
    restricted=True,
)
KITS: dict[str, Kit] = {
    kit.name: kit
    for kit in (
        Kit(NOTES, say("Notes"), say("Keep and search what it wants to know in later sessions.")),
        Kit(
            "filesystem",
            say("Files and folders"),
            say("List, read, write, move and delete files."),
            (_READ_ONLY,),
        ),
        Kit("edit", say("Editing"), say("Change passages of a file, several at once or none.")),
        Kit("search", say("Searching"), say("Find files by name and lines by what they say.")),
        Kit(
            "git",
            say("Git"),
            say("See and commit changes of a repository in the workspace."),
            (_READ_ONLY,),
        ),
        Kit(
            "shell",
            say("Commands"),
            say("Run commands in a sandbox that holds the workspace alone."),
            (
                _NETWORK,
                Option(
                    "time_s",
                    say("Time in seconds"),
                    "number",
                    60,
                    say("Seconds that a command may take."),
                    1,
                    600,
                ),
                Option(
                    "memory_mib",
                    say("Memory in MiB"),
                    "number",
                    1024,
                    say("MiB that a process may write to."),
                    64,
                    16384,
                ),
                Option(
                    "processes",
                    say("Processes"),
                    "number",
                    128,
                    say("Processes at the same time."),
                    8,
                    4096,
                ),
            ),
            restricted=True,
        ),
        Kit(
            "fetch",
            say("Web pages"),
            say("Fetch pages and data over HTTP, from public addresses."),
            (
                Option(
                    "hosts",
                    say("Hosts"),
                    "texts",
                    (),
                    say("Only these hosts (`*.example.com`); none: all."),
                ),
                Option(
                    "methods",
                    say("Methods"),
                    "texts",
                    ("GET", "HEAD"),
                    say("The HTTP methods that it may use."),
                ),
                Option(
                    "allow_private",
                    say("Private addresses"),
                    "flag",
                    False,
                    say("Private addresses, too."),
                    restricted=True,
                ),
            ),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What of the built-in tools an agent has: kits with all their options, and its workspace.

    `folder` is one that a platform administrator attached, else the workspace is the agent's own,
    with a quota. `holds` are the labels of the sessions that wrote to it: a later session that
    reads there gets them, as if it had seen what they saw.
    """

    kits: Mapping[str, Options] = field(default_factory=dict)
    folder: str = ""
    most_bytes: int = USUAL_MIB * MIB
    most_files: int = USUAL_FILES
    holds: tuple[Label, ...] = ()

    def has(self, kit: str, *, writes: bool) -> bool:
        """Tell whether the agent has a kit, also to change something with it."""
        options = self.kits.get(kit)
        return options is not None and not (writes and options.get("read_only"))

    def labels(self) -> tuple[Label, ...]:
        """Return what a session gets that reads in the workspace."""
        own = (Label.PRIVATE_DATA,) if self.folder else ()
        return tuple(dict.fromkeys((*own, *self.holds)))


def check_kits(said: Any) -> dict[str, dict[str, Any]]:
    """Return kits as they are stored: by name, each with the options that differ from the usual.

    `said` is a list of names, or an object of names and options. Raises `Invalid`, with the field.
    """
    if isinstance(said, list | tuple) and all(isinstance(name, str) for name in said):
        said = {name: {} for name in said}
    if not isinstance(said, Mapping):
        raise Invalid(
            "It must be a list of names, or an object of names with their options.",
            field="builtin_tools",
            remedy="Write, for example, [filesystem, search].",
        )
    return {kit.name: options for kit, options in _checked(said)}


def completed(stored: Mapping[str, Any]) -> dict[str, Options]:
    """Return stored kits with all their options; what is no kit (any more) is left out."""
    return {
        name: {**KITS[name].usual, **options} for name, options in stored.items() if name in KITS
    }


def restricted_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what only a platform administrator may change so: `shell`, `fetch.allow_private`.

    Taking something away is for everybody who may change the agent.
    """
    was, is_now = completed(old), completed(new)
    found = []
    for name, options in is_now.items():
        kit, before = KITS[name], was.get(name)
        if kit.restricted and before is None:
            found.append(name)
        for option in kit.options:
            value, earlier = options[option.name], (before or kit.usual)[option.name]
            grants = value != earlier and value != option.usual
            if (option.restricted or (kit.restricted and _raises(value, earlier))) and grants:
                found.append(f"{name}.{option.name}")
    return found


def _raises(value: Any, earlier: Any) -> bool:
    return isinstance(value, int) and value > earlier


def _checked(said: Mapping[str, Any]) -> Iterator[tuple[Kit, dict[str, Any]]]:
    for name, options in said.items():
        kit = KITS.get(name)
        if kit is None:
            raise Invalid(
                say("There are no built-in tools {name!r} to switch on.", name=str(name)[:60]),
                code="unknown_kit",
                field="builtin_tools",
                remedy=say("There are: {kits}.", kits=", ".join(KITS)),
            )
        if options in (None, True):
            options = {}
        if not isinstance(options, Mapping):
            raise _wrong(name, "It must be an object of options.", "Write {} for the usual ones.")
        yield kit, dict(_options(kit, options))


def _options(kit: Kit, said: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in said.items():
        option = kit.option(name)
        if option is None:
            there = ", ".join(one.name for one in kit.options) or "none"
            raise _wrong(
                f"{kit.name}.{str(name)[:60]}",
                "There is no such option.",
                say("There are: {there}.", there=there),
            )
        found = _value(kit, option, value)
        if found != option.usual and found != list(option.usual if option.kind == "texts" else ()):
            yield name, found


def _value(kit: Kit, option: Option, value: Any) -> Any:
    at = f"{kit.name}.{option.name}"
    if option.kind == "flag" and isinstance(value, bool):
        return value
    if option.kind == "number" and isinstance(value, int) and not isinstance(value, bool):
        if option.least <= value <= option.most:
            return value
        bounds = f"{option.least:,} to {option.most:,}"
        raise _wrong(
            at,
            say("{value} is out of its bounds.", value=value),
            say("Write a number of {bounds}.", bounds=bounds),
        )
    if option.kind == "texts" and isinstance(value, list | tuple):
        return [_text(at, option, one) for one in value[: MOST_HOSTS + 1]]
    kinds = {"flag": "true or false", "number": "a whole number", "texts": "a list of texts"}
    raise _wrong(at, say("It must be {kinds}.", kinds=kinds[option.kind]), "Change this option.")


def _text(at: str, option: Option, value: Any) -> str:
    text = str(value)
    if option.name == "methods" and text.upper() in METHODS:
        return text.upper()
    if option.name == "hosts" and len(text) < 254 and _HOST.fullmatch(text.lower()):
        return text.lower()
    remedy = (
        say("Use some of: {methods}.", methods=", ".join(METHODS))
        if option.name == "methods"
        else "Write host names, such as `docs.example.com` or `*.example.com`."
    )
    raise _wrong(at, say("{text!r} can't be used.", text=text[:80]), remedy)


def _wrong(at: str, why: str, remedy: str) -> Invalid:
    return Invalid(f"`{at}`: {why}", field=f"builtin_tools.{at}", remedy=remedy)
