"""The sandbox: a box of bubblewrap that holds the workspace and the system's programs, alone.

Nothing else of the host is in it: no home, no `/etc` but what programs need to start, no socket, no
other process, and no network unless it was granted. Nothing but the workspace and a small `/tmp`
can be written to. Where such a box can't be made, nothing is run: never in a weaker one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from agents.builtin_tools.workspaces import INSIDE
from bonobot.lib.sayings import say
from mcp_servers.connections import confinement
from mcp_servers.connections.confinement import Unavailable
from mcp_servers.connections.limits import Limits
from mcp_servers.connections.sandbox import namespace_words
from mcp_servers.connections.system_view import system_words

SCRATCH = 64 * 1024 * 1024  # bytes of /tmp
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",  # noqa: S108 - its own one
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}


@dataclass(frozen=True, kw_only=True)
class Box:
    """One box: the folder that is its workspace, where commands start, and what covers what.

    `covers` are files of ours that stand in the workspace in place of its own, read-only.
    """

    root: Path
    at: str = ""
    network: bool = False
    limits: Limits = field(default_factory=Limits)
    covers: Mapping[str, Path] = field(default_factory=dict)

    def words(self) -> tuple[str, ...]:
        """Return the words that go before a command. Blocks; raises `Unavailable`."""
        _require()
        if self.root.resolve() != self.root:
            raise Unavailable("the workspace leads elsewhere", "Attach the folder itself.")
        covers = [
            word
            for path, ours in self.covers.items()
            for word in ("--ro-bind", str(ours), f"{INSIDE}/{path}")
        ]
        start = f"{INSIDE}/{self.at}" if self.at else INSIDE
        return (
            *_box(self.network, alone=_alone()),
            *("--bind", str(self.root), INSIDE),
            *covers,
            *("--remount-ro", "/", "--chdir", start, "--"),
            *self.limits.prefix(),
        )


def fault() -> Unavailable | None:
    """Return why no box can be made here, with what would help; None where one can. Blocks."""
    try:
        _require()
    except Unavailable as problem:
        return problem
    return None


_seen: set[str] = set()


def _require() -> None:
    """Raise `Unavailable` unless a box has been seen to work; what failed is tried again."""
    if "works" in _seen:
        return
    if problem := confinement.fault("bubblewrap", "none"):
        raise problem
    for network in (False, True):
        if said := _trial(_box(network, alone=False)):
            raise Unavailable(
                say("the sandbox doesn't work here: {said}", said=said),
                "Allow this user to make user and mount namespaces, as for confined servers.",
            )
    _seen.add("works")


@cache
def _alone() -> bool:
    """Tell whether bubblewrap can also forbid namespaces within; old ones and some hosts can't."""
    return not _trial(_box(network=False, alone=True))


def _trial(words: tuple[str, ...]) -> str:
    """Return why a command can't be run in a box; "" when it can."""
    inside = ("--remount-ro", "/", "--", "/usr/bin/env", "true")
    return confinement.trial([*words, *inside], ENVIRONMENT)


def _box(network: bool, *, alone: bool) -> tuple[str, ...]:
    return (
        *namespace_words(network=network, forbids_namespaces=alone),
        *system_words(network=network),
        *("--size", str(SCRATCH), "--tmpfs", "/tmp"),  # noqa: S108
    )
