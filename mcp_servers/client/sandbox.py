"""The sandbox of stdio servers.

bubblewrap builds the file system from scratch: the system's programs and the server's own program,
read-only; a home of the server; and the folders configured for the server. `BONOBOT_VAR`, keys,
other organizations' folders and the home of the user that runs Bonobot are not included. The
sandbox has its own process and network namespaces. It reaches the network only through Bonobot's
egress proxy, which enforces the egress rules; database ports of the server are forwarded to it
(`forwarded_ports`).

Without a working sandbox the server isn't started (`sandbox_unavailable`), unless the installation
has only one organization.

`Sandbox` is this one, `ServerSandbox` a mode that an administrator configures for one server. A
configured mode is a requirement: the server isn't started if it doesn't work here. Success is
cached; a failure is tried again at each start, as it may have been fixed.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bonobot.core.crypto.key_files import ensure_private_folder
from bonobot.core.i18n.messages import format_message
from bonobot.core.process_cache import compute_once
from mcp_servers.client.egress_proxy import ETC_FOLDER, HOSTS_FILE, EgressProxy
from mcp_servers.client.folder_rules import OpenFolders

Kind = Literal["none", "namespaces", "bubblewrap"]
Network = Literal["host", "egress", "none"]

TRIAL_TIMEOUT_S = 5.0
LOOPBACK_SCRIPT = Path(__file__).with_name("sandbox_loopback.py")
PACKAGES_BY_TOOL = {"setpriv": "util-linux", "unshare": "util-linux", "bwrap": "bubblewrap"}
NAMESPACE_SYSCTLS = (
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ("user/max_user_namespaces", "0", "10000"),
)
SYSCTL_FOLDER = Path("/proc/sys")
# A file system in memory counts towards no limit of a process: without a size, it could take half
# of the machine's memory.
TMPFS_BYTES = 256 * 1024 * 1024
SHARED_MEMORY_BYTES = 64 * 1024 * 1024
RESOLVER_FOLDER = "/run/systemd/resolve"  # /etc/resolv.conf often links to it
_working: set[tuple[Kind, Network]] = set()
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
HOME = "/home/server"
# The egress proxy in the sandbox: its socket, and the loopback port forwarded to it.
EGRESS_SOCKET = "/run/bonobot/egress"
EGRESS_PORT = 3128
# Browsers ignore `HTTP_PROXY`; managed policies set their proxy.
BROWSER_POLICIES = ("/etc/chromium/policies/managed", "/etc/opt/chrome/policies/managed")
BESIDE_BIN = ("lib", "pyvenv.cfg")
REMEDY = "Allow this user to make user and mount namespaces, or run the server elsewhere over HTTP."
_verified: set[str] = set()


class ServerSandboxUnavailable(Exception):
    """This sandbox mode doesn't work here; `remedy` names the missing package or setting."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


@dataclass(frozen=True, kw_only=True)
class ServerSandbox:
    """A sandbox mode. `hidden` folders, such as our keys, are invisible with bubblewrap.

    `namespaces`: own processes, mounts and users, no privileges; the server sees no other process,
    and everything that it started dies with Bonobot. `bubblewrap`: additionally a read-only file
    system with an empty home and /tmp; only its working folder is writable.
    """

    kind: Kind = "none"
    network: Network = "host"
    hidden: tuple[str, ...] = ()

    def build_command_prefix(self, command: str, *, home: str, cwd: str | None) -> tuple[str, ...]:
        """Return the prefix of `command`; raises `ServerSandboxUnavailable`.

        Blocks for up to 5 s the first time.
        """
        _check_works(self.kind, self.network)
        if self.kind == "namespaces":
            return _build_namespace_prefix(self.network)
        return _build_bubblewrap_prefix(self, command, home=home, cwd=cwd)


NO_SANDBOX = ServerSandbox()


def find_sandbox_problem(kind: Kind, network: Network = "host") -> ServerSandboxUnavailable | None:
    """Return why this sandbox doesn't work here, or None. Blocks."""
    try:
        _check_works(kind, network)
    except ServerSandboxUnavailable as problem:
        return problem
    return None


def _check_works(kind: Kind, network: Network) -> None:
    """Raise `ServerSandboxUnavailable` unless this kind works."""
    if (kind, network) in _working:
        return
    if sys.platform != "linux":
        raise ServerSandboxUnavailable(
            format_message("`{kind}` works only on Linux", kind=kind), "Run this server on Linux."
        )
    tools = ("setpriv", "unshare") if kind == "namespaces" else ("setpriv", "bwrap")
    for tool in tools:
        if shutil.which(tool) is None:
            package = PACKAGES_BY_TOOL[tool]
            raise ServerSandboxUnavailable(
                format_message("`{tool}` isn't installed", tool=tool),
                f"Install the package `{package}`.",
            )
    if kind == "namespaces":
        prefix = _build_namespace_prefix(network)
    else:
        trial_sandbox = ServerSandbox(kind=kind, network=network)
        prefix = _build_bubblewrap_prefix(
            trial_sandbox, get_tool_path("setpriv"), home="", cwd=None
        )
    if failure := try_command([*prefix, get_tool_path("setpriv"), "--version"]):
        raise ServerSandboxUnavailable(
            format_message(
                "`{kind}` doesn't work on this machine: {error}", kind=kind, error=failure
            ),
            _build_remedy(),
        )
    _working.add((kind, network))


def try_command(command_line: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Run a command; return why it failed, or "". Blocks."""
    try:
        outcome = subprocess.run(  # noqa: S603 - fixed words
            command_line, capture_output=True, timeout=TRIAL_TIMEOUT_S, check=False, env=env
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    if outcome.returncode == 0:
        return ""
    error_lines = outcome.stderr.decode("utf-8", "replace").strip().splitlines()
    return error_lines[-1][:200] if error_lines else f"status {outcome.returncode}"


def build_tmpfs_arguments(path: str, size: int = TMPFS_BYTES) -> tuple[str, ...]:
    """Return bubblewrap's arguments for an empty file system in memory; `size` is in bytes."""
    return ("--size", str(size), "--tmpfs", path)


def build_device_arguments() -> tuple[str, ...]:
    """Return bubblewrap's arguments for a minimal /dev with writable shared memory only."""
    shared_memory = build_tmpfs_arguments("/dev/shm", SHARED_MEMORY_BYTES)  # noqa: S108
    return ("--dev", "/dev", *shared_memory, "--remount-ro", "/dev")


def _build_remedy() -> str:
    for name, refusing, allowing in NAMESPACE_SYSCTLS:
        try:
            value = (SYSCTL_FOLDER / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if value == refusing:
            return f"Allow user namespaces: `sysctl {name.replace('/', '.')}={allowing}`."
    return (
        "Allow this user to make user namespaces; in a container, let it run with a seccomp "
        "profile that permits `unshare` and `mount`."
    )


def _build_namespace_prefix(network: Network) -> tuple[str, ...]:
    setpriv = get_tool_path("setpriv")
    without_network = (
        ("--net", "--", sys.executable, "-I", "-S", str(LOOPBACK_SCRIPT))
        if network == "none"
        else ("--",)
    )
    return (
        *(setpriv, "--pdeathsig", "KILL", "--"),
        *(get_tool_path("unshare"), "--user", "--map-current-user", "--keep-caps", "--pid"),
        *("--mount-proc", "--fork", "--kill-child=SIGKILL", *without_network),
        # The owner of a namespace may undo its mounts, so the command's capabilities are dropped.
        *(setpriv, "--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all"),
        *("--bounding-set=-all", "--"),
    )


def _build_bubblewrap_prefix(
    sandbox: ServerSandbox, command: str, *, home: str, cwd: str | None
) -> tuple[str, ...]:
    arguments = [
        *(
            get_tool_path("setpriv"),
            "--pdeathsig",
            "KILL",
            "--",
            get_tool_path("bwrap"),
            "--die-with-parent",
        ),
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts"),
        *("--unshare-cgroup-try", "--cap-drop", "ALL"),
        *(("--unshare-net",) if sandbox.network == "none" else ()),
        *("--ro-bind", "/", "/", *build_device_arguments(), "--proc", "/proc"),
    ]
    # Sockets in /run and /tmp, such as those of databases and Docker, would bypass the sandbox.
    empty = [path for path in ("/tmp", "/run", home) if _is_folder(path)]  # noqa: S108
    for path in empty:
        arguments += build_tmpfs_arguments(path)
    if sandbox.network == "host":
        arguments += ["--ro-bind-try", RESOLVER_FOLDER, RESOLVER_FOLDER]
    for path in _iterate_needed_folders(command):
        if any(_contains(folder, path) for folder in empty):
            arguments += ["--ro-bind-try", path, path]
    return (*arguments, *_iterate_folder_arguments(sandbox.hidden, cwd), "--")


def _iterate_folder_arguments(hidden: tuple[str, ...], cwd: str | None) -> Iterator[str]:
    """Yield the arguments that hide our own folders and bind the server's, in mount order."""
    existing = [path for path in hidden if _is_folder(path)]
    for path in existing:
        yield from build_tmpfs_arguments(path)
    if cwd is None or not _is_folder(cwd):
        yield from ("--chdir", "/tmp")  # noqa: S108 - an empty one of its own
        return
    folder = str(Path(cwd).absolute())
    yield from ("--bind", folder, folder, "--chdir", folder)
    for path in existing:
        if _contains(folder, path):
            yield from build_tmpfs_arguments(path)


def _iterate_needed_folders(command: str) -> Iterator[str]:
    """Yield the folders that a program under an emptied folder still needs."""
    yield str(Path(command).parent)
    yield str(Path(command).resolve().parent)
    yield from dict.fromkeys((sys.prefix, sys.base_prefix))


def _is_folder(path: str) -> bool:
    return bool(path) and path != "/" and Path(path).is_dir()


def get_tool_path(tool: str) -> str:
    """Return the path of a tool, by our own PATH rather than the child's."""
    return shutil.which(tool) or tool


def build_system_arguments(*, network: bool) -> tuple[str, ...]:
    """Return the arguments for the system's programs, a new /proc and a minimal /dev."""
    etc = (*ETC_NAMES, *NETWORK_ETC_NAMES) if network else ETC_NAMES
    return (
        *("--ro-bind", "/usr", "/usr", *_iterate_top_folders()),
        *(word for name in etc for word in build_optional_bind(f"/etc/{name}")),
        *(word for path in PROGRAMS for word in build_optional_bind(path)),
        *("--proc", "/proc", *build_device_arguments()),
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


BRIDGE_SCRIPT = Path(__file__).with_name("sandbox_bridge.py")


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
        arguments = [*_build_base_arguments(self.network, hosts, folders.mode_filter)]
        arguments += ["--bind", self.home, HOME]
        programs = self.programs or (*iterate_program_folders(command),)
        for path in programs:
            arguments += build_optional_bind(path)
        for path in shown_folders:
            arguments += ("--bind", folders.get_source_path(path), path)
        for path in self.hidden:
            if Path(path).is_dir() and any(
                _contains(folder, path) for folder in (*programs, *shown_folders)
            ):
                arguments += build_tmpfs_arguments(path)
        for path in shown_folders:  # again, for a folder within a hidden one
            if any(_contains(hidden, path) for hidden in self.hidden):
                arguments += ("--bind", folders.get_source_path(path), path)
        if self.bundle:
            arguments += ("--ro-bind", self.bundle, self.bundle)
        arguments += build_optional_bind(str(BRIDGE_SCRIPT))
        if egress_proxy:
            arguments += ("--ro-bind", egress_proxy.socket_path, EGRESS_SOCKET)
            for path in BROWSER_POLICIES:
                arguments += ("--ro-bind", str(ETC_FOLDER / "browser_policies"), path)
        arguments += ("--remount-ro", "/", "--chdir", cwd or HOME, "--")
        return (*arguments, *_build_bridge_arguments(egress_proxy))

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


def check_sandbox_works() -> None:
    """Raise `ServerSandboxUnavailable` unless a sandbox works; failures are not cached."""
    if "works" in _verified:
        return
    if problem := find_sandbox_problem("bubblewrap", "none"):
        raise problem
    if failure := _try_sandbox(forbids_namespaces=False):
        raise ServerSandboxUnavailable(
            format_message("the sandbox doesn't work on this host: {error}", error=failure), REMEDY
        )
    _verified.add("works")


@compute_once
def can_forbid_namespaces() -> bool:
    """Return whether bubblewrap can also forbid nested namespaces; old ones can't. Blocks."""
    return not _try_sandbox(forbids_namespaces=True)


def _try_sandbox(*, forbids_namespaces: bool) -> str:
    arguments = [*build_namespace_arguments(network=False, forbids_namespaces=forbids_namespaces)]
    arguments += (
        *build_system_arguments(network=False),
        "--remount-ro",
        "/",
        "--",
        "/usr/bin/env",
        "true",
    )
    return try_command(arguments, {"PATH": os.defpath})


def _build_base_arguments(
    network: Network, hosts: Path, mode_filter: int | None
) -> tuple[str, ...]:
    return (
        *build_namespace_arguments(
            network=network == "host",
            forbids_namespaces=can_forbid_namespaces(),
            mode_filter=mode_filter,
        ),
        *build_system_arguments(network=network == "host"),
        *(() if network == "host" else ("--ro-bind", str(hosts), "/etc/hosts")),
        *build_tmpfs_arguments("/tmp"),  # noqa: S108
    )


def build_namespace_arguments(
    *, network: bool, forbids_namespaces: bool, mode_filter: int | None = None
) -> tuple[str, ...]:
    """Return the first arguments of every sandbox: own namespaces, no privileges.

    `mode_filter` is a descriptor of `open_mode_filter` that the process inherits.
    """
    return (
        *(get_tool_path("setpriv"), "--pdeathsig", "KILL", "--"),
        *(get_tool_path("bwrap"), "--die-with-parent"),
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts"),
        *("--unshare-cgroup-try", "--cap-drop", "ALL", "--hostname", "sandbox"),
        *(("--disable-userns",) if forbids_namespaces else ()),
        *(() if network else ("--unshare-net",)),
        *(() if mode_filter is None else ("--seccomp", str(mode_filter))),
    )


def _build_bridge_arguments(egress_proxy: EgressProxy | None) -> tuple[str, ...]:
    """Return the arguments of the bridge, which closes inherited descriptors and serves ports."""
    command_line = (sys.executable, "-I", "-S", str(BRIDGE_SCRIPT))
    if egress_proxy is None:
        return (*command_line, "--")
    forwarded = (f"{port.address}:{port.port}={port.target}" for port in egress_proxy.ports)
    return (*command_line, EGRESS_SOCKET, f"127.0.0.1:{EGRESS_PORT}", *forwarded, "--")


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
