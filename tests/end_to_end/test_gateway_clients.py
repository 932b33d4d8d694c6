"""Other people's clients use the gateway with a token: both eras, three SDKs, the Inspector."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.approved_server import Published, publish
from tests.conformance_server import everything
from tests.parts import CLIENTS, FIRST_SDK, NODE, NODE_SERVERS
from tests.processes import Web

MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
LONGEST_S = 60
TOOLS = 39
NODE_22 = NODE / "node_modules" / "node" / "bin" / "node"
SEEN = {
    "tools": TOOLS,
    "called": "Tool with progress executed successfully",
    "progress": [0, 50, 100],
    "resource": "This is the content of the static text resource.",
    "prompt": "Prompt with arguments: arg1='one', arg2='two'",
}
ERAS = {"auto": MODERN, "legacy": HANDSHAKE, MODERN: MODERN}
# What the Inspector asks in each era, with its options. It uses the second TypeScript SDK, whose
# own test asks all of it in every mode; here each method and each era has a run.
INSPECTED = {
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
ANSWERS = {"tools/call": "called", "resources/read": "resource", "prompts/get": "prompt"}
# What the Inspector exits with.
DONE, NOT_AUTHORIZED, FAILED = 0, 3, 5


@dataclass(frozen=True)
class Gateway:
    """Where a running gateway serves, and the token for it."""

    web: Web
    published: Published

    def addresses(self) -> list[str]:
        """Return the URLs of the server and of the agent."""
        return [self.web.url + path for path in self.published.paths]


@pytest.fixture(scope="module")
def gateway(module_web: Web, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Publish the server once: its clients change nothing."""
    with everything(tmp_path_factory.mktemp("everything")) as url:
        yield Gateway(module_web, publish(url))


def run(command: list[str | Path], home: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run a client to its end, with nothing of this process but the path."""
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        env={"PATH": os.environ["PATH"], "HOME": str(home), **more},
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


def use(gateway: Gateway, home: Path, *client: str | Path) -> list[dict[str, object]]:
    """Have one run of a client use both addresses; return what it prints of each."""
    done = run([*client, *gateway.addresses()], home, TOKEN=gateway.published.token)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def seen(*eras: str) -> list[dict[str, object]]:
    """Return what a client prints that uses both addresses in each of these eras."""
    return [{"era": era, **SEEN} for era in eras for _ in range(2)]


def test_the_second_python_sdk_works_in_every_mode(gateway: Gateway, tmp_path: Path) -> None:
    client = CLIENTS / "sdk2_client.py"
    found = use(gateway, tmp_path, sys.executable, client, ",".join(ERAS))
    assert found == seen(*ERAS.values())


@pytest.mark.sdk1
def test_the_first_python_sdk_works(gateway: Gateway, tmp_path: Path) -> None:
    assert use(gateway, tmp_path, FIRST_SDK, CLIENTS / "sdk1_client.py") == seen(HANDSHAKE)


@pytest.mark.npm
def test_the_typescript_sdks_work(gateway: Gateway, tmp_path: Path) -> None:
    clients = NODE / "clients"
    assert use(gateway, tmp_path, NODE_22, clients / "sdk1_client.mjs") == seen(HANDSHAKE)
    found = use(gateway, tmp_path, NODE_22, clients / "sdk2_client.mjs", ",".join(ERAS))
    assert found == seen(*ERAS.values())


@pytest.mark.npm
@pytest.mark.parametrize("era", INSPECTED)
def test_the_inspector_works(era: str, gateway: Gateway, tmp_path: Path) -> None:
    def inspect(*words: str, token: str = gateway.published.token) -> tuple[int, dict[str, object]]:
        done = run(
            [
                *(NODE_22, NODE_SERVERS / "mcp-inspector", "--cli", gateway.addresses()[0]),
                *("--transport", "http", "--protocol-era", era, "--stored-auth-only"),
                *("--header", f"Authorization: Bearer {token}", "--format", "json"),
                *("--method", *words),
            ],
            tmp_path,
        )
        return done.returncode, json.loads(done.stdout)["result"] if done.stdout else {}

    for method, words in INSPECTED[era].items():
        status, result = inspect(method, *words)
        assert status == DONE, method
        if method == "tools/list":
            assert len(result["tools"]) == TOOLS  # type: ignore[arg-type]
        else:
            assert str(SEEN[ANSWERS[method]]) in str(result)
    assert inspect("tools/call", "--tool-name", "test_error_handling")[0] == FAILED
    assert inspect("tools/list", token="nobody's")[0] == NOT_AUTHORIZED
