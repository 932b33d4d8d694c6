"""Installers that are killed with SIGKILL at each step, and workers that install at once."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from mcp_servers.client.package_installation import find_installation, install_package
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import call, text_of
from tests.mcp_servers.client.test_package_installation import (
    build_npx_endpoint,
    list_folders,
    packages,
    registry,
)
from tests.processes import Process, start_process
from tests.servers.npm_registry import Registry
from tests.wait import eventually

pytestmark = [pytest.mark.npm, pytest.mark.whole]
__all__ = ["packages", "registry"]

WORKER = "tests.mcp_servers.client.killed_worker"
# Before or after the nth call of a function.
STEPS = {
    "before the folder": ("before", "PackageLocation", "create_folder", 1),
    "after the folder": ("after", "PackageLocation", "create_folder", 1),
    "after the installer started": ("after", "", "spawn_child", 1),
    "after the installer ended": ("before", "", "find_program", 1),
    "before the link to the program": ("before", "PackageLocation", "publish", 1),
    "after the link to the program": ("after", "Path", "symlink_to", 1),
    "before the exchange of links": ("after", "Path", "symlink_to", 2),
    "after the exchange of links": ("after", "PackageLocation", "publish", 1),
}


@contextmanager
def start_worker(
    registry: Registry, packages: Path, *step: object, reinstall: bool = False
) -> Iterator[Process]:
    """Start a worker that installs the package, and kills itself at a step."""
    when, owner, name, number = map(str, step or ("", "", "", 0))
    command = [sys.executable, "-m", WORKER, registry.url, str(packages)]
    command += [when, owner, name, number, "reinstall" if reinstall else ""]
    process = start_process(
        f"worker-{uuid4().hex[:8]}", command, folder=packages.parent, env=os.environ
    )
    try:
        yield process
    finally:
        process.kill()


def kill_worker(worker: Process) -> None:
    """Kill the worker alone, not its group."""
    os.kill(worker.pid, signal.SIGKILL)
    worker.popen.wait(10)


def list_names(packages: Path) -> list[str]:
    """Return the names in the folder, without the random parts."""
    return sorted(path.name.partition("-")[0].partition(".")[2] for path in packages.iterdir())


async def check_installation(
    connections: ConnectionPool, registry: Registry, packages: Path
) -> None:
    """Start the server, which installs it if necessary, and check that nothing else is left."""
    endpoint = build_npx_endpoint(registry, packages, install_wait_s=60)
    assert text_of(await call(connections, endpoint, "hello")) == "hello you"
    installation = find_installation(endpoint)
    assert installation
    assert (installation.state, installation.detail) == ("installed", "")
    program = Path((await install_package(endpoint)).command)
    assert program.parts[len(packages.parts)] in list_folders(packages)


@pytest.mark.parametrize("step", STEPS)
async def test_a_server_starts_after_its_installation_was_killed(
    connections: ConnectionPool, registry: Registry, packages: Path, step: str
) -> None:
    with start_worker(registry, packages, *STEPS[step]) as process:
        assert await asyncio.to_thread(process.popen.wait, 60) == -signal.SIGKILL, process.log()
    endpoint = build_npx_endpoint(registry, packages)
    installation = find_installation(endpoint)
    assert installation
    is_complete = step == "after the exchange of links"
    assert installation.state == ("installed" if is_complete else "needed")
    await check_installation(connections, registry, packages)
    assert len(list_folders(packages)) == 1
    # A folder, its link, the lock, and the last progress, which is read only during installations.
    assert list_names(packages) == ["", "", "lock", *(["progress"] if is_complete else [])]


@pytest.mark.parametrize("step", STEPS)
async def test_the_installed_package_is_used_after_a_reinstallation_was_killed(
    connections: ConnectionPool, registry: Registry, packages: Path, step: str
) -> None:
    endpoint = build_npx_endpoint(registry, packages, install_wait_s=60)
    before = (await install_package(endpoint)).command
    when, owner, name, number = STEPS[step]
    with start_worker(registry, packages, when, owner, name, number, reinstall=True) as process:
        assert await asyncio.to_thread(process.popen.wait, 60) == -signal.SIGKILL
    after = (await install_package(endpoint)).command
    assert (after == before) is (step != "after the exchange of links")
    assert Path(before).exists()
    await check_installation(connections, registry, packages)
    await install_package(endpoint, reinstall=True)
    await check_installation(connections, registry, packages)
    assert len(list_folders(packages)) == 2  # the current one, and the previous for running servers
    assert list_names(packages) == ["", "", "", "lock"]


async def test_workers_that_start_at_once_install_once(
    connections: ConnectionPool, registry: Registry, packages: Path
) -> None:
    with (
        start_worker(registry, packages) as first,
        start_worker(registry, packages) as second,
    ):
        assert await asyncio.to_thread(first.popen.wait, 60) == 0, first.log()
        assert await asyncio.to_thread(second.popen.wait, 60) == 0, second.log()
    assert sum(path.endswith(".tgz") for path in registry.asked) == 1
    await check_installation(connections, registry, packages)
    assert len(list_folders(packages)) == 1


async def test_a_waiting_worker_installs_after_the_first_one_was_killed(
    connections: ConnectionPool, registry: Registry, packages: Path
) -> None:
    registry.sends.clear()
    with start_worker(registry, packages) as first:
        assert await asyncio.to_thread(registry.packed.wait, 60)
        with start_worker(registry, packages) as second:
            kill_worker(first)
            registry.sends.set()
            assert await asyncio.to_thread(second.popen.wait, 60) == 0, second.log()
    await check_installation(connections, registry, packages)
    assert len(list_folders(packages)) == 1


async def test_the_installer_ends_with_its_worker(registry: Registry, packages: Path) -> None:
    registry.sends.clear()
    with start_worker(registry, packages) as worker:
        assert await asyncio.to_thread(registry.packed.wait, 60)
        assert list_installers(packages)
        kill_worker(worker)
        eventually(lambda: not list_installers(packages), within=10, what="the installer's end")


def list_installers(packages: Path) -> list[int]:
    """Return the processes that install into the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"--prefix" in words and str(packages).encode() in b" ".join(words):
            found.append(int(path.parent.name))
    return found


async def test_the_state_isnt_installing_while_others_read_it(
    registry: Registry, packages: Path
) -> None:
    """Readers of the state don't disturb each other or an installation."""
    endpoint = build_npx_endpoint(registry, packages, install_wait_s=60)
    await install_package(endpoint)
    states: set[str] = set()

    def read_states() -> None:
        for _ in range(2_000):
            installation = find_installation(endpoint)
            assert installation
            states.add(installation.state)

    await asyncio.gather(*(asyncio.to_thread(read_states) for _ in range(4)))
    assert states == {"installed"}
