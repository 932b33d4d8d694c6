"""fastmcp on both sides of the gateway: its client uses its server through Bonobot."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.services import attach_server
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from mcp_servers.flow_labels.effective_labels import set_labels
from mcp_servers.models import Launcher, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.approved_server import MANY
from tests.parts import CLIENTS, FASTMCP, ROOT
from tests.processes import Web

pytestmark = [pytest.mark.fastmcp, pytest.mark.whole]

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
ERAS = {"auto": MODERN, "legacy": HANDSHAKE, MODERN: MODERN}
SERVER = ROOT / "tests" / "servers" / "fastmcp_server.py"
EXPECTED = {
    "tools": 3,
    "book": {"title": "Emma", "pages": 40},
    "count": "60 books",
    "progress": [1, 2, 3],
    "hours": "9 to 5",
    "shelf": "shelf 7",
    "prompt": "Review Emma",
}
# `ctx.elicit` sends a request during the call, which only the handshake protocol permits: a client
# that is connected without a gateway gets the same error.
LOANS = {
    HANDSHAKE: "Emma: accept Ada",
    MODERN: "elicitation via server-initiated requests is unavailable on 2026-07-28 connections.",
}
SKILLS = {
    "catalog-books": {
        "SKILL.md": (
            "---\nname: catalog-books\ndescription: Adds books to the catalog.\n---\n"
            "Use the form for each book."
        ),
        "form.md": "Title, author, year",
    }
}
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def http_server_url() -> Iterator[str]:
    with subprocess.Popen([FASTMCP, SERVER, "http"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().split()[1]}/mcp"
        server.terminate()


def use_gateway(web: Web, home: Path, transport: str, endpoint: dict[str, object]) -> object:
    """Publish the server to an agent and return what fastmcp's client gets at both addresses."""
    organization = factories.create_organization(transport)
    administrator = factories.build_administrator(organization)
    spec = ServerSpec(
        name="library",
        transport_type=transport,
        endpoint_config=endpoint,
        allow_private=True,
        approval=Server.Approval.ALWAYS,
        elicitation=True,
    )
    agent = factories.create_agent(organization)
    server = factories.approve_server(organization, create_server(administrator, spec))
    attach_server(administrator, agent, server, allowed_resources=["*"], allowed_prompts=["*"])
    set_labels(administrator, server, list(server.definitions.all()), [])  # no approvals
    _, token = create_token(
        administrator, name="fastmcp", role=Role.OPERATOR, calls_per_minute=MANY
    )
    urls = [f"{web.url}/mcp/servers/{server.slug}", f"{web.url}/mcp/agents/{agent.slug}"]
    completed = subprocess.run(
        [FASTMCP, CLIENTS / "fastmcp_client.py", ",".join(ERAS), *urls],
        capture_output=True,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "TOKEN": token},
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return [json.loads(line) for line in completed.stdout.splitlines()]


def build_expected() -> list[dict[str, object]]:
    """Return the expected output of the client in each mode, at both addresses."""
    return [
        {"era": era, **EXPECTED, "loan": LOANS[era], "skills": SKILLS if mode == "auto" else {}}
        for mode, era in ERAS.items()
        for _ in range(2)
    ]


def test_fastmcps_client_uses_its_http_server_in_every_mode(
    module_web: Web, http_server_url: str, tmp_path: Path
) -> None:
    output = use_gateway(module_web, tmp_path, "http", {"url": http_server_url})
    assert output == build_expected()


def test_fastmcps_client_uses_its_stdio_server_in_every_mode(
    module_web: Web, tmp_path: Path
) -> None:
    Launcher.objects.create(command=str(FASTMCP))
    endpoint: dict[str, object] = {"command": str(FASTMCP), "args": [str(SERVER), "stdio"]}
    output = use_gateway(module_web, tmp_path, "stdio", endpoint)
    assert output == build_expected()
