"""Installation of the packages that `npx` and `uvx` start.

A start has a short deadline, an installation takes minutes. So packages are installed separately,
into a folder of the organization and in the server's sandbox. A file lock ensures one installation
of a package per host; callers that can't wait get an error while it continues.

Packages are installed into a new folder, which is published by a link, so a killed installation
only leaves a folder, which the next one removes.
"""

import asyncio
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

from bonobot.core.crypto.key_files import ensure_private_folder
from bonobot.core.i18n.messages import format_message
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.client.child_process import StderrTail, find_installer, spawn
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError, installation_failed, still_installing
from mcp_servers.client.launcher_packages import Package, package_of
from mcp_servers.client.sandbox import program_folders

State = Literal["needed", "installing", "installed", "failed"]
RETRY_S = 60.0  # minimum time before a failed installation is retried automatically
LOOK_S = 0.2
PROGRESS_S = 0.5
LONGEST_LINE = 300
LONGEST_MANIFEST = 1024 * 1024


@dataclass(frozen=True)
class Installation:
    """The state of a server's package on this host; `detail` is the progress or the error."""

    state: State
    detail: str = ""


class Place:
    """Where one package of an organization is installed."""

    def __init__(self, packages: str, key: str) -> None:
        self.packages, self.key = Path(packages), key
        self.link = self.packages / key

    @property
    def program(self) -> Path | None:
        """Return the installed program, or None."""
        start = self.link / "start"
        return start.resolve() if start.exists() else None

    @property
    def installation(self) -> Installation:
        """Return the state of the installation."""
        if self._is_locked():
            return Installation("installing", self._read("progress"))
        if self.program:
            return Installation("installed")
        if why := self._read("failed"):
            return Installation("failed", str(json.loads(why)["why"]))
        return Installation("needed")

    def recent_failure(self) -> str:
        """Return why an installation failed within the last `RETRY_S`, else ""."""
        if not (text := self._read("failed")):
            return ""
        said = json.loads(text)
        return str(said["why"]) if time.time() - said["at"] < RETRY_S else ""

    def note(self, kind: str, text: str) -> None:
        """Store the progress or the failure; a blank text deletes it."""
        path = self.packages / f"{self.key}.{kind}"
        if not text:
            path.unlink(missing_ok=True)
            return
        beside = path.with_suffix(f".{uuid4().hex}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)

    def fail(self, why: str) -> None:
        """Store why an installation failed."""
        self.note("failed", json.dumps({"at": time.time(), "why": why}))

    def begin(self) -> Path:
        """Create a folder to install into; delete those of killed installations."""
        kept = self.link.resolve() if self.link.is_symlink() else None
        for left in self.packages.glob(f"{self.key}-*"):
            if left != kept:
                shutil.rmtree(left, ignore_errors=True)
        return ensure_private_folder(self.packages / f"{self.key}-{uuid4().hex[:8]}")

    def publish(self, folder: Path, program: Path) -> None:
        """Make a finished installation the current one."""
        (folder / "start").symlink_to(program)
        beside = self.packages / f"{self.key}.{uuid4().hex}"
        beside.symlink_to(folder.name)
        beside.replace(self.link)
        self.note("failed", "")

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the lock of this location; the system releases it if the process is killed."""
        ensure_private_folder(self.packages)
        handle = os.open(self.packages / f"{self.key}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not _try_lock(handle):
                await asyncio.sleep(LOOK_S)
            yield
        finally:
            self.note("progress", "")
            os.close(handle)

    def _is_locked(self) -> bool:
        try:
            handle = os.open(self.packages / f"{self.key}.lock", os.O_RDWR)
        except OSError:
            return False
        try:
            return not _try_lock(handle)
        finally:
            os.close(handle)

    def _read(self, kind: str) -> str:
        try:
            return (self.packages / f"{self.key}.{kind}").read_text(encoding="utf-8")
        except OSError:
            return ""


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# Installations running in this process, by link.
_going: dict[Path, asyncio.Task[None]] = {}
# Called when a package is installed that a start couldn't wait for.
on_late_installation: list[Callable[[UUID], None]] = []


def installation_of(endpoint: ServerEndpoint) -> Installation | None:
    """Return the state of a server's package; None if there is nothing to install."""
    found = _find_package(endpoint)
    return found[1].installation if found else None


async def install_package(endpoint: ServerEndpoint, *, anew: bool = False) -> ServerEndpoint:
    """Install the package of an endpoint and return the endpoint that starts it.

    Waits for `patience_s`, by default as long as for a start. `reinstall` replaces an installed
    package. Raises `server_installing` (the installation continues) and `installation_failed`.
    """
    found = _find_package(endpoint)
    if found is None:
        return endpoint
    package, place = found
    if anew or place.program is None:
        await _wait(endpoint, package, place, anew=anew)
    program = place.program
    if program is None:
        raise installation_failed(endpoint, format_message("it was removed meanwhile"))
    started = replace(endpoint, command=str(program), args=package.args)
    if endpoint.sandbox is None:
        return started
    launcher = find_installer(endpoint, package.installer)
    folders = (str(place.link.resolve()), *(program_folders(launcher) if launcher else ()))
    return replace(started, sandbox=replace(endpoint.sandbox, programs=folders))


def _find_package(endpoint: ServerEndpoint) -> tuple[Package, Place] | None:
    package = package_of(endpoint.command, endpoint.args) if endpoint.packages else None
    if package is None or endpoint.confinement.kind != "none":
        return None
    return package, Place(endpoint.packages, package.key(_get_installer_environment(endpoint)))


def _get_installer_environment(endpoint: ServerEndpoint) -> Mapping[str, str]:
    """Return the variables for the installer: those with an exception for this server."""
    return {name: value for name, value in endpoint.env.items() if name in endpoint.env_exceptions}


async def _wait(endpoint: ServerEndpoint, package: Package, place: Place, *, anew: bool) -> None:
    task = _going.get(place.link)
    if task is None:
        if not anew and endpoint.patience_s is None and (why := place.recent_failure()):
            raise installation_failed(endpoint, why)
        task = asyncio.create_task(_install(endpoint, package, place, anew=anew))
        _going[place.link] = task
        task.add_done_callback(partial(_over, place.link))
    try:
        async with asyncio.timeout(endpoint.patience_s or endpoint.start_s):
            await asyncio.shield(task)
    except TimeoutError:
        task.add_done_callback(partial(_tell, endpoint.server_id))
        raise still_installing(endpoint, place.installation.detail) from None


def _over(link: Path, task: asyncio.Task[None]) -> None:
    _going.pop(link, None)
    if not task.cancelled():
        task.exception()  # callers that waited have raised it; this marks it as retrieved


def _tell(server_id: UUID, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is None:
        for tell in on_late_installation:
            tell(server_id)


async def _install(endpoint: ServerEndpoint, package: Package, place: Place, *, anew: bool) -> None:
    """Install a package, once for all callers."""
    before = place.link.resolve()
    async with place.locked():
        if place.program and (not anew or place.link.resolve() != before):
            return  # another process has installed it
        folder = await asyncio.to_thread(place.begin)
        try:
            async with asyncio.timeout(endpoint.install_s):
                await _run(endpoint, package, place, folder)
            place.publish(folder, await asyncio.to_thread(find_program, package, folder))
        except BaseException as error:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            if isinstance(error, asyncio.CancelledError):
                raise
            why = _why(endpoint, error)
            place.fail(why)
            raise installation_failed(endpoint, why) from error


async def _run(endpoint: ServerEndpoint, package: Package, place: Place, folder: Path) -> None:
    """Run the installer in the server's sandbox; raises `OSError`."""
    own = replace(
        endpoint,
        command=find_installer(endpoint, package.installer) or package.installer,
        args=package.words(str(folder)),
        env={**_get_installer_environment(endpoint), **package.environment(str(folder))},
        env_exceptions=frozenset((*_get_installer_environment(endpoint), *package.environment(""))),
        cwd=None,
        sandbox=endpoint.sandbox and _sandbox(endpoint.sandbox, place.packages, folder),
    )
    over = asyncio.Event()
    progress = Progress(place)
    tail = StderrTail(endpoint.secrets)
    tail.on_add = lambda: progress.say(tail.last_words())
    child = await spawn(own, progress.take, lambda _child: over.set(), tail)
    try:
        await over.wait()
    finally:
        await child.close(0)
    if child.returncode != 0:
        raise OSError(
            format_message("{end}: {said}", end=child.end(), said=_last(tail.last_words(), 3))
        )


def _sandbox(sandbox: Any, packages: Path, folder: Path) -> Any:
    """Return the sandbox of an installation, with a home that servers can't write to."""
    network = "host" if sandbox.network == "host" else "egress"
    home = str(packages.parent / "installer")
    return replace(sandbox, home=home, network=network, folders=(str(folder),))


class Progress:
    """Stores the last output line of an installer, at most twice a second."""

    def __init__(self, place: Place) -> None:
        self._place, self._said_at = place, 0.0
        self.say(format_message("begun"))

    def take(self, line: Any) -> None:
        """Handle a line of output."""
        if isinstance(line, bytes):
            self.say(line.decode("utf-8", "replace"))

    def say(self, text: str) -> None:
        """Store the last line of a text."""
        if (now := time.monotonic()) - self._said_at < PROGRESS_S:
            return
        self._said_at = now
        with suppress(OSError):
            self._place.note("progress", _last(text, 1))


def find_program(package: Package, folder: Path) -> Path:
    """Return the installed program; raises `OSError` if there is none.

    Installation scripts of packages may have placed hostile files in the folder, so only regular
    files within it are accepted.
    """
    if package.installer == "npm":
        found = folder / "node_modules" / ".bin" / (package.program or _only_program(folder))
    else:
        found = folder / "bin" / package.program
    real = found.resolve()
    if not (real.is_file() and os.access(real, os.X_OK)):
        raise OSError(
            format_message("it has no program `{name}`", name=make_visible(found.name, 100))
        )
    if not real.is_relative_to(folder.resolve()):
        raise OSError(
            format_message(
                "its program `{name}` lies elsewhere", name=make_visible(found.name, 100)
            )
        )
    return found


def _only_program(folder: Path) -> str:
    """Return the program that npx would start, from the package's manifest."""
    (name, *_) = _read_manifest(folder, "package.json")["dependencies"]
    programs = _read_manifest(folder, "node_modules", str(name), "package.json").get("bin", {})
    plain = str(name).rpartition("/")[2]
    if isinstance(programs, str) or plain in programs:
        return plain
    if len(programs) == 1:
        return str(next(iter(programs)))
    raise OSError(format_message("it has no program `{name}`", name=make_visible(plain, 100)))


def _read_manifest(folder: Path, *parts: str) -> dict[str, Any]:
    """Return a manifest within the folder; raises `OSError` if it is invalid."""
    path = folder.joinpath(*parts)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise OSError(format_message("its `package.json` lies elsewhere"))
    # Opening a pipe in its place would block forever.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(format_message("its `package.json` is no file"))
        try:
            found = json.loads(file.read(LONGEST_MANIFEST))
        except ValueError:
            found = None
    if not isinstance(found, dict) or not isinstance(found.get("bin", {}), dict | str):
        raise OSError(format_message("its `package.json` can't be read"))
    return found


def _why(endpoint: ServerEndpoint, error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return format_message("it took longer than {seconds:g} s", seconds=endpoint.install_s)
    if isinstance(error, UpstreamError):
        return str(error)
    return make_visible(endpoint.masker.text(str(error)), 4 * LONGEST_LINE)


def _last(text: str, lines: int) -> str:
    kept = [line.strip() for line in text.splitlines() if line.strip()][-lines:]
    return make_visible(" ".join(kept), lines * LONGEST_LINE)
