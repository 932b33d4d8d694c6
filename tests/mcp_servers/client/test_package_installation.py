"""Packages are installed in a separate step, by a real npm from the test's registry."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_servers.client import package_installation
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.extension_points import late_installation_listeners
from mcp_servers.client.package_installation import (
    Package,
    PackageLocation,
    find_installation,
    find_program,
    install_package,
)
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import call, failure, stdio, text_of
from tests.parts import ROOT
from tests.servers.npm_registry import NAME, Registry, open_registry
from tests.wait import eventually

pytestmark = pytest.mark.npm
PACKAGE = Package(installer="npm", specs=(NAME,), program="", args=())


@pytest.fixture
def registry() -> Iterator[Registry]:
    with open_registry() as npm_registry:
        yield npm_registry


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    return tmp_path / "packages"


def build_npx_endpoint(
    registry: Registry, packages: Path, spec: str = f"{NAME}@1.0.0", **more: Any
) -> ServerEndpoint:
    """Return the endpoint of a server that npx fetches from the registry."""
    env = {
        "NPM_CONFIG_REGISTRY": registry.url,
        "NPM_CONFIG_CACHE": str(packages.parent / "cache"),
        "NPM_CONFIG_FETCH_RETRIES": "0",
    }
    fields = {"env": env, "env_exceptions": frozenset(env), "packages": str(packages)}
    return stdio("npx", "-y", spec, "hello", "you", **(fields | more))


def list_folders(packages: Path) -> list[str]:
    return sorted(
        path.name for path in packages.iterdir() if path.is_dir() and not path.is_symlink()
    )


async def test_a_server_is_installed_once_and_then_started_without_the_network(
    connections: ConnectionPool, registry: Registry, packages: Path
) -> None:
    endpoint = build_npx_endpoint(registry, packages)
    assert find_installation(endpoint) == package_installation.Installation("needed")
    assert text_of(await call(connections, endpoint, "hello")) == "hello you"
    assert find_installation(endpoint) == package_installation.Installation("installed")
    requests = len(registry.asked)
    second = replace(
        endpoint, args=("-y", f"{NAME}@1.0.0", "other"), server_id=endpoint.organization_id
    )
    assert text_of(await call(connections, second, "hello")) == "other"
    assert len(registry.asked) == requests
    program = (await install_package(endpoint)).command
    assert Path(program).is_relative_to(packages)


async def test_a_start_waits_for_a_limited_time_and_reports_the_installation(
    connections: ConnectionPool, registry: Registry, packages: Path
) -> None:
    registry.sends.clear()
    installed: list[Any] = []
    late_installation_listeners.append(installed.append)
    try:
        endpoint = build_npx_endpoint(registry, packages, start_s=1)
        error = await failure(call(connections, endpoint, "hello"))
        assert (error.code, error.retryable, error.sent) == ("server_installing", True, False)
        installation = find_installation(endpoint)
        assert installation
        assert installation.state == "installing"
        registry.sends.set()
        await install_package(replace(endpoint, install_wait_s=60))
        await asyncio.sleep(0)
        assert installed == [endpoint.server_id]
    finally:
        late_installation_listeners.remove(installed.append)


async def test_concurrent_starts_share_one_installation(registry: Registry, packages: Path) -> None:
    endpoint = build_npx_endpoint(registry, packages, install_wait_s=60)
    endpoints = [replace(endpoint, name=f"server {n}") for n in range(8)]
    installed = await asyncio.gather(*(install_package(each) for each in endpoints))
    assert len({each.command for each in installed}) == 1
    assert sum(path.endswith(".tgz") for path in registry.asked) == 1
    assert len(list_folders(packages)) == 1


async def test_a_failed_installation_leaves_nothing_and_isnt_repeated_immediately(
    registry: Registry, packages: Path
) -> None:
    endpoint = build_npx_endpoint(registry, packages, f"{NAME}@9.9.9", install_wait_s=60)
    error = await failure(install_package(endpoint))
    assert error.code == "installation_failed"
    assert "9.9.9" in str(error)
    assert list_folders(packages) == []
    installation = find_installation(endpoint)
    assert installation
    assert (installation.state, "9.9.9" in installation.detail) == ("failed", True)
    requests = len(registry.asked)
    assert (
        await failure(install_package(replace(endpoint, install_wait_s=None)))
    ).code == error.code
    assert len(registry.asked) == requests
    await failure(install_package(endpoint))  # a caller that waits triggers another attempt
    assert len(registry.asked) > requests


async def test_an_installation_has_a_timeout(registry: Registry, packages: Path) -> None:
    registry.sends.clear()
    endpoint = build_npx_endpoint(registry, packages, install_s=2, install_wait_s=60)
    error = await failure(install_package(endpoint))
    assert (error.code, "2 s" in str(error)) == ("installation_failed", True)
    assert list_folders(packages) == []
    registry.sends.set()
    assert (await install_package(replace(endpoint, install_s=60))).command


async def test_another_version_is_installed_next_to_the_old_one(
    registry: Registry, packages: Path
) -> None:
    old = await install_package(build_npx_endpoint(registry, packages, install_wait_s=60))
    new = await install_package(
        build_npx_endpoint(registry, packages, f"{NAME}@1.1.0", install_wait_s=60)
    )
    assert old.command != new.command
    assert Path(old.command).exists()


async def test_a_reinstallation_replaces_the_package_atomically(
    registry: Registry, packages: Path
) -> None:
    endpoint = build_npx_endpoint(registry, packages, install_wait_s=60)
    first = await install_package(endpoint)
    second = await install_package(endpoint, reinstall=True)
    assert first.command != second.command
    assert Path(first.command).exists()  # for running programs


KILLED = """
import asyncio, os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")
import django
django.setup()
from pathlib import Path
from tests.mcp_servers.client.test_package_installation import build_npx_endpoint
from tests.servers.npm_registry import Registry
from mcp_servers.client.package_installation import install_package
endpoint = build_npx_endpoint(Registry(url=sys.argv[1]), Path(sys.argv[2]), install_wait_s=60)
asyncio.run(install_package(endpoint))
"""


async def test_a_killed_installation_leaves_no_broken_package(
    registry: Registry, packages: Path
) -> None:
    registry.sends.clear()
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, registry.url, str(packages)], cwd=ROOT, env=os.environ
    )
    try:
        assert await asyncio.to_thread(registry.packed.wait, 60)
        installation = find_installation(build_npx_endpoint(registry, packages))
        assert installation
        assert installation.state == "installing"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    registry.sends.set()
    endpoint = build_npx_endpoint(registry, packages, install_wait_s=60)

    def is_released() -> bool:
        installation = find_installation(endpoint)
        return installation is not None and installation.state == "needed"

    eventually(is_released, within=10, what="the lock of the killed process")
    assert Path((await install_package(endpoint)).command).exists()
    assert len(list_folders(packages)) == 1  # the folder of the killed one was deleted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of an installed npm package with a valid program."""
    programs = tmp_path / "installed" / "node_modules" / ".bin"
    programs.mkdir(parents=True)
    (programs / NAME).write_text("#!/bin/sh")
    (programs / NAME).chmod(0o755)
    (programs.parent / NAME).mkdir()
    (programs.parents[1] / "package.json").write_text(json.dumps({"dependencies": {NAME: "1"}}))
    (programs.parent / NAME / "package.json").write_text(json.dumps({"bin": "start.js"}))
    return programs.parents[1]


def test_the_only_program_of_a_package_is_found(folder: Path) -> None:
    assert find_program(PACKAGE, folder).name == NAME


def test_a_package_cant_make_bonobot_start_programs_outside_its_folder(folder: Path) -> None:
    """The sandbox exposes the program's folder, so a link must not choose it."""
    program = folder / "node_modules" / ".bin" / NAME
    program.unlink()
    program.symlink_to("/bin/sh")
    with pytest.raises(OSError, match="outside the installation folder"):
        find_program(PACKAGE, folder)


@pytest.mark.parametrize("kind", ["pipe", "link out", "no JSON", "no object", "other name"])
def test_a_package_cant_make_bonobot_read_other_files(folder: Path, kind: str) -> None:
    manifest = folder / "node_modules" / NAME / "package.json"
    manifest.unlink()
    if kind == "pipe":
        os.mkfifo(manifest)
    elif kind == "link out":
        (folder.parent / "secret.json").write_text('{"bin": "secret"}')
        manifest.symlink_to(folder.parent / "secret.json")
    elif kind == "other name":
        manifest.write_text("{}")
        (folder / "package.json").write_text(json.dumps({"dependencies": {"../../secret": "1"}}))
        (folder.parent / "secret").mkdir()
        (folder.parent / "secret" / "package.json").write_text('{"bin": "secret"}')
    else:
        manifest.write_text("{" if kind == "no JSON" else "[]")
    with pytest.raises(OSError, match=r"package\.json"):
        find_program(PACKAGE, folder)


def test_a_folder_that_a_killed_installer_writes_to_again_is_deleted(packages: Path) -> None:
    location, abandoned = PackageLocation(str(packages), "a"), packages / "a-12345678"
    abandoned.mkdir(parents=True)
    folder = location.create_folder()
    abandoned.mkdir()  # by the killed installer's last system call
    location.publish(folder, folder / "program")
    location.delete_abandoned(folder, None)
    assert list_folders(packages) == [folder.name]
