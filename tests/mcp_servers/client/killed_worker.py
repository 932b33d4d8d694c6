"""A worker that installs a package, and kills itself at a step: before or after a function's call.

`python -m tests.mcp_servers.client.killed_worker URL PACKAGES WHEN OWNER NAME NUMBER REINSTALL`
"""

import asyncio
import inspect
import os
import signal
import sys
from functools import wraps
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")
django.setup()

from mcp_servers.client import package_installation  # noqa: E402 - it needs Django's settings
from tests.mcp_servers.client.test_package_installation import build_npx_endpoint  # noqa: E402
from tests.servers.npm_registry import Registry  # noqa: E402


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(packages: str, when: str, owner: str, name: str, number: int) -> None:
    """Replace a function by one that kills this process before or after its nth call."""
    holder: Any = {
        "": package_installation,
        "Path": Path,
        "PackageLocation": package_installation.PackageLocation,
    }[owner]
    function = getattr(holder, name)
    calls = 0

    async def await_and_die(*args: Any, **kwargs: Any) -> None:
        await function(*args, **kwargs)
        kill_self()

    def call_and_die(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        is_ours = owner != "Path" or str(args[0]).startswith(packages)
        calls += is_ours
        if is_ours and calls == number and when == "before":
            kill_self()
        result = function(*args, **kwargs)
        if is_ours and calls == number and when == "after":
            kill_self()
        return result

    is_async = inspect.iscoroutinefunction(function)
    setattr(holder, name, wraps(function)(await_and_die if is_async else call_and_die))


def main() -> None:
    url, packages, when, owner, name, number, reinstall = sys.argv[1:]
    if name:
        kill_at(packages, when, owner, name, int(number))
    endpoint = build_npx_endpoint(Registry(url=url), Path(packages), install_wait_s=60)
    installation = package_installation.install_package(
        endpoint, reinstall=reinstall == "reinstall"
    )
    asyncio.run(installation)


if __name__ == "__main__":
    main()
