"""REST in a real web process: from an empty pool to a recorded call, and a session's stream."""

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
from tests.agents.api.test_sessions import START_BODY, create_step
from tests.processes import Web

WORKSHOP = Path(__file__).parents[2] / "servers" / "tool_server.py"


@pytest.fixture(scope="module")
def superuser(module_rows: None) -> User:
    """The platform administrator of an organization with one agent."""
    factories.create_agent(factories.create_organization())
    return User.objects.create_superuser("root", password="pw-for-tests")


@pytest.fixture
def administrator(superuser: User, module_web: Web) -> Iterator[httpx.Client]:
    """An HTTP client with a platform administrator's browser session."""
    browser = Client()
    browser.force_login(superuser)
    csrf = _get_new_csrf_string()
    cookies = {
        settings.SESSION_COOKIE_NAME: browser.cookies[settings.SESSION_COOKIE_NAME].value,
        settings.CSRF_COOKIE_NAME: csrf,
    }
    with httpx.Client(
        base_url=f"{module_web.url}/api/",
        cookies=cookies,
        headers={"X-CSRFToken": csrf},
        timeout=60,
    ) as client:
        yield client


def send_json(client: httpx.Client, method: str, path: str, body: object = None) -> dict:  # type: ignore[type-arg]
    response = client.request(method, path, json=body)
    assert response.status_code < 300, response.text
    data: dict = response.json()  # type: ignore[type-arg]
    return data


def test_a_server_is_created_approved_attached_and_called(administrator, tmp_path):
    effects = tmp_path / "effects"
    config = {
        "command": sys.executable,
        "args": [str(WORKSHOP), "stdio"],
        "env": {"WORKSHOP_FILE": str(effects)},
    }
    body = {"name": "workshop", "transport_type": "stdio", "endpoint_config": config}
    server = send_json(administrator, "POST", "mcp-servers", body)
    path = f"mcp-servers/{server['id']}"
    check = send_json(administrator, "POST", f"{path}/test")
    assert (check["status"], check["tools_discovered"]) == ("connected", 8)
    approved = send_json(administrator, "POST", f"{path}/approve", {"all": True})
    assert {"echo", "count", "instructions"} <= set(approved["approved"])
    assert approved["pending_review"] == 0

    attachment = {"server_id": server["id"], "allowed_tools": ["count", "echo"]}
    send_json(administrator, "POST", "agents/helper/mcp-servers", attachment)
    tools = send_json(administrator, "GET", "agents/helper/tools")["results"]
    allowed = [tool["name"] for tool in tools if tool["allowed"] and tool["source"] == "mcp"]
    assert allowed == ["mcp_workshop_count", "mcp_workshop_echo"]

    call_path = "agents/helper/tools/mcp_workshop_count/call"
    outcome = send_json(administrator, "POST", call_path, {"arguments": {"what": "once"}})
    assert (outcome["outcome"], effects.read_text()) == ("ok", "once\n")
    row = send_json(administrator, "GET", f"audit/{outcome['call_id']}")
    assert (row["actor"]["label"], row["details"]["arguments"]) == ("root", {"what": "once"})
    denied = administrator.post(
        "agents/helper/tools/mcp_workshop_add/call", json={"arguments": {"a": 1, "b": 2}}
    )
    assert (denied.status_code, denied.json()["code"]) == (403, "denied_by_attachment")


def test_a_write_without_the_csrf_token_is_refused(administrator):
    del administrator.headers["X-CSRFToken"]
    response = administrator.post("agents", json={"name": "x"})
    assert (response.status_code, response.json()["code"]) == (403, "csrf_failed")


def test_the_web_process_streams_events_until_the_session_ends(module_rows: None, module_web: Web):
    organization = factories.create_organization("streaming")
    agent = factories.create_agent(organization)
    _, token = issue_token(organization)
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    with httpx.Client(base_url=module_web.url, headers=headers, timeout=20) as client:
        session_id = client.post(f"/api/agents/{agent.slug}/sessions", json=START_BODY).json()["id"]
        create_step(session_id, 1, "message", text="What time?")
        intent = create_step(session_id, 2, "model", "intent", text="Let")
        path = f"/api/sessions/{session_id}/events"
        with client.stream("GET", path) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            assert response.headers["X-Accel-Buffering"] == "no"
            lines = response.iter_lines()
            assert read_event(lines) == ("", "state", {"status": "queued"})
            assert read_event(lines)[:2] == ("1", "message")
            event_id, kind, data = read_event(lines)
            assert (event_id, kind, data["text"]) == ("", "model", "Let")
            Step.objects.filter(pk=intent.pk).update(payload={"text": "Let me"})
            Session.objects.filter(pk=session_id).update(updated_at=timezone.now())
            assert read_event(lines) == ("", "text", {"seq": 2, "at": 3, "text": " me"})
            Step.objects.filter(pk=intent.pk).update(state="done", payload={"text": "Let me see."})
            Session.objects.filter(pk=session_id).update(updated_at=timezone.now())
            event_id, kind, data = read_event(lines)
            assert (event_id, kind, data["text"]) == ("2", "model", "Let me see.")
            Session.objects.filter(pk=session_id).update(status="done")
            assert read_event(lines) == ("", "rest", {"status": "done"} | NO_ERROR)
            assert list(lines) == []
        with client.stream("GET", path, headers={"Last-Event-ID": "1"}) as response:
            lines = response.iter_lines()
            assert [read_event(lines)[0], read_event(lines)[1]] == ["2", "rest"]


NO_ERROR = {"error_code": "", "error_detail": ""}


def issue_token(organization: Organization) -> tuple[object, str]:
    return create_token(
        factories.build_administrator(organization), name="stream", role=Role.OPERATOR
    )


def read_event(lines) -> tuple[str, str, dict]:  # type: ignore[no-untyped-def]
    """Read one event: its ID, kind, and data."""
    event = {"id": ""}
    for line in lines:
        if not line:
            break
        name, _, value = line.partition(": ")
        event[name] = value
    return event["id"], event["event"], json.loads(event["data"])
