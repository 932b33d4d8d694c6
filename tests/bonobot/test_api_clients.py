"""Typed clients can be generated from the OpenAPI document and work with a server."""

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from tests import factories
from tests.parts import NODE
from tests.processes import Web

pytestmark = pytest.mark.whole
# The generator doesn't support image types: clients get bytes, as docs/api.md explains.
# Formatting takes longer than generating and tests nothing of the document.
SETTINGS = 'content_type_overrides: {"image/*": application/octet-stream}\npost_hooks: []\n'
NAME = "bonobot_client"
BIN = Path(sys.executable).parent
MODULES = NODE / "node_modules"
NODE_22 = MODULES / "node" / "bin" / "node"
# What isn't ours isn't checked: TypeScript's standard library, and types that aren't used.
TYPESCRIPT_OPTIONS = {
    "strict": True,
    "noUncheckedIndexedAccess": True,
    "exactOptionalPropertyTypes": True,
    "module": "nodenext",
    "target": "es2022",
    "skipDefaultLibCheck": True,
    "types": [],
}


@pytest.fixture(scope="module")
def document(module_web: Web, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the OpenAPI document of a running server."""
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    # YAML takes seconds to write, and longer to read.
    response = httpx.get(f"{module_web.url}/api/schema?format=json", timeout=60)
    path.write_bytes(response.raise_for_status().content)
    return path


@pytest.fixture
def client(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Generate a client in its own folder."""
    (tmp_path / "clients.yaml").write_text(SETTINGS)
    options = (
        "--path",
        str(document),
        "--config",
        "clients.yaml",
        "--meta",
        "none",
    )
    generated = subprocess.run(
        [
            *(BIN / "openapi-python-client", "generate", *options),
            *("--output-path", NAME, "--fail-on-warning"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert generated.returncode == 0, generated.stdout + generated.stderr
    assert "WARNING" not in generated.stdout + generated.stderr
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def load_name(module_name: str, name: str = "") -> Any:
    """Return a module of the generated client, or a name in it."""
    module = import_module(f"{NAME}.{module_name}")
    return getattr(module, name) if name else module


def test_a_python_client_is_generated_without_a_warning_and_works(
    client: Path, module_web: Web
) -> None:
    acme = factories.create_organization("python")
    factories.approve_server(
        acme, factories.create_stdio_server(acme), factories.create_agent(acme)
    )
    _, token = create_token(factories.build_administrator(acme), name="client", role=Role.OWNER)
    with load_name("client", "AuthenticatedClient")(module_web.url, token) as http:
        servers = load_name("api.mcp_servers.list_servers").sync(client=http, limit=10)
        assert [(result.name, result.transport_type.value) for result in servers.results] == [
            ("time", "stdio")
        ]
        body = load_name("models", "AgentRequest")(name="Release helper", max_turns=20)
        agent = load_name("api.agents.create_agent").sync(client=http, body=body)
        assert (agent.slug, agent.max_turns) == ("release-helper", 20)

        arguments = {"arguments": {"timezone": "UTC"}}
        outcome = load_name("api.agents.call_agent_tool").sync(
            "helper",
            "mcp_time_get_current_time",
            client=http,
            body=load_name("models", "CallToolRequest").from_dict(arguments),
        )
        assert (outcome.outcome.value, outcome.is_error) == ("ok", False)
        assert "UTC" in outcome.text

        problem = load_name("api.agents.create_agent").sync(client=http, body=body)
        assert isinstance(problem, load_name("models", "ProblemDetails"))
        assert (problem.status, problem.code, problem.field) == (409, "name_taken", "name")


def run_program(folder: Path, *command: str | Path) -> str:
    """Run a program in a folder and return its output; it must succeed."""
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": f"{NODE_22.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.npm
def test_a_typescript_client_with_generated_types_compiles_strictly_and_works(
    module_web: Web, document: Path, tmp_path: Path
) -> None:
    acme = factories.create_organization("typescript")
    factories.approve_server(
        acme, factories.create_stdio_server(acme), factories.create_agent(acme)
    )
    _, token = create_token(factories.build_administrator(acme), name="client", role=Role.OWNER)
    (tmp_path / "node_modules").symlink_to(MODULES)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    project = {"compilerOptions": TYPESCRIPT_OPTIONS, "files": ["typed_client.ts"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(project))
    shutil.copy(NODE / "clients" / "typed_client.ts", tmp_path)
    run_program(tmp_path, MODULES / ".bin" / "openapi-typescript", document, "-o", "bonobot.d.ts")
    run_program(tmp_path, MODULES / ".bin" / "tsc", "--project", ".")
    assert json.loads(run_program(tmp_path, NODE_22, "typed_client.js", module_web.url, token)) == {
        "names": ["time by stdio"],
        "slug": "release-helper",
        "max_turns": 20,
        "outcome": "ok",
        "is_error": False,
        "code": "name_taken",
        "field": "name",
    }
