"""Fixtures for the tests of agents: an organization, an agent, real servers, and a runner."""

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
from tests.agents.crash_scenarios import CrashProcess
from tests.agents.llm.openai_server import FakeOpenAI, openai_server
from tests.processes import serve

WORKSHOP = Path(__file__).parents[1] / "servers" / "tool_server.py"
LIBRARY = WORKSHOP.with_name("resource_server.py")


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    """An organization whose rows are visible to every thread."""
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    """An agent with the offline model whose policy allows every tool."""
    return factories.create_agent(acme)


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    """The file to which the workshop server appends a line for each effect."""
    file = tmp_path / "effects"
    file.touch()
    return file


@pytest.fixture
def workshop(acme: Organization, helper: Agent, effects: Path) -> Iterator[Server]:
    """A real stdio server, discovered, approved, and attached to the agent."""
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
def call_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which the HTTP servers log their calls."""
    return tmp_path_factory.mktemp("written") / "calls"


@pytest.fixture(scope="session")
def counting_url(call_log: Path) -> Iterator[str]:
    """Run the server that logs its calls for the whole test session."""
    with serve("call_log_server.py", call_log) as url:
        yield url


@pytest.fixture
def counting(
    acme: Organization, helper: Agent, counting_url: str, call_log: Path
) -> Iterator[Server]:
    """The server that logs its calls, attached to the agent, with an empty log."""
    call_log.write_text("")
    server = factories.create_http_server(acme, counting_url, "counting")
    yield factories.approve_server(acme, server, helper)
    get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture(scope="session")
def idle_processes(django_db_setup: None) -> Iterator[list[CrashProcess]]:
    """Idle parent processes for crash tests, kept because each takes two seconds to start."""
    idle: list[CrashProcess] = []
    yield idle
    for process in idle:
        process.end()


@pytest.fixture
def start_crash_process(
    acme: Organization, tmp_path: Path, idle_processes: list[CrashProcess]
) -> Iterator[Callable[[], CrashProcess]]:
    """A function that returns a parent process for crash tests: an idle one, or a new one."""
    processes: list[CrashProcess] = []

    def get_process() -> CrashProcess:
        process = idle_processes.pop() if idle_processes else CrashProcess()
        processes.append(process)
        process.log_into(tmp_path)
        return process

    yield get_process
    for process in processes:
        if process.idle:
            idle_processes.append(process)
        else:
            process.end()


@pytest.fixture
def library(acme: Organization, helper: Agent, effects: Path) -> Iterator[Server]:
    """A real stdio server with resources and prompts, approved and attached, none selected."""
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
    """A server that implements the OpenAI API, on this process's event loop."""
    stack = AsyncExitStack()
    yield get_runtime().call(stack.enter_async_context, openai_server())
    get_runtime().call(stack.aclose)


@pytest.fixture
def runner(transactional_db: None) -> Iterator[SessionRunner]:
    """A separate session runner on this process's event loop."""
    session_runner = SessionRunner()
    yield session_runner
    get_runtime().call(session_runner.drain)


@pytest.fixture
def run_to_rest(runner: SessionRunner) -> Callable[[Session], str]:
    """A function that runs a session until it is idle and returns its status."""

    async def run_until_idle(session_id: UUID) -> None:
        task = await runner.claim_and_run(session_id)
        if task is not None:
            await asyncio.wait_for(task, 60)

    def run_session(session: Session) -> str:
        get_runtime().call(run_until_idle, session.pk)
        session.refresh_from_db()
        return session.status

    return run_session


@pytest.fixture
def run(
    acme: Organization, helper: Agent, run_to_rest: Callable[[Session], str]
) -> Callable[..., Session]:
    """A function that sends the agent a message and runs the session until it is idle."""
    administrator = factories.build_administrator(acme)

    def send_message(text: str = "hello", session: Session | None = None) -> Session:
        if session is None:
            session = sessions.start_session(administrator, helper, text)
        else:
            sessions.send_message(administrator, session, text)
        run_to_rest(session)
        return session

    return send_message


@pytest.fixture
def call(acme: Organization, helper: Agent) -> Iterator[Callable[..., pipeline.CallOutcome]]:
    """A function that calls one of the agent's tools through the pipeline."""
    administrator = factories.build_administrator(acme)
    holder = "server:tests:caller"

    def call_tool(
        tool: str, arguments: dict[str, Any] | None = None, **options: Any
    ) -> pipeline.CallOutcome:
        fields = {
            "principal": administrator,
            "agent_id": helper.pk,
            "via": "rest",
            "holder": holder,
        } | options
        request = pipeline.CallRequest(tool=tool, arguments=arguments or {}, **fields)
        return get_runtime().call(pipeline.make_call, request)

    yield call_tool
    get_runtime().call(pipeline.release_connections, holder)
    get_writer().close()
