"""A chat through a real web process and a real worker."""

import json

import httpx2
import pytest

from agents.models import Agent
from bonobot.accounts.models import Organization
from tests import factories
from tests.agents.gateway.conftest import META, MODERN, token_of
from tests.processes import Process, Web

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.whole("postgres")
def test_a_chat_is_streamed_while_a_worker_runs_it(
    acme: Organization, helper: Agent, live_web: Web, worker: Process
) -> None:
    meta = {
        f"{META}protocolVersion": MODERN,
        f"{META}clientInfo": {"name": "live", "version": "1"},
        f"{META}clientCapabilities": {},
        "progressToken": "p",
    }
    params = {
        "name": "helper_chat",
        "arguments": {"message": "hello", "wait_s": 60},
        "_meta": meta,
    }
    headers = {
        "Authorization": f"Bearer {token_of(factories.build_administrator(acme))}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "helper_chat",
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    response = httpx2.post(f"{live_web.url}/mcp", json=body, headers=headers, timeout=90)
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    *notifications, last = [json.loads(line) for line in lines]
    content = last["result"]["structuredContent"]
    assert (content["status"], content["resting"]) == ("done", True)
    pieces = [
        notification["params"]["message"]
        for notification in notifications
        if "method" in notification
    ]
    assert content["answer"] in "".join(pieces)
