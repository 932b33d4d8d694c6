"""Fixtures of the bots' tests: queued sessions are run meanwhile, and a client that uses tools."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from jsonschema import Draft202012Validator

from agents.models import Session
from agents.sessions.worker import SessionRunner
from bonobot.core.runtime import get_runtime
from tests.agents.conftest import runner, take
from tests.agents.gateway.conftest import Reply, Wire

__all__ = ["runner", "take"]

PATH = "/mcp"


@dataclass(frozen=True)
class Client:
    """Uses the organization's tools; every result is held against what its tool declares."""

    wire: Wire
    token: str | None = None

    def tools(self) -> dict[str, dict[str, Any]]:
        """What is listed, by name."""
        listed = self.wire.modern(PATH, "tools/list", token=self.token).result["tools"]
        return {tool["name"]: tool for tool in listed}

    def call(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Reply:
        """Call a tool."""
        params = {"name": name, "arguments": arguments or {}}
        return self.wire.modern(PATH, "tools/call", params, token=self.token, **more)

    def use(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool that does what it is asked, and return its structured content."""
        result = self.call(name, arguments).result
        assert not result.get("isError"), result
        found: dict[str, Any] = result["structuredContent"]
        Draft202012Validator(self.tools()[name]["outputSchema"]).validate(found)
        return found


@pytest.fixture
def client(wire: Wire) -> Client:
    """The organization's tools, used with an owner's token."""
    return Client(wire)


@pytest.fixture
def at_work(runner: SessionRunner) -> Iterator[None]:
    """Sessions that are queued are run meanwhile, as by a worker."""
    working: Future[None] = get_runtime().spawn(_work(runner), name="worker of the tests")
    yield
    working.cancel()


async def _work(runner: SessionRunner) -> None:
    with suppress(asyncio.CancelledError):
        while True:
            for session_id in await get_runtime().run_orm(_queued):
                await runner.claim_and_run(session_id)
            await asyncio.sleep(0.02)


def _queued() -> list[UUID]:
    return list(Session.objects.filter(status=Session.Status.QUEUED).values_list("pk", flat=True))
