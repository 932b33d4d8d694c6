"""The main path over REST in a real web process: from an empty pool to a call in the audit."""

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.conf import settings
from django.middleware.csrf import _get_new_csrf_string
from django.test import Client

from bonobot.tenancy.models import User
from tests.agents import casting
from tests.processes import Web

WORKSHOP = Path(__file__).parents[2] / "servers" / "workshop.py"


@pytest.fixture
def administrator(transactional_db: None, live_web: Web) -> Iterator[httpx.Client]:
    """A signed-in platform administrator's browser."""
    casting.agent(casting.organization())
    session = Client()
    session.force_login(User.objects.create_superuser("root", password="pw-for-tests"))
    csrf = _get_new_csrf_string()
    cookies = {
        settings.SESSION_COOKIE_NAME: session.cookies[settings.SESSION_COOKIE_NAME].value,
        settings.CSRF_COOKIE_NAME: csrf,
    }
    with httpx.Client(
        base_url=f"{live_web.url}/api/", cookies=cookies, headers={"X-CSRFToken": csrf}, timeout=60
    ) as client:
        yield client


def sent(client: httpx.Client, method: str, path: str, body: object = None) -> dict:  # type: ignore[type-arg]
    response = client.request(method, path, json=body)
    assert response.status_code < 300, response.text
    found: dict = response.json()  # type: ignore[type-arg]
    return found


def test_a_server_is_added_read_approved_given_and_called(administrator, tmp_path):
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
    assert (refused.status_code, refused.json()["code"]) == (403, "denied_by_binding")


def test_a_write_without_the_csrf_token_is_refused(administrator):
    del administrator.headers["X-CSRFToken"]
    response = administrator.post("agents", json={"name": "x"})
    assert (response.status_code, response.json()["code"]) == (403, "csrf_failed")
