"""Third-party clients use the gateway with a token: both eras, three SDKs, the Inspector."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agents.skills import SkillSpec, save_skill
from mcp_servers.client.mcp_extensions import APP_MIME_TYPE
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.approved_server import ApprovedServer, create_approved_server
from tests.conformance_server import serve_everything
from tests.parts import CLIENTS, FIRST_SDK, NODE, NODE_SERVERS
from tests.processes import Web

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
TIMEOUT_S = 60
TOOLS = 39
NODE_22 = NODE / "node_modules" / "node" / "bin" / "node"
EXPECTED = {
    "tools": TOOLS,
    "called": "Tool with progress executed successfully",
    "progress": [0, 50, 100],
    "resource": "This is the content of the static text resource.",
    "prompt": "Prompt with arguments: arg1='one', arg2='two'",
}
ERAS = {"auto": MODERN, "legacy": HANDSHAKE, MODERN: MODERN}
# Methods that the Inspector calls in each era, with its options. It uses the second TypeScript SDK,
# whose own test calls all methods in every mode; here each method and each era is covered once.
INSPECTOR_CALLS = {
    "auto": {"tools/list": ()},
    "legacy": {
        "tools/call": ("--tool-name", "test_tool_with_progress"),
        "resources/read": ("--uri", "test://static-text"),
    },
    "modern": {
        "tools/call": ("--tool-name", "test_tool_with_progress"),
        "prompts/get": (
            *("--prompt-name", "test_prompt_with_arguments"),
            *("--prompt-args", "arg1=one", "arg2=two"),
        ),
    },
}
RESULT_KEYS = {"tools/call": "called", "resources/read": "resource", "prompts/get": "prompt"}
# Exit statuses of the Inspector.
SUCCEEDED, NOT_AUTHORIZED, FAILED = 0, 3, 5


@dataclass(frozen=True)
class Gateway:
    """A running gateway, its paths, and the token for it."""

    web: Web
    published: ApprovedServer

    def addresses(self) -> list[str]:
        """Return the URLs of the server and of the agent."""
        return [self.web.url + path for path in self.published.paths]


@pytest.fixture(scope="module")
def gateway(module_web: Web, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Publish the server once: clients don't change anything."""
    with serve_everything(tmp_path_factory.mktemp("everything")) as url:
        yield Gateway(module_web, create_approved_server(url))


def run(
    command: list[str | Path], home: Path, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a client, with only PATH of this process."""
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        env={"PATH": os.environ["PATH"], "HOME": str(home), **variables},
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def run_client(gateway: Gateway, home: Path, *client: str | Path) -> list[dict[str, object]]:
    """Run a client with both URLs and return what it prints for each."""
    completed = run([*client, *gateway.addresses()], home, TOKEN=gateway.published.token)
    assert completed.returncode == 0, completed.stderr
    return [json.loads(line) for line in completed.stdout.splitlines()]


def build_expected(*eras: str) -> list[dict[str, object]]:
    """Return the expected output of a client that uses both URLs in each era."""
    return [{"era": era, **EXPECTED} for era in eras for _ in range(2)]


def test_the_second_python_sdk_works_in_every_mode(gateway: Gateway, tmp_path: Path) -> None:
    client = CLIENTS / "sdk2_client.py"
    output = run_client(gateway, tmp_path, sys.executable, client, ",".join(ERAS))
    assert output == build_expected(*ERAS.values())


@pytest.mark.sdk1
@pytest.mark.whole
def test_the_first_python_sdk_works(gateway: Gateway, tmp_path: Path) -> None:
    assert run_client(gateway, tmp_path, FIRST_SDK, CLIENTS / "sdk1_client.py") == build_expected(
        HANDSHAKE
    )


@pytest.mark.npm
@pytest.mark.whole
def test_the_typescript_sdks_work(gateway: Gateway, tmp_path: Path) -> None:
    clients = NODE / "clients"
    assert run_client(gateway, tmp_path, NODE_22, clients / "sdk1_client.mjs") == build_expected(
        HANDSHAKE
    )
    output = run_client(gateway, tmp_path, NODE_22, clients / "sdk2_client.mjs", ",".join(ERAS))
    assert output == build_expected(*ERAS.values())


@pytest.mark.npm
@pytest.mark.whole
def test_a_host_of_mcp_apps_shows_a_servers_page(gateway: Gateway, tmp_path: Path) -> None:
    program = NODE_SERVERS / "mcp-server-basic-vanillajs"
    spec = ServerSpec(
        name="clock",
        transport_type="stdio",
        endpoint_config={"command": "node", "args": [str(program), "--stdio"]},
    )
    published = gateway.published
    administrator = factories.build_administrator(published.organization)
    agent = factories.create_agent(published.organization, "apps")
    factories.approve_server(published.organization, create_server(administrator, spec), agent)
    client = NODE / "clients" / "apps_client.mjs"
    urls = [f"{gateway.web.url}/mcp/{path}" for path in ("servers/clock", "agents/apps")]
    completed = run([NODE_22, client, *urls], tmp_path, TOKEN=published.token)
    assert completed.returncode == 0, completed.stderr
    uris = ["ui://get-time/mcp-app.html", "ui://clock/get-time/mcp-app.html"]
    size = len((program.resolve().parent / "mcp-app.html").read_text(encoding="utf-8"))
    assert [json.loads(line) for line in completed.stdout.splitlines()] == [
        {
            **{"uri": uri, "listed": APP_MIME_TYPE, "read": uri, "type": APP_MIME_TYPE},
            **{"html": size, "called": True},
        }
        for uri in uris * 2
    ]


@pytest.mark.npm
@pytest.mark.whole
def test_a_client_of_skills_verifies_each_file(gateway: Gateway, tmp_path: Path) -> None:
    published = gateway.published
    administrator = factories.build_administrator(published.organization)
    agent = factories.create_agent(published.organization, "writer")
    text = "Write the notes of a release."
    spec = SkillSpec(name="release-notes", description="Writes notes", text=text)
    save_skill(administrator, replace(spec, agents=[agent.slug]))
    urls = [f"{gateway.web.url}/mcp{path}" for path in ("", "/agents/writer")]
    client = NODE / "clients" / "skills_client.mjs"
    completed = run([NODE_22, client, *urls], tmp_path, TOKEN=published.token)
    assert completed.returncode == 0, completed.stderr
    uri = "skill://release-notes/SKILL.md"
    file = {"uri": uri, "verified": True, "name": "release-notes", "body": text}
    lines = [json.loads(line) for line in completed.stdout.splitlines()]
    assert lines == [{"supported": True, "files": [file]}] * 4


@pytest.mark.npm
@pytest.mark.whole
@pytest.mark.parametrize("era", INSPECTOR_CALLS)
def test_the_inspector_works(era: str, gateway: Gateway, tmp_path: Path) -> None:
    def inspect(*words: str, token: str = gateway.published.token) -> tuple[int, dict[str, object]]:
        completed = run(
            [
                *(NODE_22, NODE_SERVERS / "mcp-inspector", "--cli", gateway.addresses()[0]),
                *("--transport", "http", "--protocol-era", era, "--stored-auth-only"),
                *("--header", f"Authorization: Bearer {token}", "--format", "json"),
                *("--method", *words),
            ],
            tmp_path,
        )
        return completed.returncode, json.loads(completed.stdout)[
            "result"
        ] if completed.stdout else {}

    for method, words in INSPECTOR_CALLS[era].items():
        status, result = inspect(method, *words)
        assert status == SUCCEEDED, method
        if method == "tools/list":
            assert len(result["tools"]) == TOOLS  # type: ignore[arg-type]
        else:
            assert str(EXPECTED[RESULT_KEYS[method]]) in str(result)
    assert inspect("tools/call", "--tool-name", "test_error_handling")[0] == FAILED
    assert inspect("tools/list", token="nobody's")[0] == NOT_AUTHORIZED
