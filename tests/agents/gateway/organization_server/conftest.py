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

from agents.models import Agent, Session
from agents.sessions.worker import SessionRunner
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from tests import factories, rest
from tests.agents.conftest import run_to_rest, runner
from tests.agents.gateway.conftest import GatewayClient, Reply
from tests.agents.labeled_stores import Caller, World, create_world

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


@dataclass(frozen=True)
class Scene:
    """An organization, a client with an owner's token, and its interfaces."""

    world: World
    program: Caller
    rest: rest.RestClient
    client: Client
    gateway_client: GatewayClient
    text: str

    def create_session(self) -> Session:
        """Create an answered session."""
        return factories.create_answered_session(self.world.helper)

    def get_caller(self, session: Session) -> Caller:
        """Return the caller of a session."""
        return Caller(self.world.administrator, session.agent, session)


@pytest.fixture
def world(acme: Organization, helper: Agent) -> Iterator[World]:
    with create_world(acme, helper) as new_world:
        yield new_world


@pytest.fixture
def scene(world: World, gateway_client: GatewayClient) -> Scene:
    program, text = world.issue_organization_token()
    return Scene(
        world, program, rest.RestClient(text), Client(gateway_client, text), gateway_client, text
    )
