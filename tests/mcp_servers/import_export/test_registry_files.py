"""`server.json` files and registries' lists become entries of an import."""

import json
from typing import Any

import pytest

from bonobot.core.text.json_reader import read_json
from mcp_servers.import_export import parse_import
from mcp_servers.import_export.entries import ImportEntry
from mcp_servers.import_export.registry_files import is_registry_file

Json = dict[str, Any]
SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
HEADER: Json = {
    "name": "Authorization",
    "value": "Bearer {api_token}",
    "variables": {"api_token": {"description": "API token", "isRequired": True, "isSecret": True}},
}
PACKAGE: Json = {
    "registryType": "npm",
    "identifier": "@example/files",
    "version": "1.2.3",
    "transport": {"type": "stdio"},
    "packageArguments": [
        {"type": "positional", "valueHint": "folder", "isRequired": True},
        {"type": "named", "name": "--mode", "value": "read"},
        {"type": "named", "name": "--verbose"},
        {"type": "named", "name": "--optional", "valueHint": "x"},
    ],
    "environmentVariables": [
        {"name": "KEY", "isRequired": True, "isSecret": True, "description": "Key"},
        {"name": "REGION", "default": "eu"},
        {"name": "OPTIONAL"},
    ],
}


def build_server(name: str = "io.github.example/weather", **fields: Any) -> Json:
    return {"$schema": SCHEMA, "name": name, "description": "…", "version": "1.0.0", **fields}


def read(value: Any, **values: str) -> list[ImportEntry]:
    return list(parse_import(json.dumps(value, indent=1), values=values))


def test_a_remote_is_an_http_server_whose_header_is_a_parameter() -> None:
    remote = {"type": "streamable-http", "url": "https://x.example/mcp", "headers": [HEADER]}
    server = build_server(packages=[PACKAGE], remotes=[{"type": "other"}, remote])
    (entry,) = read(server)
    assert (entry.name, entry.transport_type) == ("weather", "http")
    assert entry.endpoint_config == {"url": "https://x.example/mcp"}
    (parameter,) = entry.parameters
    assert (parameter.name, parameter.label) == ("WEATHER_API_TOKEN", "API token")
    assert parameter.secret
    assert [problem.code for problem in entry.problems] == ["missing_value"]
    (filled,) = read(server, WEATHER_API_TOKEN="t")
    assert (filled.problems, filled.auth_type) == ((), "bearer_token")
    assert [(secret.name, secret.value) for secret in filled.secrets] == [("token", "t")]


def test_a_variable_of_a_url_is_a_parameter() -> None:
    url, variables = "https://{tenant}.example/{other}", {"tenant": {"default": "acme"}}
    remote = {"type": "sse", "url": url, "variables": variables}
    (entry,) = read(build_server(remotes=[remote]))
    assert entry.endpoint_config["url"] == "https://acme.example/{other}"


@pytest.mark.parametrize(
    ("registry", "command", "package"),
    [
        ("npm", ["npx", "-y"], "@example/files@1.2.3"),
        ("pypi", ["uvx"], "@example/files==1.2.3"),
        ("nuget", ["dnx", "--yes"], "@example/files@1.2.3"),
        (
            "oci",
            ["docker", "run", "-i", "--rm", "-e", "KEY", "-e", "REGION"],
            "@example/files:1.2.3",
        ),
    ],
)
def test_a_package_is_a_command_with_its_pinned_version(
    registry: str, command: list[str], package: str
) -> None:
    server = build_server(packages=[{**PACKAGE, "registryType": registry}])
    (entry,) = read(server, WEATHER_FOLDER="/data", WEATHER_KEY="k")
    assert entry.problems == ()
    config = entry.endpoint_config
    words = [config["command"], *config["args"]]
    assert words == [*command, package, "/data", "--mode", "read", "--verbose"]
    assert {(s.name, s.value) for s in entry.secrets} == {("KEY", "k"), ("REGION", "eu")}


def test_an_image_with_a_tag_keeps_it() -> None:
    package = {"registryType": "oci", "identifier": "ghcr.io/x/y:2.0", "version": "1.0"}
    (entry,) = read(build_server(packages=[package]))
    assert entry.endpoint_config["args"][-1] == "ghcr.io/x/y:2.0"


@pytest.mark.parametrize("packages", [[], [{"registryType": "mcpb", "identifier": "https://x"}]])
def test_a_server_that_cant_be_reached_has_a_problem(packages: list[Json]) -> None:
    (entry,) = read(build_server(packages=packages))
    assert [problem.code for problem in entry.problems] == ["missing_endpoint"]


def test_a_list_has_an_entry_for_each_server() -> None:
    remotes = [{"type": "streamable-http", "url": "https://x.example/mcp"}]
    names = ["com.a/mcp", "com.b/mcp", "com.example.acme/servers.github"]
    entries = [{"server": build_server(name, remotes=remotes), "_meta": {}} for name in names]
    listed = read({"servers": entries, "metadata": {"count": 3}})
    assert [entry.name for entry in listed] == ["com-a-mcp", "com-b-mcp", "servers-github"]
    assert not any(entry.problems for entry in listed)
    assert [entry.name for entry in read(entries[2])] == ["servers-github"]
    assert listed[0].line < listed[1].line


def test_references_of_strangers_arent_expanded() -> None:
    header = {"name": "X-Stolen", "value": "${AWS_KEY}"}
    url = "https://x.example/${AWS_KEY}?a=${env:AWS_KEY}"
    remote = {"type": "sse", "url": url, "headers": [header]}
    (entry,) = read(build_server(remotes=[remote]), AWS_KEY="secret")
    assert "secret" not in json.dumps(entry.endpoint_config)
    assert [secret.value for secret in entry.secrets] == ["{AWS_KEY}"]
    assert entry.parameters == ()
    package = {**PACKAGE, "packageArguments": [{"type": "positional", "value": "${AWS_KEY}"}]}
    package |= {
        "identifier": "x${AWS_KEY}",
        "environmentVariables": [
            {"name": "KEY", "default": "${AWS_KEY"},
            {"name": "OTHER", "default": "$${AWS_KEY}"},
        ],
    }
    entries = read(build_server(packages=[package]), AWS_KEY="secret")
    assert "secret" not in repr(
        [(e.endpoint_config, [s.value for s in e.secrets]) for e in entries]
    )


HIDDEN_REFERENCES: list[Json] = [
    {"url": "https://x.example/$${AWS_KEY}"},
    {"url": "https://x.example/\ue000{AWS_KEY}"},
    {"url": "https://x.example/{a}{AWS_KEY}", "variables": {"a": {"value": "$"}}},
    {
        "url": "https://x.example/{a}{b}",
        "variables": {"a": {"value": "$"}, "b": {"value": "{AWS_KEY}"}},
    },
    {"url": "https://x.example/", "headers": [{"name": "X-A", "value": "$$${AWS_KEY}"}]},
    {"runtimeArguments": [{"type": "named", "name": "${AWS_KEY}"}]},
    {"identifier": "x$${AWS_KEY}"},
    {"identifier": "x$", "version": "{AWS_KEY}"},
    {"environmentVariables": [{"name": "${AWS_KEY}", "value": "1"}]},
]


@pytest.mark.parametrize("fields", HIDDEN_REFERENCES, ids=json.dumps)
def test_hidden_references_of_strangers_arent_expanded(fields: Json) -> None:
    remotes = [{"type": "sse", **fields}] if "url" in fields else []
    packages = [] if remotes else [{"registryType": "oci", "identifier": "x", **fields}]
    entries = read(build_server(remotes=remotes, packages=packages), AWS_KEY="secret-value")
    assert "secret-value" not in repr(entries)


def test_servers_of_a_list_share_no_input() -> None:
    def build(name: str, header: str) -> Json:
        headers = [{"name": header, "isRequired": True}]
        return build_server(
            name, remotes=[{"type": "sse", "url": "https://x.example/", "headers": headers}]
        )

    servers = [build("com.a/git", "Hub-Token"), build("com.b/git-hub", "Token")]
    servers += [build("com.a/mail", "Key"), build("com.b/mail", "Key")]
    entries = read({"servers": [{"server": server} for server in servers]})
    names = [parameter.name for entry in entries for parameter in entry.parameters]
    assert names == ["GIT_HUB_TOKEN", "GIT_HUB_TOKEN_2", "COM_A_MAIL_KEY", "COM_B_MAIL_KEY"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (build_server(remotes=[]), True),
        ({"servers": [{"server": build_server(packages=[])}]}, True),
        ({"servers": [{"name": "a", "url": "https://x.example"}]}, False),
        ({"mcpServers": {"server": {"url": "https://x.example"}}}, False),
        ({"server": {"url": "https://x.example"}}, False),
    ],
)
def test_a_registry_file_is_recognized(value: Json, expected: bool) -> None:
    assert is_registry_file(read_json(json.dumps(value)).root) == expected
