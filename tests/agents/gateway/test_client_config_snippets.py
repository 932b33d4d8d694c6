"""Configuration snippets: valid for each client and safe to paste."""

import json
import shlex
import tomllib
from base64 import b64decode
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from django.utils import translation

from agents.gateway.client_config_snippets import (
    BEARER_PLACEHOLDER,
    CLIENTS,
    build_agent_path,
    build_server_path,
    build_snippet,
    build_snippets,
    build_target,
)
from bonobot.core.i18n.localization import localize_text

BASE_URL = "https://bonobot.example.com"
TOKEN = "bnb_1a2b3c4d5e6f_s-e_c"
AGENT = build_target(BASE_URL, build_agent_path("release-helper"), TOKEN)
URL = f"{BASE_URL}/mcp/agents/release-helper"


@pytest.mark.parametrize("client", CLIENTS)
def test_every_snippet_has_the_url_and_the_token_once(client):
    text = build_snippet(client, AGENT).text
    assert text.count(URL) == 1
    assert text.count(TOKEN) == 1
    assert BEARER_PLACEHOLDER not in text
    assert text.endswith("\n")


@pytest.mark.parametrize("client", CLIENTS)
def test_every_snippet_is_valid_in_its_language(client):
    for target in (AGENT, build_target("http://127.0.0.1:8000", "/mcp")):
        snippet = build_snippet(client, target)
        if snippet.language == "json":
            assert isinstance(json.loads(snippet.text), dict)
        elif snippet.language == "toml":
            assert tomllib.loads(snippet.text)
        else:
            assert shlex.split(snippet.text.replace("\\\n", " "))[0] in ("claude", "curl")


@pytest.mark.parametrize(
    ("client", "key", "expected"),
    [
        ("claude-code-project", "mcpServers", {"type": "http", "url": URL}),
        ("cursor", "mcpServers", {"url": URL}),
        ("windsurf", "mcpServers", {"serverUrl": URL}),
        ("jetbrains", "mcpServers", {"url": URL}),
        ("zed", "context_servers", {"url": URL}),
        ("cline", "mcpServers", {"type": "streamableHttp", "url": URL}),
        ("gemini-cli", "mcpServers", {"httpUrl": URL}),
        ("vscode", "servers", {"type": "http", "url": URL}),
        ("json", "mcpServers", {"type": "http", "url": URL}),
    ],
)
def test_each_client_gets_its_own_fields(client, key, expected):
    entry = json.loads(build_snippet(client, AGENT).text)[key]["bonobot-release-helper"]
    assert entry == {**expected, "headers": {"Authorization": f"Bearer {TOKEN}"}}


def test_codex_gets_a_header_or_a_variable_name():
    config = tomllib.loads(build_snippet("codex", AGENT).text)
    assert config["mcp_servers"]["bonobot-release-helper"] == {
        "url": URL,
        "http_headers": {"Authorization": f"Bearer {TOKEN}"},
    }
    config_without_token = tomllib.loads(build_snippet("codex", build_target(BASE_URL)).text)
    assert config_without_token["mcp_servers"]["bonobot"]["bearer_token_env_var"] == "BONOBOT_TOKEN"


def test_vs_code_prompts_for_a_missing_token():
    config = json.loads(build_snippet("vscode", build_target(BASE_URL)).text)
    assert config["inputs"][0]["password"] is True
    header = config["servers"]["bonobot"]["headers"]["Authorization"]
    assert header == f"Bearer ${{input:{config['inputs'][0]['id']}}}"


def read_vs_code_link(link):
    """Parse a link as VS Code does: the whole query is an encoded JSON object."""
    prefix = "vscode:mcp/install?"
    assert link.startswith(prefix)
    return json.loads(unquote(link.removeprefix(prefix)))


def read_cursor_link(link):
    """Parse a link as Cursor does: the name, and the entry in base64."""
    parts = urlsplit(link)
    assert (parts.scheme, parts.netloc, parts.path) == (
        *("cursor", "anysphere.cursor-deeplink", "/mcp/install"),
    )
    query = parse_qs(parts.query, strict_parsing=True)
    return query["name"], json.loads(b64decode(query["config"][0], validate=True))


def test_links_have_the_same_configuration_as_the_snippets():
    oauth = build_target(BASE_URL, build_agent_path("release-helper"), uses_oauth=True)
    config = read_vs_code_link(build_snippet("vscode", oauth).link)
    assert config == {"name": "bonobot-release-helper", "type": "http", "url": URL}
    name, entry = read_cursor_link(build_snippet("cursor", oauth).link)
    assert (name, entry) == (["bonobot-release-helper"], {"url": URL})


def test_links_never_contain_a_token():
    for snippet in build_snippets(AGENT):
        assert TOKEN not in unquote(snippet.link)
    config = read_vs_code_link(build_snippet("vscode", AGENT).link)
    (prompt,) = config["inputs"]
    assert prompt["password"] is True
    assert config["headers"]["Authorization"] == f"Bearer ${{input:{prompt['id']}}}"
    _, entry = read_cursor_link(build_snippet("cursor", AGENT).link)
    assert entry["headers"] == {"Authorization": "Bearer ${env:BONOBOT_TOKEN}"}


def test_mcp_remote_gets_the_token_from_the_environment_without_spaces():
    local = build_target("http://127.0.0.1:8000", build_server_path("time"), TOKEN)
    entry = json.loads(build_snippet("claude-desktop", local).text)["mcpServers"]["bonobot-time"]
    assert entry["env"] == {"AUTH_HEADER": f"Bearer {TOKEN}"}
    assert "--allow-http" in entry["args"]
    assert not any(" " in argument for argument in entry["args"])
    assert "--allow-http" not in build_snippet("claude-desktop", AGENT).text


def test_a_command_is_safely_quoted_for_any_name():
    unsafe_target = build_target("https://b.example.com/$(id)", "/mcp", "x'; rm -rf ~; '")
    words = shlex.split(build_snippet("claude-code", unsafe_target).text.replace("\\\n", " "))
    assert words[-1] == "Authorization: Bearer x'; rm -rf ~; '"
    assert words[-3] == "https://b.example.com/$(id)/mcp"


def test_all_snippets_are_listed_with_their_destination():
    snippets = build_snippets(build_target(BASE_URL))
    assert [snippet.client for snippet in snippets] == list(CLIENTS)
    assert all(snippet.file or snippet.language == "sh" for snippet in snippets)


@pytest.mark.parametrize("client", [item for item in CLIENTS if item != "curl"])
def test_with_oauth_the_url_is_enough(client):
    snippet = build_snippet(
        client, build_target(BASE_URL, build_agent_path("release-helper"), uses_oauth=True)
    )
    assert snippet.text.count(URL) == 1
    for word in (BEARER_PLACEHOLDER, "uthorization", "BONOBOT_TOKEN", "input"):
        assert word not in snippet.text
    assert "for you to authorize it" in snippet.note


def test_a_given_token_is_written_into_every_snippet():
    target = build_target(BASE_URL, build_agent_path("release-helper"), TOKEN, uses_oauth=True)
    assert build_snippets(target) == build_snippets(AGENT)


@pytest.mark.parametrize("uses_oauth", [True, False])
def test_every_note_is_shown_in_german(uses_oauth):
    snippets = build_snippets(build_target(BASE_URL, uses_oauth=uses_oauth))
    notes = [snippet.note for snippet in snippets if snippet.note]
    assert notes
    with translation.override("de"):
        assert [note for note in notes if localize_text(note) == note] == []


def test_clients_without_a_browser_get_a_token():
    assert BEARER_PLACEHOLDER in build_snippet("curl", build_target(BASE_URL, uses_oauth=True)).text
