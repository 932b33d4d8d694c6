"""The sandbox mode that an administrator configures for a stdio server.

Resource limits are best effort; a sandbox is a requirement. A server is not started if its sandbox
doesn't work here. Success is cached; a failure is tried again at each start, as it may have been
fixed.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bonobot.core.i18n.messages import format_message

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


_working: set[tuple[Kind, Network]] = set()


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
                "`{kind}` doesn't work on this machine: {said}", kind=kind, said=failure
            ),
            _build_remedy(),
        )
    _working.add((kind, network))


def try_command(words: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Run one of our own commands; return why it failed, or "". Blocks."""
    try:
        outcome = subprocess.run(  # noqa: S603 - fixed words
            words, capture_output=True, timeout=TRIAL_TIMEOUT_S, check=False, env=env
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
    words = [
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
        words += build_tmpfs_arguments(path)
    if sandbox.network == "host":
        words += ["--ro-bind-try", RESOLVER_FOLDER, RESOLVER_FOLDER]
    for path in _iterate_program_folders(command):
        if any(_is_within(path, folder) for folder in empty):
            words += ["--ro-bind-try", path, path]
    return (*words, *_iterate_folder_arguments(sandbox.hidden, cwd), "--")


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
        if _is_within(path, folder):
            yield from build_tmpfs_arguments(path)


def _iterate_program_folders(command: str) -> Iterator[str]:
    """Yield the folders that a program under an emptied folder still needs."""
    yield str(Path(command).parent)
    yield str(Path(command).resolve().parent)
    yield from dict.fromkeys((sys.prefix, sys.base_prefix))


def _is_folder(path: str) -> bool:
    return bool(path) and path != "/" and Path(path).is_dir()


def _is_within(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def get_tool_path(tool: str) -> str:
    """Return the path of a tool, by our own PATH rather than the child's."""
    return shutil.which(tool) or tool
