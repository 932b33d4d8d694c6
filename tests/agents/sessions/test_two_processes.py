"""One process runs a session, another watches it: over the database, and over Redis."""

import asyncio
import shutil
import sys
from contextlib import AsyncExitStack
from weakref import WeakKeyDictionary

import pytest

from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Session, Step
from agents.sessions.events import load_events
from agents.sessions.export import build_report
from bonobot.core import redis_bus
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, processes
from tests.agents.conftest import WORKSHOP
from tests.agents.llm.openai_server import FakeOpenAI, Says
from tests.agents.llm.provider_server import serve
from tests.agents.sessions.test_events_subscribers import Watcher
from tests.parts import ROOT
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

CLIMB = Says(text="I will climb.", calls=(("1", "mcp_workshop_climb", "{}"),))


class Halting(FakeOpenAI):
    """Stops in the middle of each answer until it may go on."""

    may_go_on = asyncio.Event()

    def served(self, path, said, step):
        response = super().served(path, said, step)
        response.body_iterator = self._paced(response.body_iterator)
        return response

    async def _paced(self, lines):
        count = 0
        async for line in lines:
            if count == 2:
                await self.may_go_on.wait()
                self.may_go_on.clear()
            count += 1
            yield line


@pytest.fixture
def provider(acme, helper):
    stack, fake = AsyncExitStack(), Halting(script=[CLIMB, Says(text="At the top.")])
    fake.may_go_on = asyncio.Event()
    get_runtime().call(stack.enter_async_context, serve(fake))
    helper.model_endpoint = save_endpoint(
        factories.build_administrator(acme),
        ModelEndpointSpec(name="Fake", base_url=fake.url, model="m", allow_private=True),
    )
    helper.save()
    yield fake
    get_runtime().call(stack.aclose)


@pytest.fixture
def gate(acme, helper, tmp_path):
    """The file that lets the server's tool end."""
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
def run(provider, gate, running, tmp_path, monkeypatch, settings):
    """A function that has another process run a session; both use the Redis at a URL, if any."""
    monkeypatch.setattr(redis_bus, "_buses", WeakKeyDictionary())

    def go(redis_url=""):
        settings.REDIS_URL = redis_url
        command = [sys.executable, "manage.py", "agents", "run", "helper", "climb", "--json"]
        env = processes.environment({"REDIS_URL": redis_url})
        process = processes.start("agents", command, folder=tmp_path, env=env)
        running.append(process)
        found = eventually(lambda: process.require() and Session.objects.first(), within=30)
        return process, found

    yield go
    get_runtime().call(redis_bus.get_bus().close)


@pytest.fixture
def redis(running, tmp_path, free_port):
    """A Redis of the test's own, which it may empty and end."""
    command = [shutil.which("redis-server") or "redis-server", "--port", str(free_port)]
    command += ["--save", "", "--bind", "127.0.0.1"]
    process = processes.start("redis", command, folder=tmp_path, env={}, cwd=ROOT)
    running.append(process)
    eventually(lambda: process.require() and "Ready to accept" in process.log())
    return process, f"redis://127.0.0.1:{free_port}/0"


async def until_text(watcher, wanted):
    """Follow until the unsettled step shows a text."""
    told = ""
    while wanted not in told:
        for event in await watcher.until("text", "model"):
            if event.kind in ("text", "model"):
                told = (told if event.kind == "text" else "") + event.data["text"]


async def until_progress(watcher):
    """Follow until a call shows how far it has come, alone or with the call."""
    while True:
        for event in await watcher.until("progress", "call"):
            if event.kind == "progress":
                return {name: event.data[name] for name in ("done", "total", "message")}
            if event.data.get("progress"):
                return event.data["progress"]


async def partial_texts(session):
    rows = Step.objects.filter(session=session, state=Step.State.INTENT)
    return await get_runtime().run_orm(lambda: [row.payload.get("text") for row in rows])


def check(session, process, watcher):
    """Check that nothing was missed, and that everybody who comes again is told the rest."""
    assert process.popen.wait(30) == 0
    assert build_report(session.pk)["answer"] == "At the top."
    final = [(event.id, event.kind) for event in watcher.heard if event.id]
    kinds = ["message", "model", "call", "model", "end"]
    assert final == list(enumerate(kinds, start=1))
    for seq, _ in final:
        again = [(event.id, event.kind) for event in load_events(session.pk, seq)]
        assert again == [*final[seq:], (None, "rest")]


def test_two_processes_share_sessions_over_the_database(run, provider, gate):
    process, session = run()

    async def watched():
        watcher = Watcher(session.pk)
        await until_text(watcher, "I wi")
        assert (await partial_texts(session))[0].startswith("I wi")
        provider.may_go_on.set()
        progress = await until_progress(watcher)
        await asyncio.to_thread(gate.touch)
        provider.may_go_on.set()
        await watcher.until("rest")
        await watcher.leave()
        return watcher, progress

    watcher, progress = get_runtime().call(watched, timeout_s=60)
    assert progress == {"done": 1, "total": 2, "message": "half way"}
    check(session, process, watcher)


@pytest.mark.redis
def test_two_processes_share_sessions_over_redis_and_survive_its_loss(run, provider, gate, redis):
    server, url = redis
    process, session = run(url)

    async def watched():
        watcher = Watcher(session.pk)
        await until_text(watcher, "I wi")
        assert await partial_texts(session) == [""], "text goes over Redis, not into rows"
        await redis_bus.get_bus()._get_client().flushall()
        provider.may_go_on.set()
        progress = await until_progress(watcher)
        server.kill()
        await asyncio.to_thread(gate.touch)
        await until_text(watcher, "At t")
        [written] = await partial_texts(session)
        assert written.startswith("At t"), "there is no Redis any more"
        provider.may_go_on.set()
        await watcher.until("rest")
        await watcher.leave()
        return watcher, progress

    watcher, progress = get_runtime().call(watched, timeout_s=60)
    assert progress == {"done": 1, "total": 2, "message": "half way"}
    check(session, process, watcher)
