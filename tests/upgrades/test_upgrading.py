"""What a release left behind is taken over whole: `bonobot migrate`, and everything goes on."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import pytest_django

from tests import processes
from tests.processes import Web
from tests.upgrades.installation import VERSIONS, Installation, empty, left_by


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("upgrades")


@pytest.fixture(scope="module", params=VERSIONS)
def left(
    request: pytest.FixtureRequest,
    folder: Path,
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
) -> Iterator[Installation]:
    """The database of a release, and what was counted in it before it was migrated."""
    with django_db_blocker.unblock(), left_by(request.param, folder) as kept:
        yield kept


@pytest.fixture(scope="module")
def before(left: Installation) -> dict[str, int]:
    return left.counts()


@pytest.fixture(scope="module")
def upgraded(left: Installation, before: dict[str, int]) -> Installation:
    done = left.run("migrate", "--no-input")
    assert done.returncode == 0, done.stderr
    return left


@pytest.fixture(scope="module")
def web(upgraded: Installation, folder: Path) -> Iterator[Web]:
    """A web process of today on what was left."""
    port = processes.unused_port()
    started = processes.start_web(folder, "upgraded", port=port, extra=upgraded.env)
    yield started
    started.stop()


def bearer(kept: Installation, who: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {kept.facts[who]['token']}"}


def test_no_row_is_lost(upgraded: Installation, before: dict[str, int]) -> None:
    after = upgraded.counts()
    # Presets are rows of our own file, loaded anew by every migration.
    kept = {name: count for name, count in before.items() if name != "mcp_servers_preset"}
    assert {name: after.get(name) for name in kept} == kept


def test_the_schema_is_that_of_a_new_database(upgraded: Installation, folder: Path) -> None:
    with empty(folder, "fresh") as fresh:
        done = fresh.run("migrate", "--no-input")
        assert done.returncode == 0, done.stderr
        assert upgraded.schema() == fresh.schema()


def test_the_audit_verifies_across_releases(upgraded: Installation) -> None:
    assert upgraded.told("audit", "verify")["ok"] is True


def test_every_sealed_value_opens(upgraded: Installation) -> None:
    assert upgraded.told("keys", "status")["unreadable"] == 0


def test_agents_and_their_rules_are_what_they_were(upgraded: Installation) -> None:
    assert [agent["slug"] for agent in upgraded.told("agents", "list")] == ["demo"]
    assert upgraded.told("agents", "explain", "demo", "mcp_git_git_log")["decision"] == "allow"
    refused = upgraded.run("agents", "explain", "demo", "mcp_fetch_fetch", "--json")
    assert json.loads(refused.stdout)["code"] == "server_disabled"


def test_tokens_open_what_they_opened(upgraded: Installation, web: Web) -> None:
    me = httpx.get(f"{web.url}/api/agents", headers=bearer(upgraded, "owner"))
    assert [agent["slug"] for agent in me.json()["results"]] == ["demo"]
    # Until 0.2 a token named one agent; it names a list since, and is for that agent still.
    demo = upgraded.facts["member"]["agent_id"]
    kept = upgraded.told("tokens", "list")
    assert {row["name"]: row["agents"] for row in kept} == {"owner": [], "ci": [demo]}
    seen = httpx.get(f"{web.url}/api/agents/{demo}", headers=bearer(upgraded, "member"))
    assert seen.status_code == 200
    nobody = httpx.get(f"{web.url}/api/agents", headers={"Authorization": "Bearer bnb_x_y"})
    assert nobody.status_code == 401


def test_a_conversation_can_be_read_and_another_be_had(upgraded: Installation, web: Web) -> None:
    old = upgraded.facts["session"]
    # The recorded program lies where that installation lay; a person would point it to this one.
    config = json.dumps({"command": sys.executable, "args": ["-m", "mcp_server_time"]})
    upgraded.execute(
        f"UPDATE mcp_servers_server SET endpoint_config = '{config}' WHERE slug = 'time'"  # noqa: S608
    )
    path = f"{web.url}/api/sessions/{old['id']}/export"
    read = httpx.get(path, headers=bearer(upgraded, "owner"))
    assert read.status_code == 200
    assert old["answer"].splitlines()[0] in read.text
    again = upgraded.told("agents", "run", "demo", "What time is it in Tokyo?")
    assert again["status"] == "done"
    assert [call["state"] for call in again["calls"]] == ["done"]


def test_the_administrator_signs_in_and_sees_every_page(upgraded: Installation, web: Web) -> None:
    with httpx.Client(base_url=web.url, follow_redirects=True) as browser:
        page = browser.get("/admin/login/")
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
        assert token is not None
        login = upgraded.facts["login"]
        form = {
            "username": login["user"],
            "password": login["password"],
            "csrfmiddlewaretoken": token[1],
            "next": "/admin/",
        }
        page = browser.post("/admin/login/", data=form, headers={"Referer": f"{web.url}/"})
        assert page.url.path == "/admin/"
        for path in ("agents/agent/", "mcp_servers/server/", "agents/session/", "tenancy/token/"):
            assert browser.get(f"/admin/{path}").status_code == 200
