"""One process runs a session and another watches it, over the database and over Redis."""

import asyncio
import shutil
import sys
from contextlib import AsyncExitStack
from weakref import WeakKeyDictionary

import pytest

from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Session, Step
from agents.sessions import events
from agents.sessions.export import build_report
from bonobot.core import message_bus
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, processes
from tests.agents.conftest import WORKSHOP
from tests.agents.llm.openai_server import FakeOpenAI, Says
from tests.agents.llm.provider_server import serve
from tests.agents.sessions.event_lists import load_events
from tests.agents.sessions.test_events_subscribers import Watcher
from tests.parts import ROOT
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

CLIMB = Says(text="I will climb.", calls=(("1", "mcp_workshop_climb", "{}"),))


class PausingProvider(FakeOpenAI):
    """Pauses in the middle of each answer until it can continue."""

    can_continue = asyncio.Event()

    def respond(self, path, request, step):
        response = super().respond(path, request, step)
        response.body_iterator = self._pause(response.body_iterator)
        return response

    async def _pause(self, lines):
        count = 0
        async for line in lines:
            if count == 2:
                await self.can_continue.wait()
                self.can_continue.clear()
            count += 1
            yield line


@pytest.fixture
def provider(acme, helper):
    stack, fake = AsyncExitStack(), PausingProvider(script=[CLIMB, Says(text="At the top.")])
    fake.can_continue = asyncio.Event()
    get_runtime().call(stack.enter_async_context, serve(fake))
    helper.model_endpoint = save_endpoint(
        factories.build_administrator(acme),
        ModelEndpointSpec(name="Fake", base_url=fake.url, model="m", allow_private=True),
    )
    helper.save()
    yield fake
    get_runtime().call(stack.aclose)


@pytest.fixture
def gate_file(acme, helper, tmp_path):
    """The file that ends the server's tool call when it exists."""
    file = tmp_path / "gate"
    command = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}
    spec = ServerSpec(
        name="workshop",
        transport_type="stdio",
        endpoint_config=command | {"env": {"WORKSHOP_GATE": str(file)}},
    )
    server = factories.approve_server(
        acme, create_server(factories.build_administrator(acme), spec), helper
    )
    yield file
    get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture
def run(provider, gate_file, running, tmp_path, monkeypatch, settings):
    """Return a function that runs a session in another process; both use the same Redis, if any."""
    monkeypatch.setattr(message_bus, "_buses", WeakKeyDictionary())

    def start_run(redis_url=""):
        settings.REDIS_URL = redis_url
        command = [sys.executable, "manage.py", "agents", "run", "helper", "climb", "--json"]
        env = processes.build_environment({"REDIS_URL": redis_url})
        process = processes.start_process("agents", command, folder=tmp_path, env=env)
        running.append(process)
        session = eventually(lambda: process.require() and Session.objects.first(), within=30)
        return process, session

    yield start_run
    get_runtime().call(message_bus.get_bus().close)


@pytest.fixture
def redis(running, tmp_path, free_port):
    """A separate Redis, which the test can flush and kill."""
    command = [shutil.which("redis-server") or "redis-server", "--port", str(free_port)]
    command += ["--save", "", "--bind", "127.0.0.1"]
    process = processes.start_process("redis", command, folder=tmp_path, env={}, cwd=ROOT)
    running.append(process)
    eventually(lambda: process.require() and "Ready to accept" in process.log())
    return process, f"redis://127.0.0.1:{free_port}/0"


async def follow_until_text(watcher, expected):
    """Watch until the unfinished step has a text."""
    shown = ""
    while expected not in shown:
        for event in await watcher.until("text", "model"):
            if event.kind in ("text", "model"):
                shown = (shown if event.kind == "text" else "") + event.data["text"]


async def follow_until_progress(watcher):
    """Watch until there is progress of a call, alone or with the call."""
    while True:
        for event in await watcher.until("progress", "call"):
            if event.kind == "progress":
                return {name: event.data[name] for name in ("done", "total", "message")}
            if event.data.get("progress"):
                return event.data["progress"]


async def read_partial_texts(session):
    rows = Step.objects.filter(session=session, state=Step.State.INTENT)
    return await get_runtime().run_orm(lambda: [row.payload.get("text") for row in rows])


def check(session, process, watcher):
    """Check that no event was missed, and that watchers can resume from each event."""
    assert process.popen.wait(30) == 0
    assert build_report(session.pk)["answer"] == "At the top."
    final = [(event.id, event.kind) for event in watcher.events if event.id]
    kinds = ["message", "model", "call", "model", "end"]
    assert final == list(enumerate(kinds, start=1))
    for seq, _ in final:
        resumed = [(event.id, event.kind) for event in load_events(session.pk, seq)]
        assert resumed == [*final[seq:], (None, "rest")]


def test_two_processes_share_sessions_over_the_database(run, provider, gate_file, monkeypatch):
    # Without polls, the watcher depends on messages of the other process.
    monkeypatch.setattr(events, "POLL_INTERVAL_S", 1000)
    monkeypatch.setattr(events, "FALLBACK_POLL_INTERVAL_S", 1000)
    process, session = run()

    async def watch():
        watcher = Watcher(session.pk)
        await follow_until_text(watcher, "I wi")
        assert (await read_partial_texts(session))[0].startswith("I wi")
        provider.can_continue.set()
        progress = await follow_until_progress(watcher)
        await asyncio.to_thread(gate_file.touch)
        provider.can_continue.set()
        await watcher.until("rest")
        await watcher.close()
        return watcher, progress

    watcher, progress = get_runtime().call(watch, timeout_s=60)
    assert progress == {"done": 1, "total": 2, "message": "half way"}
    check(session, process, watcher)


@pytest.mark.redis
def test_two_processes_share_sessions_over_redis_and_survive_its_loss(
    run, provider, gate_file, redis
):
    server, url = redis
    process, session = run(url)

    async def watch():
        watcher = Watcher(session.pk)
        await follow_until_text(watcher, "I wi")
        assert await read_partial_texts(session) == [""], "text is sent over Redis, not stored"
        await message_bus.get_bus()._get_client().flushall()
        provider.can_continue.set()
        progress = await follow_until_progress(watcher)
        server.kill()
        await asyncio.to_thread(gate_file.touch)
        await follow_until_text(watcher, "At t")
        [stored_text] = await read_partial_texts(session)
        assert stored_text.startswith("At t"), "Redis isn't running"
        provider.can_continue.set()
        await watcher.until("rest")
        await watcher.close()
        return watcher, progress

    watcher, progress = get_runtime().call(watch, timeout_s=60)
    assert progress == {"done": 1, "total": 2, "message": "half way"}
    check(session, process, watcher)
