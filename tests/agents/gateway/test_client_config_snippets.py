"""Snippets are what each program reads: parsed as it parses them, and safe to paste."""

import json
import shlex
import tomllib

import pytest

from agents.gateway.client_config_snippets import (
    BEARER_PLACEHOLDER,
    CLIENTS,
    build_agent_path,
    build_server_path,
    build_snippet,
    build_snippets,
    build_target,
)

HERE = "https://bonobot.example.com"
TOKEN = "bnb_1a2b3c4d5e6f_s-e_c"
AGENT = build_target(HERE, build_agent_path("release-helper"), TOKEN)
URL = f"{HERE}/mcp/agents/release-helper"


@pytest.mark.parametrize("client", CLIENTS)
def test_every_snippet_has_the_url_and_the_token_once(client):
    text = build_snippet(client, AGENT).text
    assert text.count(URL) == 1
    assert text.count(TOKEN) == 1
    assert BEARER_PLACEHOLDER not in text
    assert text.endswith("\n")


@pytest.mark.parametrize("client", CLIENTS)
def test_every_snippet_is_valid_in_its_language(client):
    for about in (AGENT, build_target("http://127.0.0.1:8000", "/mcp")):
        found = build_snippet(client, about)
        if found.language == "json":
            assert isinstance(json.loads(found.text), dict)
        elif found.language == "toml":
            assert tomllib.loads(found.text)
        else:
            assert shlex.split(found.text.replace("\\\n", " "))[0] in ("claude", "curl")


@pytest.mark.parametrize(
    ("client", "member", "expected"),
    [
        ("claude-code-project", "mcpServers", {"type": "http", "url": URL}),
        ("cursor", "mcpServers", {"url": URL}),
        ("windsurf", "mcpServers", {"serverUrl": URL}),
        ("zed", "context_servers", {"url": URL}),
        ("cline", "mcpServers", {"type": "streamableHttp", "url": URL}),
        ("gemini-cli", "mcpServers", {"httpUrl": URL}),
        ("vscode", "servers", {"type": "http", "url": URL}),
        ("json", "mcpServers", {"type": "http", "url": URL}),
    ],
)
def test_each_client_gets_its_own_fields(client, member, expected):
    entry = json.loads(build_snippet(client, AGENT).text)[member]["bonobot-release-helper"]
    assert entry == {**expected, "headers": {"Authorization": f"Bearer {TOKEN}"}}


def test_codex_gets_a_header_or_a_variable_name():
    written = tomllib.loads(build_snippet("codex", AGENT).text)
    assert written["mcp_servers"]["bonobot-release-helper"] == {
        "url": URL,
        "http_headers": {"Authorization": f"Bearer {TOKEN}"},
    }
    read = tomllib.loads(build_snippet("codex", build_target(HERE)).text)
    assert read["mcp_servers"]["bonobot"]["bearer_token_env_var"] == "BONOBOT_TOKEN"


def test_vs_code_prompts_for_a_missing_token():
    written = json.loads(build_snippet("vscode", build_target(HERE)).text)
    assert written["inputs"][0]["password"] is True
    named = written["servers"]["bonobot"]["headers"]["Authorization"]
    assert named == f"Bearer ${{input:{written['inputs'][0]['id']}}}"


def test_mcp_remote_gets_the_token_from_the_environment_without_spaces():
    local = build_target("http://127.0.0.1:8000", build_server_path("time"), TOKEN)
    entry = json.loads(build_snippet("claude-desktop", local).text)["mcpServers"]["bonobot-time"]
    assert entry["env"] == {"AUTH_HEADER": f"Bearer {TOKEN}"}
    assert "--allow-http" in entry["args"]
    assert not any(" " in one for one in entry["args"])
    assert "--allow-http" not in build_snippet("claude-desktop", AGENT).text


def test_a_command_is_safely_quoted_for_any_name():
    nasty = build_target("https://b.example.com/$(id)", "/mcp", "x'; rm -rf ~; '")
    words = shlex.split(build_snippet("claude-code", nasty).text.replace("\\\n", " "))
    assert words[-1] == "Authorization: Bearer x'; rm -rf ~; '"
    assert words[-3] == "https://b.example.com/$(id)/mcp"


def test_all_snippets_are_listed_with_their_destination():
    found = build_snippets(build_target(HERE))
    assert [one.client for one in found] == list(CLIENTS)
    assert all(one.file or one.language == "sh" for one in found)


@pytest.mark.parametrize("client", [one for one in CLIENTS if one != "curl"])
def test_with_oauth_the_url_is_enough(client):
    found = build_snippet(
        client, build_target(HERE, build_agent_path("release-helper"), uses_oauth=True)
    )
    assert found.text.count(URL) == 1
    for word in (BEARER_PLACEHOLDER, "uthorization", "BONOBOT_TOKEN", "input"):
        assert word not in found.text
    assert "for you to authorize it" in found.note


def test_a_given_token_is_written_into_every_snippet():
    about = build_target(HERE, build_agent_path("release-helper"), TOKEN, uses_oauth=True)
    assert build_snippets(about) == build_snippets(AGENT)


def test_clients_without_a_browser_get_a_token():
    assert BEARER_PLACEHOLDER in build_snippet("curl", build_target(HERE, uses_oauth=True)).text
