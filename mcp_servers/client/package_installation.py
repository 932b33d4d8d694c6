"""Installation of the packages that `npx` and `uvx` start.

A start has a short deadline, an installation takes minutes. So packages are installed separately,
into a folder of the organization and in the server's sandbox. A file lock ensures one installation
of a package per host; callers that can't wait get an error while it continues.

Packages are installed into a new folder, which is published by a link, so a killed installation
only leaves a folder, which the next one removes.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from uuid import UUID, uuid4

from bonobot.core.crypto.key_files import ensure_private_folder
from bonobot.core.i18n.messages import format_message
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.client.child_process import StderrTail, find_installer, spawn_child
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import (
    UpstreamError,
    build_installation_error,
    build_installing_error,
)
from mcp_servers.client.extension_points import late_installation_listeners
from mcp_servers.client.sandbox import iterate_program_folders

_QUIET = {"npx": ("-y", "--yes", "-q", "--quiet"), "uvx": ("-q", "--quiet")}
# Options with a value, and the kind of the value.
_VALUES = {
    "npx": {"-p": "package", "--package": "package"},
    "uvx": {"--from": "package", "--with": "beside", "-p": "python", "--python": "python"},
}
_INSTALLERS = {"npx": "npm", "uvx": "uv"}
State = Literal["needed", "installing", "installed", "failed"]
RETRY_S = 60.0  # minimum time before a failed installation is retried automatically
LOCK_POLL_S = 0.2
PROGRESS_INTERVAL_S = 0.5
MAX_LINE_LENGTH = 300
MAX_MANIFEST_BYTES = 1024 * 1024
# Installations running in this process, by link.
_running_installations: dict[Path, asyncio.Task[None]] = {}


@dataclass(frozen=True, kw_only=True)
class Package:
    """What to install with `installer`, and which program to start.

    `program` is blank for the package's only program (npm). `beside` are packages installed into
    the same environment, `python` is the requested version.
    """

    installer: str
    specs: tuple[str, ...]
    program: str
    args: tuple[str, ...]
    beside: tuple[str, ...] = ()
    python: str = ""

    def compute_key(self, env: Mapping[str, str]) -> str:
        """Return a key of the installation, which depends on packages and environment."""
        fields = asdict(self) | {"args": (), "env": dict(env)}
        text = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def build_install_arguments(self, folder: str) -> tuple[str, ...]:
        """Return the installer's arguments to install into `folder`."""
        if self.installer == "npm":
            options = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=http")
            return ("install", *options, "--prefix", folder, "--", *self.specs)
        beside = [word for spec in self.beside for word in ("--with", spec)]
        python = ("--python", self.python) if self.python else ()
        return ("tool", "install", "--no-config", *beside, *python, "--", *self.specs)

    def build_install_environment(self, folder: str) -> dict[str, str]:
        """Return the variables that keep an installation within `folder`."""
        if self.installer == "npm":
            return {}
        return {
            "UV_TOOL_DIR": f"{folder}/tools",
            "UV_TOOL_BIN_DIR": f"{folder}/bin",
            "UV_PYTHON_INSTALL_DIR": f"{folder}/python",
            "UV_LINK_MODE": "copy",
        }


def find_launcher_package(command: str, args: Sequence[str]) -> Package | None:
    """Return the package that a launcher's command line would fetch; None if unknown."""
    launcher = PurePosixPath(command).name
    if launcher not in _INSTALLERS:
        return None
    values: dict[str, list[str]] = {"package": [], "beside": [], "python": []}
    remaining = list(args)
    while remaining and remaining[0].startswith("-"):
        option, equals, value = remaining.pop(0).partition("=")
        if option == "--" and not equals:
            break
        if option in _QUIET[launcher] and not equals:
            continue
        kind = _VALUES[launcher].get(option)
        if kind is None or (not equals and not remaining):
            return None
        values[kind].append(value if equals else remaining.pop(0))
    if not remaining or any(map(_is_local, (*values["package"], *values["beside"], remaining[0]))):
        return None
    return _build_package(launcher, values, remaining[0], tuple(remaining[1:]))


def _build_package(
    launcher: str, values: Mapping[str, list[str]], first: str, args: tuple[str, ...]
) -> Package | None:
    packages = values["package"]
    if launcher == "uvx" and len(packages) > 1:
        return None
    program = first if packages else ""
    if launcher == "uvx" and not packages:
        program = first.partition("@")[0].partition("==")[0].partition("[")[0]
    return Package(
        installer=_INSTALLERS[launcher],
        specs=tuple(packages) or (first,),
        program=program,
        args=args,
        beside=tuple(values["beside"]),
        python=values["python"][-1] if values["python"] else "",
    )


def _is_local(spec: str) -> bool:
    return spec.startswith((".", "/", "~", "-", "file:")) or not spec


@dataclass(frozen=True)
class Installation:
    """The state of a server's package on this host; `detail` is the progress or the error."""

    state: State
    detail: str = ""


class PackageLocation:
    """Where one package of an organization is installed."""

    def __init__(self, packages: str, key: str) -> None:
        self.packages, self.key = Path(packages), key
        self.link = self.packages / key

    @property
    def program(self) -> Path | None:
        """Return the installed program, or None."""
        start_link = self.link / "start"
        return start_link.resolve() if start_link.exists() else None

    @property
    def installation(self) -> Installation:
        """Return the state of the installation."""
        if self._is_locked():
            return Installation("installing", self._read_note("progress"))
        if self.program:
            return Installation("installed")
        if note := self._read_note("failed"):
            return Installation("failed", str(json.loads(note)["why"]))
        return Installation("needed")

    def find_recent_failure(self) -> str:
        """Return why an installation failed within the last `RETRY_S`, else ""."""
        if not (text := self._read_note("failed")):
            return ""
        failure = json.loads(text)
        return str(failure["why"]) if time.time() - failure["at"] < RETRY_S else ""

    def write_note(self, kind: str, text: str) -> None:
        """Store the progress or the failure; a blank text deletes it."""
        path = self.packages / f"{self.key}.{kind}"
        if not text:
            path.unlink(missing_ok=True)
            return
        temporary_path = path.with_suffix(f".{uuid4().hex}")
        temporary_path.write_text(text, encoding="utf-8")
        temporary_path.replace(path)

    def record_failure(self, reason: str) -> None:
        """Store why an installation failed."""
        self.write_note("failed", json.dumps({"at": time.time(), "why": reason}))

    def create_folder(self) -> Path:
        """Create a folder to install into; delete what killed installations left."""
        self.delete_abandoned(self.link.resolve() if self.link.is_symlink() else None)
        return ensure_private_folder(self.packages / f"{self.key}-{uuid4().hex[:8]}")

    def publish(self, folder: Path, program: Path) -> None:
        """Make a finished installation the current one."""
        (folder / "start").symlink_to(program)
        temporary_link = self.packages / f"{self.key}.{uuid4().hex}"
        temporary_link.symlink_to(folder.name)
        temporary_link.replace(self.link)
        self.write_note("failed", "")

    def delete_abandoned(self, *kept_folders: Path | None) -> None:
        """Delete what killed installations left, but not these folders."""
        for folder in self.packages.glob(f"{self.key}-*"):
            if folder not in kept_folders:
                shutil.rmtree(folder, ignore_errors=True)
        for temporary_path in self.packages.glob(f"{self.key}.{'[0-9a-f]' * 32}"):
            temporary_path.unlink(missing_ok=True)

    @asynccontextmanager
    async def hold_lock(self) -> AsyncIterator[None]:
        """Hold the lock of this location; the system releases it if the process is killed."""
        ensure_private_folder(self.packages)
        handle = os.open(self.packages / f"{self.key}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not _try_lock(handle, fcntl.LOCK_EX):
                await asyncio.sleep(LOCK_POLL_S)
            yield
        finally:
            self.write_note("progress", "")
            os.close(handle)

    def _is_locked(self) -> bool:
        try:
            handle = os.open(self.packages / f"{self.key}.lock", os.O_RDWR)
        except OSError:
            return False
        try:
            return not _try_lock(handle, fcntl.LOCK_SH)  # readers don't disturb each other
        finally:
            os.close(handle)

    def _read_note(self, kind: str) -> str:
        try:
            return (self.packages / f"{self.key}.{kind}").read_text(encoding="utf-8")
        except OSError:
            return ""


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find_installation(endpoint: ServerEndpoint) -> Installation | None:
    """Return the state of a server's package; None if there is nothing to install."""
    package_and_location = _find_package(endpoint)
    return package_and_location[1].installation if package_and_location else None


async def install_package(endpoint: ServerEndpoint, *, reinstall: bool = False) -> ServerEndpoint:
    """Install the package of an endpoint and return the endpoint that starts it.

    Waits for `install_wait_s`, by default as long as for a start. `reinstall` replaces an installed
    package. Raises `server_installing` (the installation continues) and `installation_failed`.
    """
    package_and_location = _find_package(endpoint)
    if package_and_location is None:
        return endpoint
    package, location = package_and_location
    if reinstall or location.program is None:
        await _wait_for_installation(endpoint, package, location, reinstall=reinstall)
    program = location.program
    if program is None:
        raise build_installation_error(
            endpoint, format_message("the package was deleted in the meantime")
        )
    installed_endpoint = replace(endpoint, command=str(program), args=package.args)
    if endpoint.sandbox is None:
        return installed_endpoint
    launcher = find_installer(endpoint, package.installer)
    folders = (
        str(location.link.resolve()),
        *(iterate_program_folders(launcher) if launcher else ()),
    )
    return replace(installed_endpoint, sandbox=replace(endpoint.sandbox, programs=folders))


def _find_package(endpoint: ServerEndpoint) -> tuple[Package, PackageLocation] | None:
    package = find_launcher_package(endpoint.command, endpoint.args) if endpoint.packages else None
    if package is None or endpoint.sandbox_mode.kind != "none":
        return None
    return package, PackageLocation(
        endpoint.packages, package.compute_key(_get_installer_environment(endpoint))
    )


def _get_installer_environment(endpoint: ServerEndpoint) -> Mapping[str, str]:
    """Return the variables for the installer: those with an exception for this server."""
    return {name: value for name, value in endpoint.env.items() if name in endpoint.env_exceptions}


async def _wait_for_installation(
    endpoint: ServerEndpoint, package: Package, location: PackageLocation, *, reinstall: bool
) -> None:
    task = _running_installations.get(location.link)
    if task is None:
        if (
            not reinstall
            and endpoint.install_wait_s is None
            and (reason := location.find_recent_failure())
        ):
            raise build_installation_error(endpoint, reason)
        task = asyncio.create_task(_install(endpoint, package, location, reinstall=reinstall))
        _running_installations[location.link] = task
        task.add_done_callback(partial(_finish_installation, location.link))
    try:
        async with asyncio.timeout(endpoint.install_wait_s or endpoint.start_s):
            await asyncio.shield(task)
    except TimeoutError:
        task.add_done_callback(partial(_notify_late_installation, endpoint.server_id))
        raise build_installing_error(endpoint, location.installation.detail) from None


def _finish_installation(link: Path, task: asyncio.Task[None]) -> None:
    _running_installations.pop(link, None)
    if not task.cancelled():
        task.exception()  # callers that waited have raised it; this marks it as retrieved


def _notify_late_installation(server_id: UUID, task: asyncio.Task[None]) -> None:
    # A failure, too: otherwise the server would seem to be installing until its next check.
    if not task.cancelled():
        for listener in late_installation_listeners:
            listener(server_id)


async def _install(
    endpoint: ServerEndpoint, package: Package, location: PackageLocation, *, reinstall: bool
) -> None:
    """Install a package, once for all callers."""
    previous = location.link.resolve()
    async with location.hold_lock():
        if location.program and (not reinstall or location.link.resolve() != previous):
            return  # another process has installed it
        folder = await asyncio.to_thread(location.create_folder)
        try:
            async with asyncio.timeout(endpoint.install_s):
                await _run_installer(endpoint, package, location, folder)
            location.publish(folder, await asyncio.to_thread(find_program, package, folder))
        except BaseException as error:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            if isinstance(error, asyncio.CancelledError):
                raise
            reason = _describe_failure(endpoint, error)
            location.record_failure(reason)
            raise build_installation_error(endpoint, reason) from error
        # The installer of a process that was killed just before may have written once more.
        await asyncio.to_thread(location.delete_abandoned, folder, previous)


async def _run_installer(
    endpoint: ServerEndpoint, package: Package, location: PackageLocation, folder: Path
) -> None:
    """Run the installer in the server's sandbox; raises `OSError`."""
    installer_endpoint = replace(
        endpoint,
        command=find_installer(endpoint, package.installer) or package.installer,
        args=package.build_install_arguments(str(folder)),
        env={
            **_get_installer_environment(endpoint),
            **package.build_install_environment(str(folder)),
        },
        env_exceptions=frozenset(
            (*_get_installer_environment(endpoint), *package.build_install_environment(""))
        ),
        cwd=None,
        sandbox=endpoint.sandbox
        and _build_installer_sandbox(endpoint.sandbox, location.packages, folder),
    )
    end_event = asyncio.Event()
    progress = InstallationProgress(location)
    tail = StderrTail(endpoint.secrets)
    tail.on_add = lambda: progress.update(tail.get_last_output())
    child = await spawn_child(
        installer_endpoint, progress.add_line, lambda _child: end_event.set(), tail
    )
    try:
        await end_event.wait()
    finally:
        await child.close(0)
    if child.returncode != 0 and child.egress_refusal:
        # Sentences that are translated one by one when the error is shown
        output = _get_last_lines(tail.get_last_output(), 3)
        sentences = (
            f"{format_message('a connection was denied')}.",
            str(child.egress_refusal),
            format_message("The installer reported: {output}", output=output),
        )
        raise OSError(" ".join(sentences))
    if child.returncode != 0:
        raise OSError(
            format_message(
                "{end}: {output}",
                end=child.describe_end(),
                output=_get_last_lines(tail.get_last_output(), 3),
            )
        )


def _build_installer_sandbox(sandbox: Any, packages: Path, folder: Path) -> Any:
    """Return the sandbox of an installation, with a home that servers can't write to."""
    network = "host" if sandbox.network == "host" else "egress"
    home = str(packages.parent / "installer")
    return replace(sandbox, home=home, network=network, folders=(str(folder),))


class InstallationProgress:
    """Stores the last output line of an installer, at most twice a second."""

    def __init__(self, location: PackageLocation) -> None:
        self._location, self._updated_at = location, 0.0

    def add_line(self, line: Any) -> None:
        """Handle a line of output."""
        if isinstance(line, bytes):
            self.update(line.decode("utf-8", "replace"))

    def update(self, text: str) -> None:
        """Store the last line of a text."""
        if (now := time.monotonic()) - self._updated_at < PROGRESS_INTERVAL_S:
            return
        self._updated_at = now
        with suppress(OSError):
            self._location.write_note("progress", _get_last_lines(text, 1))


def find_program(package: Package, folder: Path) -> Path:
    """Return the installed program; raises `OSError` if there is none.

    Installation scripts of packages may have placed hostile files in the folder, so only regular
    files within it are accepted.
    """
    if package.installer == "npm":
        program = folder / "node_modules" / ".bin" / (package.program or _find_only_program(folder))
    else:
        program = folder / "bin" / package.program
    target = program.resolve()
    if not (target.is_file() and os.access(target, os.X_OK)):
        raise OSError(
            format_message(
                "the package has no program `{name}`", name=make_visible(program.name, 100)
            )
        )
    if not target.is_relative_to(folder.resolve()):
        raise OSError(
            format_message(
                "its program `{name}` is outside the installation folder",
                name=make_visible(program.name, 100),
            )
        )
    return program


def _find_only_program(folder: Path) -> str:
    """Return the program that npx would start, from the package's manifest."""
    (name, *_) = _read_manifest(folder, "package.json")["dependencies"]
    programs = _read_manifest(folder, "node_modules", str(name), "package.json").get("bin", {})
    short_name = str(name).rpartition("/")[2]
    if isinstance(programs, str) or short_name in programs:
        return short_name
    if len(programs) == 1:
        return str(next(iter(programs)))
    raise OSError(
        format_message("the package has no program `{name}`", name=make_visible(short_name, 100))
    )


def _read_manifest(folder: Path, *parts: str) -> dict[str, Any]:
    """Return a manifest within the folder; raises `OSError` if it is invalid."""
    path = folder.joinpath(*parts)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise OSError(format_message("its `package.json` is outside the installation folder"))
    # Opening a pipe in its place would block forever.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(format_message("its `package.json` isn't a regular file"))
        try:
            manifest = json.loads(file.read(MAX_MANIFEST_BYTES))
        except (ValueError, RecursionError):
            manifest = None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("bin", {}), dict | str):
        raise OSError(format_message("its `package.json` can't be read"))
    return manifest


def _describe_failure(endpoint: ServerEndpoint, error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return format_message(
            "the installation took longer than {seconds:g} s", seconds=endpoint.install_s
        )
    if isinstance(error, UpstreamError):
        return str(error)
    return make_visible(endpoint.masker.mask_text(str(error)), 4 * MAX_LINE_LENGTH)


def _get_last_lines(text: str, lines: int) -> str:
    last_lines = [line.strip() for line in text.splitlines() if line.strip()][-lines:]
    return make_visible(" ".join(last_lines), lines * MAX_LINE_LENGTH)
