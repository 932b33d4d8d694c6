"""Fixtures for `/mcp`: a client of its tools, and a worker for queued sessions."""

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
from tests.agents.conftest import run_to_rest, runner
from tests.agents.gateway.conftest import GatewayClient, Reply

__all__ = ["run_to_rest", "runner"]

PATH = "/mcp"


@dataclass(frozen=True)
class Client:
    """A client of the organization's tools that validates every result."""

    gateway_client: GatewayClient
    token: str | None = None

    def tools(self) -> dict[str, dict[str, Any]]:
        """Return the listed tools by name."""
        declarations = self.gateway_client.modern(PATH, "tools/list", token=self.token).result[
            "tools"
        ]
        return {tool["name"]: tool for tool in declarations}

    def call(self, name: str, arguments: dict[str, Any] | None = None, **more: Any) -> Reply:
        """Call a tool."""
        params = {"name": name, "arguments": arguments or {}}
        return self.gateway_client.modern(PATH, "tools/call", params, token=self.token, **more)

    def use(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool successfully and return its structured content."""
        result = self.call(name, arguments).result
        assert not result.get("isError"), result
        content: dict[str, Any] = result["structuredContent"]
        Draft202012Validator(self.tools()[name]["outputSchema"]).validate(content)
        return content


@pytest.fixture
def client(gateway_client: GatewayClient) -> Client:
    """A client with an owner's token."""
    return Client(gateway_client)


@pytest.fixture
def running_worker(runner: SessionRunner) -> Iterator[None]:
    """Run queued sessions during the test, like a worker."""
    worker: Future[None] = get_runtime().spawn(
        _run_queued_sessions(runner), name="worker of the tests"
    )
    yield
    worker.cancel()


async def _run_queued_sessions(runner: SessionRunner) -> None:
    with suppress(asyncio.CancelledError):
        while True:
            for session_id in await get_runtime().run_orm(_list_queued_sessions):
                await runner.claim_and_run(session_id)
            await asyncio.sleep(0.02)


def _list_queued_sessions() -> list[UUID]:
    return list(Session.objects.filter(status=Session.Status.QUEUED).values_list("pk", flat=True))
