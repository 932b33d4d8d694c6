"""Importing servers from any text gives a plan or a problem, and writes all or nothing.

Hypothesis draws the texts: valid and broken JSON and YAML, bytes, nested junk, duplicate names.
"""

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.models import AgentServer
from agents.server_imports import plan_import
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.core.problems import Problem
from mcp_servers.import_export import import_plan
from mcp_servers.import_export.import_plan import ImportChoices
from mcp_servers.models import Secret, Server
from tests import factories, rest
from tests.rest import RestClient
from tests.selection import WHOLE

pytestmark = pytest.mark.django_db

NAMES = st.sampled_from(
    (
        *("mcpServers", "servers", "mcp", "tools", "mcp_servers", "context_servers", "inputs"),
        *("url", "command", "args", "env", "headers", "cwd", "type", "transport", "name", "auth"),
        *("auth_config", "endpoint_config", "disabled", "enabled", "allowed_tools", "scopes"),
        *("bot_overrides", "additional_servers", "removed_servers", "tool_permissions", "denied"),
        *("sampling_budget_tokens", "operations", "document", "a", "helper", "web", "", "\x00"),
    )
)
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        (
            *(
                "https://a.example/mcp",
                "http://[::1",
                "ftp://x",
                "http://127.0.0.1:1/",
                "//",
                "\x00",
            ),
            *("npx", "uvx", "${A}", "${A:-b}", "${BONOBOT_KEY}", "${", "stdio", "http", "oauth2"),
            *(
                "cmd /c npx 'x",
                "bearer_token",
                "https://a.example:99999/",
                "\ud800",
                "*",
                "[",
                "a" * 600,
            ),
        )
    ),
)
JUNK: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=14,
)
OBJECTS = st.dictionaries(NAMES, JUNK, max_size=6)
DOCUMENTS = st.one_of(
    JUNK,
    OBJECTS,
    st.fixed_dictionaries(
        {"mcpServers": st.dictionaries(st.text(max_size=8) | NAMES, OBJECTS, max_size=3)},
        optional={"bot_overrides": JUNK},
    ),
)


def _duplicate(document: Any) -> str:
    """Serialize an object that has the document twice under one name."""
    text = json.dumps(document)
    return f'{{"a": {text}, "a": {text}}}'


def _to_yaml_block(document: Any) -> str:
    """Serialize a document as YAML, one field per line."""
    fields = document if isinstance(document, dict) else {"a": document}
    return "".join(f"{name or 'b'}: {json.dumps(value)}\n" for name, value in fields.items())


HOSTILE = st.sampled_from(
    (
        "a: &a [*a]\n",
        "a: &x {url: https://a.example/}\nb: *x\n",
        "a: {<<: *x}\n",
        "a: !!python/object/apply:os.system [x]\n",
        "a: !!binary aGk=\n",
        "a: {url: !!str https://a.example/}\n",
        f"a: {{url: https://a.example/, env: {{n: {'9' * 5000}}}}}\n",
        f"a: {'9' * 5000}\n",
        "a: 0x1F\nb: .inf\nc: .nan\nd: 1e999\n",
        "a: 2026-13-99\n",
        "? [a]\n: b\n",
        "--- a\n--- b\n",
        "%YAML 9.9\n---\na: b\n",
        "%TAG ! tag:x,1:\n---\na: !b c\n",
        "a: {url: https://a.example/}\na: {url: https://b.example/}\n",
        "a:\n\t- b\n",
        "a: '\n",
        "a: \x07\n",
        "a: " + "[" * 300,
        "a: |\n  x\n y\n",
        "- name: [1]\n  url: {}\n",
        "a: b\n" * 3000,
        "[" * 100_000,
        '{"a":' * 50_000,
        "/*" * 1000,
        "\ufeff{}",
    )
)
TEXTS = st.one_of(
    DOCUMENTS.map(json.dumps),
    DOCUMENTS.map(_duplicate),
    DOCUMENTS.map(lambda document: json.dumps(document)[:-1]),
    DOCUMENTS.map(_to_yaml_block),
    st.text(),
    st.text(alphabet="{}[]\":,'\n #&*!|>-?%@`ab1~\\/", max_size=60),
    st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "replace")),
    st.builds(
        lambda text, tail: text + tail, HOSTILE, st.sampled_from(("", "b: c\n", "{}", "\x00"))
    ),
)
# A run repeats the same texts; `make fuzz` searches among many more.
EXAMPLES = 2_000 if os.environ.get("TEST_FUZZING") == "whole" else 200 if WHOLE else 60
FUZZ = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> Organization:
    """An organization with an agent; host names aren't resolved."""
    monkeypatch.setattr(import_plan, "resolve_for_preview", lambda host: ())
    organization = factories.create_organization()
    factories.create_agent(organization)
    return organization


@pytest.fixture
def administrator(acme: Organization) -> Principal:
    return factories.build_administrator(acme)


@pytest.fixture
def root(acme: Organization) -> RestClient:
    return rest.as_administrator()


def count_rows() -> tuple[int, int, int]:
    """Count the rows that an import may write."""
    return Server.objects.count(), Secret.objects.count(), AgentServer.objects.count()


def plan(principal: Principal, text: str) -> dict[str, Any]:
    """Return the plan for a text, or the problem."""
    try:
        return plan_import(principal, text, ImportChoices()).as_dict()
    except Problem as problem:
        return problem.as_dict()


@settings(FUZZ, max_examples=EXAMPLES)
@given(text=TEXTS)
def test_any_text_has_a_plan_or_a_problem(administrator: Principal, text: str) -> None:
    result = plan(administrator, text)
    json.dumps(result, allow_nan=False, ensure_ascii=False).encode()
    if "code" in result:
        assert result["remedy"]
        return
    for entry in result["entries"]:
        assert (entry["action"] == "invalid") == bool(entry["problems"])
        assert all(problem["code"] and problem["detail"] for problem in entry["problems"])


@settings(FUZZ, max_examples=EXAMPLES // 4)
@given(text=TEXTS)
def test_any_text_gets_a_rest_response_and_nothing_is_partially_written(
    root: RestClient, text: str
) -> None:
    before = count_rows()
    response = root.post("mcp-servers/import", {"text": text, "apply": True})
    assert response.status in (200, 400), response
    servers, secrets, agent_servers = count_rows()
    if response.status == 400:
        assert response.code
        assert (servers, secrets, agent_servers) == before
        return
    added = [entry for entry in response.json["entries"] if entry["action"] == "added"]
    assert servers - before[0] == len(added)
    if not added:
        assert secrets == before[1]
    if not any(entry["action"] in ("attach", "detach") for entry in response.json["overrides"]):
        assert agent_servers == before[2]
