"""Measure how long the first text of a model takes to reach a client that follows the session.

    make bench            (this among others)
    .venv/bin/python -m pytest -n0 -s -q benchmarks/bench_first_text.py

A web process and a worker; the model and the watchers live in this process, so one clock measures
both ends. The time runs from the moment the model sends its first piece until a client of
`GET /api/sessions/{id}/events` has received it. The model thinks for a random while, then streams
ten pieces, a tenth of a second apart.

`DATABASE_URL` and `REDIS_URL` choose where it is measured: without them, SQLite and the filesystem
broker. `BENCH_SESSIONS` is how many sessions are measured (default 40).
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median

import httpx
import pytest
from django.conf import settings
from django.db import connection

from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Agent, Session
from agents.sessions.services import start_session
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.runtime import get_runtime
from tests import factories, processes
from tests.servers.raw_http_server import RawHttp, RecordedRequest

SESSIONS = int(os.environ.get("BENCH_SESSIONS", "40"))
TARGET_MS = 50
PIECES = 10
PIECE_INTERVAL_S = 0.1
THINKING_S = (0.2, 1.2)
NEVER = 10**9  # a limit that isn't reached
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

pytestmark = pytest.mark.django_db(transaction=True)


class StreamingModel(RawHttp):
    """A provider that streams text, and when it sent the first piece of each answer."""

    def __init__(self) -> None:
        super().__init__(self._stream_answer)
        self.sent_at: dict[str, float] = {}

    async def _stream_answer(self, asked: RecordedRequest) -> AsyncIterator[bytes]:
        prompt = next(
            message["content"] for message in asked.message["messages"] if message["role"] == "user"
        )
        yield HEAD
        await asyncio.sleep(random.uniform(*THINKING_S))  # noqa: S311
        self.sent_at[prompt] = time.perf_counter()
        for number in range(PIECES):
            yield build_chunk({"role": "assistant", "content": f"piece {number} "})
            await asyncio.sleep(PIECE_INTERVAL_S)
        yield build_chunk({}, "stop") + b"data: [DONE]\n\n"


def build_chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    chunk = {
        **{"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "streaming-1"},
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def create_agent(model: StreamingModel) -> Agent:
    acme = factories.create_organization()
    save_endpoint(
        factories.build_administrator(acme),
        ModelEndpointSpec(
            name="Streaming",
            kind="openai",
            base_url=f"http://127.0.0.1:{model.port}/v1",
            model="streaming-1",
            allow_private=True,
        ),
    )
    return factories.create_agent(acme, calls_per_minute=NEVER // 1000)


async def measure_session(client: httpx.AsyncClient, agent: Agent, prompt: str) -> float:
    """Start a session; return when its watcher received the first text."""
    session: Session = await get_runtime().run_orm(
        start_session, factories.build_administrator(agent.organization), agent, prompt
    )
    received_at = 0.0
    async with client.stream("GET", f"/api/sessions/{session.pk}/events") as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not received_at and "piece 0" in line:
                received_at = time.perf_counter()
    return received_at


async def measure_sessions(url: str, token: str, agent: Agent, at_once: int) -> dict[str, float]:
    received_at: dict[str, float] = {}
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        for start in range(0, SESSIONS, at_once):
            prompts = [f"{at_once}: {start + number}" for number in range(at_once)]
            measured = [measure_session(client, agent, prompt) for prompt in prompts]
            received_at |= zip(prompts, await asyncio.gather(*measured), strict=True)
    return received_at


def test_the_first_text_reaches_a_watcher(tmp_path: Path) -> None:
    model = StreamingModel()
    listening = model.listening()
    get_runtime().call(listening.__aenter__)
    agent = create_agent(model)
    administrator = factories.build_administrator(agent.organization)
    _, token = create_token(administrator, name="watcher", role=Role.OWNER, agent_ids=[])
    web = processes.start_web(tmp_path, "web", port=processes.find_unused_port())
    worker = processes.start_worker(tmp_path, "worker")
    lines = []
    try:
        for concurrency in (1, 10):
            received_at = get_runtime().call(measure_sessions, web.url, token, agent, concurrency)
            elapsed = sorted(
                1000 * (at - model.sent_at[prompt]) for prompt, at in received_at.items()
            )
            lines.append(
                f"{connection.vendor}, {'Redis' if settings.REDIS_URL else 'no Redis'}, "
                f"{concurrency} at once: first text after {median(elapsed):.0f} ms (p50),"
                f" {elapsed[int(len(elapsed) * 0.95)]:.0f} ms (p95), {elapsed[-1]:.0f} ms (max),"
                f" target {TARGET_MS} ms; load {os.getloadavg()[0]:.1f}"
            )
    finally:
        for process in (web, worker):
            process.kill()
        get_runtime().call(listening.__aexit__, None, None, None)
    sys.stdout.write("\n" + "\n".join(lines) + "\n")
