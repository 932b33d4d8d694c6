"""YAML is read like JSON: with line numbers, within limits, without custom types."""

import pytest

from bonobot.core.problems import InvalidInput
from bonobot.core.text.yaml_reader import is_yaml, read_yaml, read_yaml_documents
from mcp_servers.import_export import parse_import

# The shape of other agents' configurations: servers in a list, below `tools`.
TOOLS = """\
# Tools
profile: full
tools:
  builtin: [filesystem]
  mcp_servers:
    - name: files
      type: stdio
      command: ["npx", "-y", "@modelcontextprotocol/server-filesystem@2026.8.31", "/srv"]
      enabled: true
      env:
        NODE_ENV: production
        DEBUG: on
        PORT: 8080
    - name: docs
      type: http
      url: "${DOCS_URL:-https://docs.example.com}/mcp"
      headers:
        Authorization: "Bearer ${API_TOKEN}"
"""


def test_servers_below_tools_are_found_with_their_lines():
    files, docs = parse_import(TOOLS, values={"API_TOKEN": "s3cret"})
    assert (files.name, files.line, docs.name, docs.line) == ("files", 6, "docs", 14)
    assert files.endpoint_config["args"][-1] == "/srv"
    assert docs.endpoint_config == {"url": "https://docs.example.com/mcp"}
    assert docs.auth_type == "bearer_token"
    assert not files.problems
    assert not docs.problems
    assert any("`profile`" in notice.detail for notice in files.notices)


def test_yaml_1_1_booleans_such_as_yes_are_strings():
    values = {secret.name: secret.value for secret in parse_import(TOOLS)[0].secrets}
    assert values == {"NODE_ENV": "production", "DEBUG": "on", "PORT": "8080"}


def test_an_undefined_variable_is_a_problem_with_its_field_and_line():
    problem = parse_import(TOOLS)[1].problems[0]
    assert (problem.code, problem.field) == ("missing_value", "headers.Authorization")
    assert problem.extra["line"] == 14


def test_values_keep_their_types():
    text = "a: 1\nb: 1.5\nc: null\nd: ~\ne: 2026-01-01\nf: 'true'\ng: True\nh: no\ni:\nj: 012"
    assert read_yaml(text).root.to_python() == {
        **{"a": 1, "b": 1.5, "c": None, "d": None, "e": "2026-01-01"},
        **{"f": "true", "g": True, "h": "no", "i": None, "j": 12},
    }


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: [1", "broken_yaml"),
        ("a:\n\t- b", "broken_yaml"),
        ("a: \x00", "broken_yaml"),
        ("a: &x 1\nb: *x", "unsupported_yaml"),
        ("a: !!python/object:os.system x", "unsupported_yaml"),
        ("? [1, 2]\n: 3", "unsupported_yaml"),
        ("a: 1\n---\nb: 2", "unsupported_yaml"),
        ("a: " + "[" * 70, "too_deep"),
        ("a: " + "[" * 100_000, "too_deep"),
        ("a: " + "x" * 300_000, "too_large"),
    ],
)
def test_unsupported_yaml_is_refused_with_its_reason(text, code):
    with pytest.raises(InvalidInput) as caught:
        read_yaml(text)
    assert caught.value.code == code


def test_several_documents_are_read_on_request():
    assert [node.to_python() for node in read_yaml_documents("a: 1\n---\nb: 2")] == [
        {"a": 1},
        {"b": 2},
    ]


@pytest.mark.parametrize(
    ("text", "yaml"),
    [
        ("# comment\nmcp_servers:\n", True),
        ("---\n{}", True),
        ("- url: https://a.example", True),
        ('{"a": 1}', False),
        ('"a": {"url": "x"}', False),
        ("// comment\n{}", False),
        ("nonsense", False),
        ("", False),
    ],
)
def test_yaml_and_json_are_distinguished_by_the_first_character(text, yaml):
    assert is_yaml(text) is yaml
