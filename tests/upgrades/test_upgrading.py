"""What a release left behind is taken over whole: `bonobot migrate`, and everything goes on."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_django

from tests import processes
from tests.processes import Web
from tests.upgrades.commands import CommandResult
from tests.upgrades.installation import VERSIONS, Installation, current, left_by

# The migrations themselves are applied to a new database by each run that follows their change.
pytestmark = pytest.mark.whole("postgres")

COMMANDS = {
    "verify": "audit verify --json",
    "keys": "keys status --json",
    "agents": "agents list --json",
    "allowed": "agents explain demo mcp_git_git_log --json",
    "disabled": "agents explain demo mcp_fetch_fetch --json",
    "tokens": "tokens list --json",
    "run": "agents run demo 'What time is it in Tokyo?' --json",
}
# The run's own database has them, since its environment switches the authorization server on.
OPTIONAL = "oauth2_provider_"
CONTENT_TYPES = "SELECT app_label, model FROM django_content_type ORDER BY 1, 2"


@dataclass(frozen=True)
class UpgradedInstallation:
    """An installation that was migrated: rows before and after, and what commands said then."""

    left: Installation
    before: dict[str, int]
    after: dict[str, int]
    said: dict[str, CommandResult]

    def read_answer(self, name: str) -> Any:
        """Return the JSON of a command that succeeded."""
        ended = self.said[name]
        assert ended.status == 0, ended.err
        return json.loads(ended.out)

    def bearer(self, who: str) -> dict[str, str]:
        """Return the header of a recorded token."""
        return {"Authorization": f"Bearer {self.left.facts[who]['token']}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("upgrades")


@pytest.fixture(scope="module", params=VERSIONS)
def upgraded_installation(
    request: pytest.FixtureRequest,
    folder: Path,
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
) -> Iterator[UpgradedInstallation]:
    """Migrate the database of a release and use it."""
    # The recorded program is in the recorded folder; a person would point it to this one.
    config = json.dumps({"command": sys.executable, "args": ["-m", "mcp_server_time"]})
    with django_db_blocker.unblock(), left_by(request.param, folder) as left:
        before = left.counts()
        with left.commands() as run:
            migrated = run("migrate --no-input")
            assert migrated.status == 0, migrated.err
            after = left.counts()
            left.execute(
                f"UPDATE mcp_servers_server SET endpoint_config = '{config}' WHERE slug = 'time'"  # noqa: S608
            )
            said = {name: run(line) for name, line in COMMANDS.items()}
        yield UpgradedInstallation(left, before, after, said)


@pytest.fixture(scope="module")
def web(upgraded_installation: UpgradedInstallation, folder: Path) -> Iterator[Web]:
    """A web process of today on what was left."""
    port = processes.find_unused_port()
    started = processes.start_web(
        folder, "upgraded", port=port, extra=upgraded_installation.left.env
    )
    yield started
    started.kill()


def test_no_row_is_lost(upgraded_installation: UpgradedInstallation) -> None:
    # Presets are rows of our own file, loaded anew by every migration.
    kept = {
        name: count
        for name, count in upgraded_installation.before.items()
        if name != "mcp_servers_preset"
    }
    assert {name: upgraded_installation.after.get(name) for name in kept} == kept


def test_the_schema_is_that_of_a_new_database(upgraded_installation: UpgradedInstallation) -> None:
    new = {part for part in current().schema() if not any(OPTIONAL in name for name in part[1:3])}
    assert upgraded_installation.left.schema() == new


def test_content_types_are_those_of_a_new_database(
    upgraded_installation: UpgradedInstallation,
) -> None:
    new = [row for row in current().execute(CONTENT_TYPES) if f"{row[0]}_" != OPTIONAL]
    assert upgraded_installation.left.execute(CONTENT_TYPES) == new


def test_the_audit_verifies_across_releases(upgraded_installation: UpgradedInstallation) -> None:
    assert upgraded_installation.read_answer("verify")["ok"] is True


def test_every_sealed_value_opens(upgraded_installation: UpgradedInstallation) -> None:
    assert upgraded_installation.read_answer("keys")["unreadable"] == 0


def test_agents_and_their_rules_are_what_they_were(
    upgraded_installation: UpgradedInstallation,
) -> None:
    assert [agent["slug"] for agent in upgraded_installation.read_answer("agents")] == ["demo"]
    assert upgraded_installation.read_answer("allowed")["decision"] == "allow"
    assert json.loads(upgraded_installation.said["disabled"].out)["code"] == "server_disabled"


def test_tokens_open_what_they_opened(
    upgraded_installation: UpgradedInstallation, web: Web
) -> None:
    me = httpx.get(f"{web.url}/api/agents", headers=upgraded_installation.bearer("owner"))
    assert [agent["slug"] for agent in me.json()["results"]] == ["demo"]
    demo = upgraded_installation.left.facts["member"]["agent_id"]
    assert {row["name"]: row["agents"] for row in upgraded_installation.read_answer("tokens")} == {
        "owner": [],
        "ci": [demo],
    }
    seen = httpx.get(f"{web.url}/api/agents/{demo}", headers=upgraded_installation.bearer("member"))
    assert seen.status_code == 200
    nobody = httpx.get(f"{web.url}/api/agents", headers={"Authorization": "Bearer bnb_x_y"})
    assert nobody.status_code == 401


def test_a_session_can_be_read_and_another_be_run(
    upgraded_installation: UpgradedInstallation, web: Web
) -> None:
    old = upgraded_installation.left.facts["session"]
    path = f"{web.url}/api/sessions/{old['id']}/export"
    read = httpx.get(path, headers=upgraded_installation.bearer("owner"))
    assert read.status_code == 200
    assert old["answer"].splitlines()[0] in read.text
    again = upgraded_installation.read_answer("run")
    assert again["status"] == "done"
    assert [call["state"] for call in again["calls"]] == ["done"]


def test_the_administrator_signs_in_and_sees_every_page(
    upgraded_installation: UpgradedInstallation, web: Web
) -> None:
    with httpx.Client(base_url=web.url, follow_redirects=True) as browser:
        page = browser.get("/admin/login/")
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
        assert token is not None
        login = upgraded_installation.left.facts["login"]
        form = {
            "username": login["user"],
            "password": login["password"],
            "csrfmiddlewaretoken": token[1],
            "next": "/admin/",
        }
        page = browser.post("/admin/login/", data=form, headers={"Referer": f"{web.url}/"})
        assert page.url.path == "/admin/"
        for path in ("agents/", "mcp-servers/", "sessions/", "tokens/"):
            assert browser.get(f"/admin/{path}").status_code == 200
