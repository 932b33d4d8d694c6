"""The sandbox of stdio servers.

bubblewrap builds the file system from scratch: the system's programs and the server's own program,
read-only; a home of the organization, with the caches of launchers; and the folders configured for
the server. `BONOBOT_VAR`, keys, other organizations' folders and the home of the user that runs
Bonobot are not included. The sandbox has its own process and network namespaces. It reaches the
network only through Bonobot's egress proxy, which enforces the egress rules; database ports of the
server are forwarded to it (`forwarded_ports`).

Without a working sandbox the server isn't started (`sandbox_unavailable`), unless the installation
has only one organization.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bonobot.core.crypto.key_files import ensure_private_folder
from bonobot.core.i18n.messages import format_message
from mcp_servers.client import sandbox_modes
from mcp_servers.client.egress_proxy import ETC, HOSTS, EgressProxy
from mcp_servers.client.open_folders import OpenFolders
from mcp_servers.client.sandbox_modes import Network, ServerSandboxUnavailable
from mcp_servers.client.system_view import bind_if_there, system_words

HOME = "/home/server"
SCRATCH_BYTES = 256 * 1024 * 1024  # size of /tmp, which is in memory
# The egress proxy in the sandbox: its socket, and the loopback port forwarded to it.
SOCKET = "/run/bonobot/egress"
PORT = 3128
BRIDGE = Path(__file__).with_name("sandbox_bridge.py")
# Browsers ignore `HTTP_PROXY`; managed policies set their proxy.
BROWSER_POLICIES = ("/etc/chromium/policies/managed", "/etc/opt/chrome/policies/managed")
BESIDE_BIN = ("lib", "pyvenv.cfg")
REMEDY = "Allow this user to make user and mount namespaces, or run the server elsewhere over HTTP."


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """The configuration of a sandbox.

    `home` is a folder of the organization, created if missing. `folders` are writable and have the
    same path inside; `programs` are read-only, by default what the command needs according to its
    path. `hidden` folders are never shown, even within a shown one. `required` means that nothing
    is started without a working sandbox. `allow_private` lets the egress proxy connect to private
    addresses, but never to this machine.
    """

    home: str
    network: Network = "egress"
    folders: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    required: bool = True
    allow_private: bool = False

    def open_folders(self, cwd: str | None) -> OpenFolders:
        """Open the writable folders; raises `FolderReplaced`."""
        return OpenFolders((*self.folders, *((cwd,) if cwd else ())))

    def words(
        self, command: str, *, cwd: str | None, folders: OpenFolders, way_out: EgressProxy | None
    ) -> tuple[str, ...]:
        """Return the prefix of the command; raises `ServerSandboxUnavailable`.

        `folders` are those of `open_folders`, which the process inherits. `egress_proxy` is for
        the network `egress`. Blocks for up to 5 s the first time.
        """
        require()
        ensure_private_folder(Path(self.home))
        shown = (*self.folders, *((cwd,) if cwd else ()))
        hosts = way_out.hosts if way_out else HOSTS
        words = [*_base(self.network, hosts), "--bind", self.home, HOME]
        programs = self.programs or (*program_folders(command),)
        for path in programs:
            words += bind_if_there(path)
        for path in shown:
            words += ("--bind", folders.source(path), path)
        for path in self.hidden:
            if Path(path).is_dir() and any(_holds(one, path) for one in (*programs, *shown)):
                words += ("--tmpfs", path)
        for path in shown:  # again, for a folder within a hidden one
            if any(_holds(hidden, path) for hidden in self.hidden):
                words += ("--bind", folders.source(path), path)
        words += bind_if_there(str(BRIDGE))
        if way_out:
            words += ("--ro-bind", way_out.path, SOCKET)
            for path in BROWSER_POLICIES:
                words += ("--ro-bind", str(ETC / "browser_policies"), path)
        words += ("--remount-ro", "/", "--chdir", cwd or HOME, "--")
        return (*words, *_bridge_words(way_out))

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return a child's environment in the sandbox."""
        inside = {**env, "HOME": HOME, "TMPDIR": "/tmp"}  # noqa: S108 - its own one
        if self.network == "egress":
            proxy = f"http://127.0.0.1:{PORT}"
            names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
            inside |= dict.fromkeys(names, proxy) | {"NODE_USE_ENV_PROXY": "1"}
        return inside


def folders_among(values: Iterable[str], roots: Sequence[Path]) -> tuple[str, ...]:
    """Return the folders within `roots` in arguments, as paths or as `--option=path`.

    For a file, return its folder, as databases keep journals next to their file. Links are resolved
    first, so a link within the roots shows nothing outside.
    """
    real_roots = [root.resolve() for root in roots]
    found = (_folder_of(part) for value in values for part in (value, value.partition("=")[2]))
    return tuple(
        dict.fromkeys(
            str(path)
            for path in found
            if path and any(path.is_relative_to(root) for root in real_roots)
        )
    )


def _folder_of(value: str) -> Path | None:
    """Return the existing folder at a path, or the folder of the file at it."""
    if not value.startswith("/") or "\x00" in value:
        return None
    try:
        path = Path(value).resolve()
        folder = path if path.is_dir() else path.parent
        return folder if folder.is_dir() else None
    except (OSError, ValueError):
        return None


def find_sandbox_fault() -> ServerSandboxUnavailable | None:
    """Return why sandboxes don't work here, with a remedy, or None. Blocks."""
    try:
        require()
    except ServerSandboxUnavailable as problem:
        return problem
    return None


_seen: set[str] = set()


def require() -> None:
    """Raise `ServerSandboxUnavailable` unless a sandbox works; failures are not cached."""
    if "works" in _seen:
        return
    if problem := sandbox_modes.find_sandbox_problem("bubblewrap", "none"):
        raise problem
    if said := _trial(forbids_namespaces=False):
        raise ServerSandboxUnavailable(
            format_message("the sandbox doesn't work here: {said}", said=said), REMEDY
        )
    _seen.add("works")


@cache
def forbids_namespaces() -> bool:
    """Return whether bubblewrap can also forbid nested namespaces; old ones can't. Blocks."""
    return not _trial(forbids_namespaces=True)


def _trial(*, forbids_namespaces: bool) -> str:
    words = [*namespace_words(network=False, forbids_namespaces=forbids_namespaces)]
    words += (*system_words(network=False), "--remount-ro", "/", "--", "/usr/bin/env", "true")
    return sandbox_modes.try_command(words, {"PATH": os.defpath})


def _base(network: Network, hosts: Path) -> tuple[str, ...]:
    return (
        *namespace_words(network=network == "host", forbids_namespaces=forbids_namespaces()),
        *system_words(network=network == "host"),
        *(() if network == "host" else ("--ro-bind", str(hosts), "/etc/hosts")),
        *("--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp"),  # noqa: S108
    )


def namespace_words(*, network: bool, forbids_namespaces: bool) -> tuple[str, ...]:
    """Return the first arguments of every sandbox: own namespaces, no privileges."""
    return (
        *(sandbox_modes.path_of("setpriv"), "--pdeathsig", "KILL", "--"),
        *(sandbox_modes.path_of("bwrap"), "--die-with-parent"),
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts"),
        *("--unshare-cgroup-try", "--cap-drop", "ALL", "--hostname", "sandbox"),
        *(("--disable-userns",) if forbids_namespaces else ()),
        *(() if network else ("--unshare-net",)),
    )


def _bridge_words(way_out: EgressProxy | None) -> tuple[str, ...]:
    """Return the arguments of the bridge, which closes inherited descriptors and serves ports."""
    words = (sys.executable, "-I", "-S", str(BRIDGE))
    if way_out is None:
        return (*words, "--")
    forwarded = (f"{one.address}:{one.port}={one.target}" for one in way_out.ports)
    return (*words, SOCKET, f"127.0.0.1:{PORT}", *forwarded, "--")


def program_folders(command: str) -> Iterator[str]:
    """Yield the folders of a program outside the system's: its own, its libraries, Python."""
    found = [Path(command).parent, Path(command).resolve().parent]
    # `…/bin/npx` links to `…/lib/node_modules/npm/bin`, so the siblings of `bin` are needed too.
    # The same applies to a virtual environment, recognized by its `pyvenv.cfg`.
    for folder in [one for one in found if one.name == "bin"]:
        found += [folder.parent / name for name in BESIDE_BIN]
        if (folder.parent / "pyvenv.cfg").is_file():
            found.append((folder / "python").resolve().parents[1])
    # `node_modules/.bin/program` needs the packages next to `.bin`.
    found += [one.parent for one in found if one.name == ".bin"]
    found += [Path(sys.prefix), Path(sys.prefix).resolve(), Path(sys.base_prefix)]
    system = ("/usr", *(f"/{name}" for name in ("bin", "sbin", "lib", "lib64")))
    for path in dict.fromkeys(found):
        if path != Path("/") and not any(_holds(one, str(path)) for one in system):
            yield str(path)


def _holds(folder: str, path: str) -> bool:
    return Path(path).is_relative_to(folder)
