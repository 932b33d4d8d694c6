"""Installers that are killed with SIGKILL at each step, and workers that install at once."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
from tests.parts import ROOT
from tests.servers.npm_registry import Registry
from tests.wait import eventually

pytestmark = [pytest.mark.npm, pytest.mark.whole]
__all__ = ["packages", "registry"]

# A worker that installs, and kills itself at a step: before or after the call of a function.
WORKER = """
import asyncio, os, signal, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")
import django
django.setup()
from pathlib import Path
from dataclasses import replace
from mcp_servers.client import package_installation
from tests.mcp_servers.client.test_package_installation import build_npx_endpoint
from tests.servers.npm_registry import Registry

url, packages, when, owner, name, number, reinstall = sys.argv[1:]
calls = 0

def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)

if name:
    holder = Path if owner == "Path" else package_installation
    holder = package_installation.PackageLocation if owner == "PackageLocation" else holder
    function = getattr(holder, name)

    async def function_that_kills_when_awaited(*args, **kwargs):
        await function(*args, **kwargs)
        kill_self()

    def function_that_kills(*args, **kwargs):
        global calls
        is_ours = owner != "Path" or str(args[0]).startswith(packages)
        calls += is_ours
        if is_ours and calls == int(number) and when == "before":
            kill_self()
        result = function(*args, **kwargs)
        if is_ours and calls == int(number) and when == "after":
            kill_self()
        return result

    is_async = asyncio.iscoroutinefunction(function)
    setattr(holder, name, function_that_kills_when_awaited if is_async else function_that_kills)

endpoint = build_npx_endpoint(Registry(url=url), Path(packages), install_wait_s=60)
asyncio.run(package_installation.install_package(endpoint, reinstall=reinstall == "reinstall"))
"""
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
) -> Iterator[subprocess.Popen[bytes]]:
    when, owner, name, number = map(str, step or ("", "", "", 0))
    command = [sys.executable, "-c", WORKER, registry.url, str(packages)]
    command += [when, owner, name, number, "reinstall" if reinstall else ""]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


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
        assert await asyncio.to_thread(process.wait, 60) == -signal.SIGKILL, process.stderr
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
        assert await asyncio.to_thread(process.wait, 60) == -signal.SIGKILL
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
        assert await asyncio.to_thread(first.wait, 60) == 0
        assert await asyncio.to_thread(second.wait, 60) == 0
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
            first.kill()
            first.wait()
            registry.sends.set()
            assert await asyncio.to_thread(second.wait, 60) == 0
    await check_installation(connections, registry, packages)
    assert len(list_folders(packages)) == 1


async def test_the_installer_ends_with_its_worker(registry: Registry, packages: Path) -> None:
    registry.sends.clear()
    with start_worker(registry, packages) as worker:
        assert await asyncio.to_thread(registry.packed.wait, 60)
        assert list_installers(packages)
        worker.kill()
        worker.wait()
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
