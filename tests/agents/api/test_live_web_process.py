"""REST in a real web process: from an empty pool to a call in the audit, and a session's stream."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.conf import settings
from django.middleware.csrf import _get_new_csrf_string
from django.test import Client
from django.utils import timezone

from agents.models import Session, Step
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from tests import factories
from tests.agents.api.test_sessions import STARTED, step
from tests.processes import Web

WORKSHOP = Path(__file__).parents[2] / "servers" / "tool_server.py"


@pytest.fixture(scope="module")
def root(module_rows: None) -> User:
    """The platform administrator of an organization with one agent."""
    factories.create_agent(factories.create_organization())
    return User.objects.create_superuser("root", password="pw-for-tests")


@pytest.fixture
def administrator(root: User, module_web: Web) -> Iterator[httpx.Client]:
    """A signed-in platform administrator's browser."""
    session = Client()
    session.force_login(root)
    csrf = _get_new_csrf_string()
    cookies = {
        settings.SESSION_COOKIE_NAME: session.cookies[settings.SESSION_COOKIE_NAME].value,
        settings.CSRF_COOKIE_NAME: csrf,
    }
    with httpx.Client(
        base_url=f"{module_web.url}/api/",
        cookies=cookies,
        headers={"X-CSRFToken": csrf},
        timeout=60,
    ) as client:
        yield client


def sent(client: httpx.Client, method: str, path: str, body: object = None) -> dict:  # type: ignore[type-arg]
    response = client.request(method, path, json=body)
    assert response.status_code < 300, response.text
    found: dict = response.json()  # type: ignore[type-arg]
    return found


def test_a_server_is_created_approved_attached_and_called(administrator, tmp_path):
    effects = tmp_path / "effects"
    config = {
        "command": sys.executable,
        "args": [str(WORKSHOP), "stdio"],
        "env": {"WORKSHOP_FILE": str(effects)},
    }
    body = {"name": "workshop", "transport_type": "stdio", "endpoint_config": config}
    server = sent(administrator, "POST", "mcp-servers", body)
    path = f"mcp-servers/{server['id']}"
    tested = sent(administrator, "POST", f"{path}/test")
    assert (tested["status"], tested["tools_discovered"]) == ("connected", 8)
    approved = sent(administrator, "POST", f"{path}/approve", {"all": True})
    assert {"echo", "count", "instructions"} <= set(approved["approved"])
    assert approved["waiting"] == 0

    given = {"server_id": server["id"], "allowed_tools": ["count", "echo"]}
    sent(administrator, "POST", "agents/helper/mcp-servers", given)
    tools = sent(administrator, "GET", "agents/helper/tools")["results"]
    allowed = [tool["name"] for tool in tools if tool["allowed"] and tool["source"] == "mcp"]
    assert allowed == ["mcp_workshop_count", "mcp_workshop_echo"]

    call = "agents/helper/tools/mcp_workshop_count/call"
    outcome = sent(administrator, "POST", call, {"arguments": {"what": "once"}})
    assert (outcome["outcome"], effects.read_text()) == ("ok", "once\n")
    row = sent(administrator, "GET", f"audit/{outcome['call_id']}")
    assert (row["actor"]["label"], row["details"]["arguments"]) == ("root", {"what": "once"})
    refused = administrator.post(
        "agents/helper/tools/mcp_workshop_add/call", json={"arguments": {"a": 1, "b": 2}}
    )
    assert (refused.status_code, refused.json()["code"]) == (403, "denied_by_attachment")


def test_a_write_without_the_csrf_token_is_refused(administrator):
    del administrator.headers["X-CSRFToken"]
    response = administrator.post("agents", json={"name": "x"})
    assert (response.status_code, response.json()["code"]) == (403, "csrf_failed")


def test_the_web_process_streams_events_until_the_session_ends(module_rows: None, module_web: Web):
    where = factories.create_organization("streaming")
    agent = factories.create_agent(where)
    _, token = issue_token(where)
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    with httpx.Client(base_url=module_web.url, headers=headers, timeout=20) as client:
        session_id = client.post(f"/api/agents/{agent.slug}/sessions", json=STARTED).json()["id"]
        step(session_id, 1, "message", text="What time?")
        intent = step(session_id, 2, "model", "intent", text="Let")
        address = f"/api/sessions/{session_id}/events"
        with client.stream("GET", address) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            assert response.headers["X-Accel-Buffering"] == "no"
            lines = response.iter_lines()
            assert event(lines) == ("", "state", {"status": "queued"})
            assert event(lines)[:2] == ("1", "message")
            number, kind, data = event(lines)
            assert (number, kind, data["text"]) == ("", "model", "Let")
            Step.objects.filter(pk=intent.pk).update(payload={"text": "Let me"})
            Session.objects.filter(pk=session_id).update(updated_at=timezone.now())
            assert event(lines) == ("", "text", {"seq": 2, "at": 3, "text": " me"})
            Step.objects.filter(pk=intent.pk).update(state="done", payload={"text": "Let me see."})
            Session.objects.filter(pk=session_id).update(updated_at=timezone.now())
            number, kind, data = event(lines)
            assert (number, kind, data["text"]) == ("2", "model", "Let me see.")
            Session.objects.filter(pk=session_id).update(status="done")
            assert event(lines) == ("", "rest", {"status": "done"} | NO_ERROR)
            assert list(lines) == []
        with client.stream("GET", address, headers={"Last-Event-ID": "1"}) as response:
            lines = response.iter_lines()
            assert [event(lines)[0], event(lines)[1]] == ["2", "rest"]


NO_ERROR = {"error_code": "", "error_detail": ""}


def issue_token(where: Organization) -> tuple[object, str]:
    return create_token(factories.build_administrator(where), name="stream", role=Role.OPERATOR)


def event(lines) -> tuple[str, str, dict]:  # type: ignore[no-untyped-def]
    """Read one event: its id, kind and data."""
    found = {"id": ""}
    for line in lines:
        if not line:
            break
        name, _, value = line.partition(": ")
        found[name] = value
    return found["id"], found["event"], json.loads(found["data"])
