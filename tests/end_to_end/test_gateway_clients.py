"""Other people's clients use the gateway with a token: both eras, three SDKs, the Inspector."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.everything import everything
from tests.parts import CLIENTS, FIRST_SDK, NODE, NODE_SERVERS
from tests.processes import Web
from tests.published import Published, publish

pytestmark = pytest.mark.django_db(transaction=True)

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


@pytest.fixture
def gateway(start_web: Callable[..., Web], tmp_path: Path) -> Iterator[Gateway]:
    with everything(tmp_path) as url:
        published = publish(url)
        yield Gateway(start_web(), published)


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


def seen(gateway: Gateway, home: Path, *client: str | Path, mode: str = "") -> set[str]:
    """Have a client use both addresses; returns the eras that it spoke."""
    eras = set()
    for address in gateway.addresses():
        words = [*client, address, *([mode] if mode else [])]
        done = run(words, home, TOKEN=gateway.published.token)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        eras.add(told.pop("era"))
        assert told == SEEN
    return eras


def test_the_second_python_sdk_works_in_every_mode(gateway: Gateway, tmp_path: Path) -> None:
    for mode, era in ERAS.items():
        client = CLIENTS / "second.py"
        assert seen(gateway, tmp_path, sys.executable, client, mode=mode) == {era}


@pytest.mark.sdk1
def test_the_first_python_sdk_works(gateway: Gateway, tmp_path: Path) -> None:
    assert seen(gateway, tmp_path, FIRST_SDK, CLIENTS / "first.py") == {HANDSHAKE}


@pytest.mark.npm
def test_the_typescript_sdks_work(gateway: Gateway, tmp_path: Path) -> None:
    clients = NODE / "clients"
    assert seen(gateway, tmp_path, NODE_22, clients / "first.mjs") == {HANDSHAKE}
    for mode, era in ERAS.items():
        assert seen(gateway, tmp_path, NODE_22, clients / "second.mjs", mode=mode) == {era}


@pytest.mark.npm
@pytest.mark.parametrize("era", ["auto", "legacy", "modern"])
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

    status, listed = inspect("tools/list")
    assert (status, len(listed["tools"])) == (DONE, TOOLS)  # type: ignore[arg-type]
    status, called = inspect("tools/call", "--tool-name", "test_tool_with_progress")
    assert (status, str(SEEN["called"]) in str(called)) == (DONE, True)
    status, read = inspect("resources/read", "--uri", "test://static-text")
    assert (status, str(SEEN["resource"]) in str(read)) == (DONE, True)
    arguments = ("--prompt-args", "arg1=one", "arg2=two")
    status, prompt = inspect(
        "prompts/get", "--prompt-name", "test_prompt_with_arguments", *arguments
    )
    assert (status, str(SEEN["prompt"]) in str(prompt)) == (DONE, True)
    assert inspect("tools/call", "--tool-name", "test_error_handling")[0] == FAILED
    assert inspect("tools/list", token="nobody's")[0] == NOT_AUTHORIZED
