"""The sandbox of stdio servers.

bubblewrap builds the file system from scratch: the system's programs and the server's own program,
read-only; a home of the server; and the folders configured for the server. `BONOBOT_VAR`, keys,
other organizations' folders and the home of the user that runs Bonobot are not included. The
sandbox has its own process and network namespaces. It reaches the network only through Bonobot's
egress proxy, which enforces the egress rules; database ports of the server are forwarded to it
(`forwarded_ports`).

Without a working sandbox the server isn't started (`sandbox_unavailable`), unless the installation
has only one organization.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bonobot.core.crypto.key_files import ensure_private_folder
from bonobot.core.i18n.messages import format_message
from bonobot.core.process_cache import compute_once
from mcp_servers.client import sandbox_modes
from mcp_servers.client.egress_proxy import ETC_FOLDER, HOSTS_FILE, EgressProxy
from mcp_servers.client.folder_rules import OpenFolders
from mcp_servers.client.sandbox_modes import Network, ServerSandboxUnavailable

# Files that programs need to start; below, those for name resolution.
ETC_NAMES = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types"),
    *("ca-certificates", "ca-certificates.conf", "nsswitch.conf"),
    # Certificates, but not the folders of private keys next to them.
    *("ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf"),
    *("pki/ca-trust", "pki/java", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf"),
    *("chromium.d", "fonts"),  # for browsers
)
NETWORK_ETC_NAMES = ("resolv.conf", "hosts", "gai.conf", "services", "protocols")
PROGRAMS = ("/opt/google/chrome",)  # programs that packages install outside /usr
TOP_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def build_system_arguments(*, network: bool) -> tuple[str, ...]:
    """Return the arguments for the system's programs, a new /proc and a minimal /dev."""
    etc = (*ETC_NAMES, *NETWORK_ETC_NAMES) if network else ETC_NAMES
    return (
        *("--ro-bind", "/usr", "/usr", *_iterate_top_folders()),
        *(word for name in etc for word in build_optional_bind(f"/etc/{name}")),
        *(word for path in PROGRAMS for word in build_optional_bind(path)),
        *("--proc", "/proc", *sandbox_modes.build_device_arguments()),
    )


def build_optional_bind(path: str) -> tuple[str, ...]:
    """Return the arguments that bind a path read-only if it exists."""
    return ("--ro-bind-try", path, path)


def _iterate_top_folders() -> Iterator[str]:
    """Yield the arguments for top-level program folders; links stay links."""
    for name in TOP_FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))


HOME = "/home/server"
# The egress proxy in the sandbox: its socket, and the loopback port forwarded to it.
EGRESS_SOCKET = "/run/bonobot/egress"
EGRESS_PORT = 3128
BRIDGE_SCRIPT = Path(__file__).with_name("sandbox_bridge.py")
# Browsers ignore `HTTP_PROXY`; managed policies set their proxy.
BROWSER_POLICIES = ("/etc/chromium/policies/managed", "/etc/opt/chrome/policies/managed")
BESIDE_BIN = ("lib", "pyvenv.cfg")
REMEDY = "Allow this user to make user and mount namespaces, or run the server elsewhere over HTTP."


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """The configuration of a sandbox.

    `home` is a folder of the server, created if missing. `folders` are writable and have the same
    path inside; `programs` are read-only, by default what the command needs according to its path.
    `hidden` folders are never shown, even within a shown one, except for the read-only `bundle`
    (its folder). `required` means that nothing is started without a working sandbox.
    `allow_private` lets the egress proxy connect to private addresses, but never to this machine.
    """

    home: str
    network: Network = "egress"
    folders: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    bundle: str = ""
    required: bool = True
    allow_private: bool = False

    def open_folders(self, cwd: str | None) -> OpenFolders:
        """Open the writable folders; raises `FolderReplaced`."""
        return OpenFolders((*self.folders, *((cwd,) if cwd else ())))

    def build_command_prefix(
        self,
        command: str,
        *,
        cwd: str | None,
        folders: OpenFolders,
        egress_proxy: EgressProxy | None,
    ) -> tuple[str, ...]:
        """Return the prefix of the command; raises `ServerSandboxUnavailable`.

        `folders` are those of `open_folders`, which the process inherits. `egress_proxy` is for
        the network `egress`. Blocks for up to 5 s the first time.
        """
        check_sandbox_works()
        ensure_private_folder(Path(self.home))
        shown_folders = (*self.folders, *((cwd,) if cwd else ()))
        hosts = egress_proxy.hosts if egress_proxy else HOSTS_FILE
        words = [*_build_base_arguments(self.network, hosts), "--bind", self.home, HOME]
        programs = self.programs or (*iterate_program_folders(command),)
        for path in programs:
            words += build_optional_bind(path)
        for path in shown_folders:
            words += ("--bind", folders.get_source_path(path), path)
        for path in self.hidden:
            if Path(path).is_dir() and any(
                _contains(folder, path) for folder in (*programs, *shown_folders)
            ):
                words += sandbox_modes.build_tmpfs_arguments(path)
        for path in shown_folders:  # again, for a folder within a hidden one
            if any(_contains(hidden, path) for hidden in self.hidden):
                words += ("--bind", folders.get_source_path(path), path)
        if self.bundle:
            words += ("--ro-bind", self.bundle, self.bundle)
        words += build_optional_bind(str(BRIDGE_SCRIPT))
        if egress_proxy:
            words += ("--ro-bind", egress_proxy.socket_path, EGRESS_SOCKET)
            for path in BROWSER_POLICIES:
                words += ("--ro-bind", str(ETC_FOLDER / "browser_policies"), path)
        words += ("--remount-ro", "/", "--chdir", cwd or HOME, "--")
        return (*words, *_build_bridge_arguments(egress_proxy))

    def build_environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return a child's environment in the sandbox."""
        sandbox_env = {**env, "HOME": HOME, "TMPDIR": "/tmp"}  # noqa: S108 - its own one
        if self.network == "egress":
            proxy = f"http://127.0.0.1:{EGRESS_PORT}"
            names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
            sandbox_env |= dict.fromkeys(names, proxy) | {"NODE_USE_ENV_PROXY": "1"}
        if self.bundle:  # it is read-only, so `uv run` needs another folder for packages
            sandbox_env["UV_PROJECT_ENVIRONMENT"] = f"{HOME}/.venvs/{Path(self.bundle).name}"
        return sandbox_env


def list_named_folders(values: Iterable[str], roots: Sequence[Path]) -> tuple[str, ...]:
    """Return the folders within `roots` in arguments, as paths or as `--option=path`.

    For a file, return its folder, as databases keep journals next to their file. Links are resolved
    first, so a link within the roots shows nothing outside.
    """
    real_roots = [root.resolve() for root in roots]
    paths = (_find_folder(part) for value in values for part in (value, value.partition("=")[2]))
    return tuple(
        dict.fromkeys(
            str(path)
            for path in paths
            if path and any(path.is_relative_to(root) for root in real_roots)
        )
    )


def _find_folder(value: str) -> Path | None:
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
        check_sandbox_works()
    except ServerSandboxUnavailable as problem:
        return problem
    return None


_verified: set[str] = set()


def check_sandbox_works() -> None:
    """Raise `ServerSandboxUnavailable` unless a sandbox works; failures are not cached."""
    if "works" in _verified:
        return
    if problem := sandbox_modes.find_sandbox_problem("bubblewrap", "none"):
        raise problem
    if failure := _try_sandbox(forbids_namespaces=False):
        raise ServerSandboxUnavailable(
            format_message("the sandbox doesn't work on this host: {said}", said=failure), REMEDY
        )
    _verified.add("works")


@compute_once
def can_forbid_namespaces() -> bool:
    """Return whether bubblewrap can also forbid nested namespaces; old ones can't. Blocks."""
    return not _try_sandbox(forbids_namespaces=True)


def _try_sandbox(*, forbids_namespaces: bool) -> str:
    words = [*build_namespace_arguments(network=False, forbids_namespaces=forbids_namespaces)]
    words += (
        *build_system_arguments(network=False),
        "--remount-ro",
        "/",
        "--",
        "/usr/bin/env",
        "true",
    )
    return sandbox_modes.try_command(words, {"PATH": os.defpath})


def _build_base_arguments(network: Network, hosts: Path) -> tuple[str, ...]:
    return (
        *build_namespace_arguments(
            network=network == "host", forbids_namespaces=can_forbid_namespaces()
        ),
        *build_system_arguments(network=network == "host"),
        *(() if network == "host" else ("--ro-bind", str(hosts), "/etc/hosts")),
        *sandbox_modes.build_tmpfs_arguments("/tmp"),  # noqa: S108
    )


def build_namespace_arguments(*, network: bool, forbids_namespaces: bool) -> tuple[str, ...]:
    """Return the first arguments of every sandbox: own namespaces, no privileges."""
    return (
        *(sandbox_modes.get_tool_path("setpriv"), "--pdeathsig", "KILL", "--"),
        *(sandbox_modes.get_tool_path("bwrap"), "--die-with-parent"),
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts"),
        *("--unshare-cgroup-try", "--cap-drop", "ALL", "--hostname", "sandbox"),
        *(("--disable-userns",) if forbids_namespaces else ()),
        *(() if network else ("--unshare-net",)),
    )


def _build_bridge_arguments(egress_proxy: EgressProxy | None) -> tuple[str, ...]:
    """Return the arguments of the bridge, which closes inherited descriptors and serves ports."""
    words = (sys.executable, "-I", "-S", str(BRIDGE_SCRIPT))
    if egress_proxy is None:
        return (*words, "--")
    forwarded = (f"{port.address}:{port.port}={port.target}" for port in egress_proxy.ports)
    return (*words, EGRESS_SOCKET, f"127.0.0.1:{EGRESS_PORT}", *forwarded, "--")


def iterate_program_folders(command: str) -> Iterator[str]:
    """Yield the folders of a program outside the system's: its own, its libraries, Python."""
    folders = [Path(command).parent, Path(command).resolve().parent]
    # `…/bin/npx` links to `…/lib/node_modules/npm/bin`, so the siblings of `bin` are needed too.
    # The same applies to a virtual environment, recognized by its `pyvenv.cfg`.
    for folder in [candidate for candidate in folders if candidate.name == "bin"]:
        folders += [folder.parent / name for name in BESIDE_BIN]
        if (folder.parent / "pyvenv.cfg").is_file():
            folders.append((folder / "python").resolve().parents[1])
    # `node_modules/.bin/program` needs the packages next to `.bin`.
    folders += [candidate.parent for candidate in folders if candidate.name == ".bin"]
    folders += [Path(sys.prefix), Path(sys.prefix).resolve(), Path(sys.base_prefix)]
    system = ("/usr", *(f"/{name}" for name in ("bin", "sbin", "lib", "lib64")))
    for path in dict.fromkeys(folders):
        if path != Path("/") and not any(_contains(candidate, str(path)) for candidate in system):
            yield str(path)


def _contains(folder: str, path: str) -> bool:
    return Path(path).is_relative_to(folder)
