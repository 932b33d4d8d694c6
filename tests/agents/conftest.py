"""Fixtures of the agents' tests: an organization, an agent, and a real server with its effects."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from agents.calls import pipeline
from agents.models import Agent, Session
from agents.sessions import services as sessions
from agents.sessions.worker import SessionRunner
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.agents.crash_scenarios import Mortals
from tests.agents.llm.openai_server import FakeOpenAI, openai_server
from tests.processes import served

WORKSHOP = Path(__file__).parents[1] / "servers" / "tool_server.py"
LIBRARY = WORKSHOP.with_name("resource_server.py")


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    """An organization whose rows every thread sees."""
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    """An agent with the offline model that may call everything."""
    return factories.create_agent(acme)


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    """The file into which the workshop writes a line for each counted effect."""
    file = tmp_path / "effects"
    file.touch()
    return file


@pytest.fixture
def workshop(acme: Organization, helper: Agent, effects: Path) -> Iterator[Server]:
    """A real stdio server, discovered, approved and given to the agent."""
    server = create_server(
        factories.build_administrator(acme),
        ServerSpec(
            name="workshop",
            transport_type="stdio",
            endpoint_config={
                "command": sys.executable,
                "args": [str(WORKSHOP), "stdio"],
                "env": {"WORKSHOP_FILE": str(effects)},
            },
        ),
    )
    yield factories.approve_server(acme, server, helper)
    get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which the servers over HTTP write down what they do."""
    return tmp_path_factory.mktemp("written") / "calls"


@pytest.fixture(scope="session")
def counting_url(written: Path) -> Iterator[str]:
    """Run the server that counts its calls, for the whole session."""
    with served("call_log_server.py", written) as url:
        yield url


@pytest.fixture
def counting(
    acme: Organization, helper: Agent, counting_url: str, written: Path
) -> Iterator[Server]:
    """The server that counts its calls, given to the agent; nothing is counted yet."""
    written.write_text("")
    server = factories.create_http_server(acme, counting_url, "counting")
    yield factories.approve_server(acme, server, helper)
    get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture(scope="session")
def idle_mortals(django_db_setup: None) -> Iterator[list[Mortals]]:
    """Processes whose children die, which no test uses now; they start in two seconds each."""
    idle: list[Mortals] = []
    yield idle
    for one in idle:
        one.end()


@pytest.fixture
def mortals(
    acme: Organization, tmp_path: Path, idle_mortals: list[Mortals]
) -> Iterator[Callable[[], Mortals]]:
    """A function that returns a process whose children die: an idle one, else a new one."""
    used: list[Mortals] = []

    def use() -> Mortals:
        one = idle_mortals.pop() if idle_mortals else Mortals()
        used.append(one)
        one.log_into(tmp_path)
        return one

    yield use
    for one in used:
        if one.idle:
            idle_mortals.append(one)
        else:
            one.end()


@pytest.fixture
def library(acme: Organization, helper: Agent, effects: Path) -> Iterator[Server]:
    """A real stdio server of resources and prompts, approved and given, nothing of it ticked."""
    server = create_server(
        factories.build_administrator(acme),
        ServerSpec(
            name="library",
            transport_type="stdio",
            endpoint_config={
                "command": sys.executable,
                "args": [str(LIBRARY)],
                "env": {"LIBRARY_FILE": str(effects)},
            },
        ),
    )
    yield factories.approve_server(acme, server, helper)
    get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture
def fake(transactional_db: None) -> Iterator[FakeOpenAI]:
    """A server that speaks the OpenAI wire, on this process's loop."""
    stack = AsyncExitStack()
    yield get_runtime().call(stack.enter_async_context, openai_server())
    get_runtime().call(stack.aclose)


@pytest.fixture
def runner(transactional_db: None) -> Iterator[SessionRunner]:
    """A runner of its own on this process's loop."""
    one = SessionRunner()
    yield one
    get_runtime().call(one.drain)


@pytest.fixture
def take(runner: SessionRunner) -> Callable[[Session], str]:
    """A function that runs a session until it rests, and returns in what status."""

    async def until_rest(session_id: UUID) -> None:
        task = await runner.claim_and_run(session_id)
        if task is not None:
            await asyncio.wait_for(task, 60)

    def go(session: Session) -> str:
        get_runtime().call(until_rest, session.pk)
        session.refresh_from_db()
        return session.status

    return go


@pytest.fixture
def run(
    acme: Organization, helper: Agent, take: Callable[[Session], str]
) -> Callable[..., Session]:
    """A function that gives the agent a message and runs the session until it rests."""
    boss = factories.build_administrator(acme)

    def go(text: str = "hello", session: Session | None = None) -> Session:
        if session is None:
            session = sessions.start_session(boss, helper, text)
        else:
            sessions.send_message(boss, session, text)
        take(session)
        return session

    return go


@pytest.fixture
def call(acme: Organization, helper: Agent) -> Iterator[Callable[..., pipeline.CallOutcome]]:
    """A function that makes one governed call of the agent's tool."""
    boss = factories.build_administrator(acme)
    holder = "server:tests:caller"

    def make(
        tool: str, arguments: dict[str, Any] | None = None, **more: Any
    ) -> pipeline.CallOutcome:
        asked = {"principal": boss, "agent_id": helper.pk, "via": "rest", "holder": holder} | more
        request = pipeline.CallRequest(tool=tool, arguments=arguments or {}, **asked)
        return get_runtime().call(pipeline.make_call, request)

    yield make
    get_runtime().call(pipeline.release_connections, holder)
    get_writer().close()
