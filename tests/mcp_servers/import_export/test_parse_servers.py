"""Client configurations are parsed to entries, or to problems with their lines."""

import json
from typing import Any

import pytest

from bonobot.core.problems import Problem
from mcp_servers.import_export import ImportEntry, parse_import

CANARY = "canary-5f3a9b"


def parse_entry(config: Any, **values: str) -> ImportEntry:
    (entry,) = parse_import(
        config if isinstance(config, str) else json.dumps(config), values=values
    )
    return entry


def list_problem_codes(entry: ImportEntry) -> list[str]:
    return [problem.code for problem in entry.problems]


def list_notice_codes(entry: ImportEntry) -> set[str]:
    return {notice.code for notice in entry.notices}


def get_secrets(entry: ImportEntry) -> dict[tuple[str, str], str]:
    return {(secret.placement, secret.name): secret.value for secret in entry.secrets}


HTTP = {"url": "https://mcp.example.com/mcp"}
STDIO = {"command": "npx", "args": ["-y", "some-server@1.0.0"]}


@pytest.mark.parametrize(
    "text",
    [
        {"weather": HTTP},
        {"mcpServers": {"weather": HTTP}},
        {"servers": {"weather": HTTP}},
        {"mcp": {"servers": {"weather": HTTP}}, "editor.fontSize": 12},
        {"mcp": {"weather": HTTP}},
        {"servers": [{"name": "weather", **HTTP}]},
        [{"name": "weather", **HTTP}],
        {"name": "weather", **HTTP},
        {
            "name": "weather",
            "transport_type": "http",
            "endpoint_config": HTTP,
            "auth_config": {"type": "none"},
        },
        '"weather": {"url": "https://mcp.example.com/mcp"}',
        '\ufeff{\n// mine\n"weather": {"url": "https://mcp.example.com/mcp",}, /* all */ }',
    ],
    ids=str,
)
def test_every_format_is_unwrapped(text: Any) -> None:
    entry = parse_entry(text)
    assert (entry.name, entry.slug, entry.transport_type) == ("weather", "weather", "http")
    assert entry.endpoint_config == HTTP
    assert entry.is_valid
    assert entry.enabled


def test_several_servers_keep_their_order_and_lines() -> None:
    text = '{\n "a": {"url": "https://a.example"},\n\n "b": {"command": "uvx"}\n}'
    assert [(entry.name, entry.line) for entry in parse_import(text)] == [("a", 2), ("b", 4)]


def test_a_server_can_be_named_like_a_wrapper() -> None:
    assert parse_entry({"servers": HTTP}).name == "servers"
    assert [entry.name for entry in parse_import(json.dumps({"url": HTTP, "type": STDIO}))] == [
        "url",
        "type",
    ]


def test_several_wrappers_are_all_read() -> None:
    text = json.dumps({"mcpServers": {"a": HTTP}, "servers": {"b": STDIO}, "bot_overrides": {}})
    entries = parse_import(text)
    assert [entry.name for entry in entries] == ["a", "b"]
    assert "`bot_overrides`" in entries[0].notices[0].detail


@pytest.mark.parametrize("key", ["url", "serverUrl", "httpUrl", "endpoint"])
@pytest.mark.parametrize(
    "transport",
    [
        {},
        {"type": "http"},
        {"transport": "sse"},
        {"transport_type": "streamable_http"},
        {"type": "streamable-http"},
        {"type": "streamableHttp"},
    ],
    ids=str,
)
def test_urls_are_read_under_all_field_names_and_transports(
    key: str, transport: dict[str, str]
) -> None:
    entry = parse_entry({"a": {key: "https://mcp.example.com/mcp", **transport}})
    assert (entry.transport_type, entry.endpoint_config) == ("http", HTTP)
    assert entry.is_valid


@pytest.mark.parametrize(
    "server",
    [
        {"command": "npx", "args": ["-y", "some-server@1.0.0"]},
        {"command": ["npx", "-y", "some-server@1.0.0"]},
        {"command": ["npx", "-y"], "args": ["some-server@1.0.0"]},
        {"command": "npx -y 'some-server@1.0.0'"},
        {"type": "stdio", "command": "npx", "args": ["-y", "some-server@1.0.0"], "url": None},
        {"command": "cmd", "args": ["/c", "npx", "-y", "some-server@1.0.0"]},
        {"command": "cmd.exe", "args": ["/C", "npx", "-y", "some-server@1.0.0"]},
    ],
    ids=str,
)
def test_a_command_is_split_into_launcher_and_arguments(server: dict[str, Any]) -> None:
    entry = parse_entry({"a": server})
    assert entry.transport_type == "stdio"
    assert entry.endpoint_config == STDIO
    assert entry.is_valid


def test_environment_and_folder_are_read_and_values_are_secret() -> None:
    entry = parse_entry(
        {"a": {**STDIO, "env": {"KEY": CANARY, "PORT": 3000, "E": ""}, "cwd": "/srv"}}
    )
    assert entry.endpoint_config == {**STDIO, "cwd": "/srv"}
    assert get_secrets(entry) == {("env", "KEY"): CANARY, ("env", "PORT"): "3000", ("env", "E"): ""}
    assert list_notice_codes(entry) == {"converted_value"}


def test_a_bearer_token_and_an_api_key_become_the_authentication() -> None:
    bearer = parse_entry(
        {"a": {**HTTP, "headers": {"authorization": f"bearer  {CANARY}", "X-Team": "t"}}}
    )
    assert bearer.auth_type == "bearer_token"
    assert get_secrets(bearer) == {("auth", "token"): CANARY, ("header", "X-Team"): "t"}
    for header in ("X-Api-Key", "x-api-key", "DD-API-KEY", "PRIVATE-TOKEN", "CONTEXT7_API_KEY"):
        key = parse_entry({"a": {**HTTP, "headers": {header: CANARY}}})
        assert (key.auth_type, key.auth_config) == ("api_key", {"header": header})
        assert get_secrets(key) == {("auth", "key"): CANARY}


def test_other_headers_stay_headers() -> None:
    headers = {"Authorization": f"Basic {CANARY}", "X-Trace": "1"}
    entry = parse_entry({"a": {**HTTP, "headers": headers}})
    assert entry.auth_type == "none"
    assert get_secrets(entry) == {("header", name): value for name, value in headers.items()}


@pytest.mark.parametrize(
    ("auth", "public", "secret"),
    [
        ({"type": "bearer_token", "token": CANARY}, {}, "token"),
        ({"type": "api_key", "key": CANARY}, {"header": "X-API-Key"}, "key"),
        ({"type": "api_key", "header": "X-K", "key": CANARY}, {"header": "X-K"}, "key"),
        (
            {"type": "oauth2", "client_id": "c", "client_secret": CANARY, "scopes": ["a", "b"]},
            {"client_id": "c", "scopes": "a b"},
            "client_secret",
        ),
    ],
)
def test_an_explicit_authentication_is_imported(
    auth: dict[str, Any], public: dict[str, str], secret: str
) -> None:
    entry = parse_entry({"a": {**HTTP, "auth_config": auth}})
    assert (entry.auth_type, entry.auth_config) == (auth["type"], public)
    assert get_secrets(entry) == {("auth", secret): CANARY}


@pytest.mark.parametrize(
    "text",
    [
        *("<your token>", "YOUR_API_KEY", "your-api-key", "xxx", "sk-xxxxxxxx", "ghp_..."),
        *("{{token}}", "[TOKEN]", "token_goes_here", "changeme", "replace-me"),
    ],
)
def test_an_example_from_documentation_is_a_value_to_fill_in(text: str) -> None:
    entry = parse_entry({"notion": {**STDIO, "env": {"NOTION_TOKEN": text}}})
    assert list_problem_codes(entry) == ["missing_value"]
    assert [parameter.name for parameter in entry.parameters] == ["NOTION_NOTION_TOKEN"]
    entry = parse_entry({"notion": {**HTTP, "headers": {"Authorization": f"Bearer {text}"}}})
    assert list_problem_codes(entry) == ["missing_value"]


@pytest.mark.parametrize("text", ["info", "8080", "sk-live-1xxx", "a.b.c", "/srv/data", '["a"]'])
def test_other_values_are_imported_as_they_are(text: str) -> None:
    entry = parse_entry({"notion": {**STDIO, "env": {"SETTING": text}}})
    assert get_secrets(entry) == {("env", "SETTING"): text}


def test_masked_values_of_an_export_are_required() -> None:
    entry = parse_entry(
        {
            "name": "aws",
            "endpoint_config": {**HTTP, "headers": {"X-Team": "********"}},
            "auth_config": {"type": "bearer_token", "configured": True},
        }
    )
    assert list_problem_codes(entry) == ["missing_value", "missing_value"]
    assert [parameter.name for parameter in entry.parameters] == ["AWS_TOKEN", "AWS_X_TEAM"]
    filled = parse_entry(
        {"name": "aws", **HTTP, "auth_config": {"type": "bearer_token", "configured": True}},
        AWS_TOKEN=CANARY,
    )
    assert filled.is_valid
    assert get_secrets(filled) == {("auth", "token"): CANARY}


@pytest.mark.parametrize(
    ("fields", "enabled"),
    [
        ({}, True),
        ({"enabled": False}, False),
        ({"disabled": True}, False),
        ({"disabled": None}, True),
        ({"enabled": True, "disabled": True}, False),
    ],
)
def test_a_server_can_be_disabled(fields: dict[str, Any], enabled: bool) -> None:
    assert parse_entry({"a": {**HTTP, **fields}}).enabled is enabled


def test_references_become_parameters() -> None:
    config = {
        "inputs": [
            {"type": "promptString", "id": "tok", "description": "API token", "password": True}
        ],
        "servers": {
            "a": {
                **HTTP,
                "headers": {"Authorization": "Bearer ${input:tok}", "X-Org": "${env:ORG}"},
            }
        },
    }
    entry = parse_entry(config)
    assert {(p.name, p.label, p.secret, p.fields) for p in entry.parameters} == {
        ("tok", "API token", True, ("headers.Authorization",)),
        ("ORG", "ORG", True, ("headers.X-Org",)),
    }
    assert {(p.code, p.field) for p in entry.problems} == {
        ("missing_value", "headers.Authorization"),
        ("missing_value", "headers.X-Org"),
    }
    assert entry.auth_type == "bearer_token"
    filled = parse_entry(config, tok=CANARY, ORG="acme")
    assert filled.is_valid
    assert get_secrets(filled) == {("auth", "token"): CANARY, ("header", "X-Org"): "acme"}


def test_a_default_is_used_for_a_missing_value() -> None:
    config = {"a": {"command": "uvx", "args": ["--dir=${DIR:-/tmp}", "${DIR:-/tmp}/x"]}}
    assert parse_entry(config).endpoint_config["args"] == ["--dir=/tmp", "/tmp/x"]
    assert parse_entry(config, DIR="/srv").endpoint_config["args"] == ["--dir=/srv", "/srv/x"]


def test_values_arent_expanded_again() -> None:
    config = {"a": {"command": "uvx", "args": ["${A}"]}}
    assert parse_entry(config, A="${B}", B="no").endpoint_config["args"] == ["${B}"]


@pytest.mark.parametrize("name", ["BONOBOT_SECRET_KEY", "DATABASE_URL", "REDIS_URL", "bonobot_x"])
def test_variables_of_bonobot_are_never_used(name: str) -> None:
    entry = parse_entry({"a": {**STDIO, "env": {"X": f"${{{name}:-d}}"}}}, **{name: CANARY})
    assert list_problem_codes(entry) == ["forbidden_variable"]
    assert entry.secrets == ()


@pytest.mark.parametrize(
    ("server", "code", "field"),
    [
        ({**HTTP, "type": "carrier-pigeon"}, "unknown_transport", "transport_type"),
        ({**HTTP, "transport": 7}, "unknown_transport", "transport_type"),
        ({**HTTP, **STDIO}, "ambiguous_transport", "transport_type"),
        ({}, "missing_endpoint", "url"),
        ({**HTTP, "type": "stdio"}, "missing_endpoint", "command"),
        ({**STDIO, "type": "http"}, "missing_endpoint", "url"),
        ({"command": ""}, "missing_endpoint", "command"),
        ({"command": []}, "missing_endpoint", "command"),
        ({"command": "npx 'open"}, "bad_command", "command"),
        ({"command": {"a": 1}, "type": "stdio"}, "bad_value", "command"),
        ({"command": "npx", "args": "-y x"}, "bad_value", "args"),
        ({"command": "npx", "args": ["-y", None]}, "bad_value", "args[1]"),
        ({**STDIO, "env": ["A=b"]}, "bad_value", "env"),
        ({**STDIO, "env": {"A": {"b": 1}}}, "bad_value", "env.A"),
        ({**HTTP, "headers": "X: y"}, "bad_value", "headers"),
        ({**HTTP, "disabled": "yes"}, "bad_value", "disabled"),
        ({**HTTP, "auth": {"type": "magic"}}, "unknown_auth", "auth.type"),
        ({"url": "ftp://example.com"}, "bad_url", "url"),
        ({"url": "https://"}, "bad_url", "url"),
        ({"url": ""}, "bad_url", "url"),
        ({"url": "https://${command:host}/"}, "unknown_reference", "url"),
        ("https://mcp.example.com", "not_an_object", ""),
        (None, "not_an_object", ""),
    ],
    ids=str,
)
def test_an_invalid_server_is_reported_with_its_field(server: Any, code: str, field: str) -> None:
    entries = parse_import(json.dumps({"fine": HTTP, "a": server}, indent=1))
    assert entries[0].is_valid
    (problem,) = entries[1].problems
    assert (problem.code, problem.field) == (code, field)
    assert problem.extra["line"] >= 5
    assert problem.remedy


def test_duplicate_names_are_refused_at_the_second_one() -> None:
    text = '{"a": {"url": "https://a.example"},\n "a": {"url": "https://b.example"},\n'
    entries = parse_import(text + ' "A ": {"url": "https://c.example"}}')
    assert [list_problem_codes(entry) for entry in entries] == [
        [],
        ["duplicate_name"],
        ["name_taken"],
    ]
    assert [problem.extra["line"] for entry in entries for problem in entry.problems] == [2, 3]


def test_missing_and_unreadable_names_are_refused() -> None:
    assert list_problem_codes(parse_entry({"": HTTP})) == ["missing_name"]
    assert list_problem_codes(parse_entry({"a\u200bb": HTTP})) == ["bad_name"]


@pytest.mark.parametrize(
    ("server", "name"),
    [
        ({"url": "https://mcp.weather.example/mcp"}, "weather"),
        ({"command": "npx", "args": ["-y", "@acme/server-memory@1.0.0"]}, "server-memory"),
        ({"command": "npx", "args": ["-y", "@azure/mcp@2.0.5"]}, "azure-mcp"),
    ],
)
def test_a_server_without_a_name_is_named_after_its_url(server: dict[str, Any], name: str) -> None:
    entry = parse_entry(server)
    assert entry.name == name
    assert "named_by_import" in list_notice_codes(entry)


def test_a_server_that_cant_be_named_requires_a_name() -> None:
    assert list_problem_codes(parse_entry({"url": "http://127.0.0.1:3001/mcp"})) == ["missing_name"]


def test_suspicious_values_get_a_warning() -> None:
    assert list_notice_codes(parse_entry({"a": {"url": "http://127.0.0.1:3001/mcp"}})) == {
        "private_address"
    }
    assert list_notice_codes(
        parse_entry({"a": {"url": f"https://x.example/?api_key={CANARY}"}})
    ) == {"secret_in_url"}
    assert list_notice_codes(
        parse_entry({"a": {"command": "node", "args": ["x.js", "--token", CANARY]}})
    ) == {"secret_in_arguments"}
    assert list_notice_codes(
        parse_entry({"a": {"command": "npx", "args": ["-y", "some-server"]}})
    ) == {"unpinned_version"}
    assert list_notice_codes(parse_entry({"a": {**HTTP, "autoApprove": [], "timeout": 60}})) == {
        "left_out"
    }
    assert list_notice_codes(
        parse_entry('{"a": {"url": "https://x.example", "url": "https://y.example"}}')
    ) == {"repeated_member"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "nothing_to_import"),
        ("  // nothing\n", "nothing_to_import"),
        ("{}", "nothing_to_import"),
        ("[]", "nothing_to_import"),
        ('{"mcpServers": {}}', "nothing_to_import"),
        ('{"mcp": {}}', "nothing_to_import"),
        ("7", "not_a_configuration"),
        ('"text"', "not_a_configuration"),
        ('{"name": "x", "version": "1"}', "not_a_configuration"),
        ("[" * 65 + "]" * 65, "too_deep"),
        (json.dumps({f"s{n}": HTTP for n in range(201)}), "too_many_servers"),
        (" " * (256 * 1024 + 1), "too_large"),
    ],
    ids=lambda value: value[:30],
)
def test_a_text_without_servers_is_refused_with_the_expected_format(text: str, code: str) -> None:
    with pytest.raises(Problem) as caught:
        parse_import(text)
    assert caught.value.code == code
    assert caught.value.remedy
