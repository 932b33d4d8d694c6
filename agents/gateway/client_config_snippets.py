"""Configuration snippets for MCP clients. Pure.

Each client has its own file and field names for a name, an address and a header with the token.
Without a token, the snippet has a placeholder, or the client prompts for it or reads it from the
environment. With OAuth, the address is enough. Install links never contain a token: browsers and
operating systems keep the links that they open.
"""

import json
import shlex
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from bonobot.core.i18n.messages import format_message

BEARER_PLACEHOLDER = "YOUR_TOKEN"
BEARER_VARIABLE = "BONOBOT_TOKEN"
PROTOCOL_VERSION = "2026-07-28"
ROOT_PATH = "/mcp"
# Clients that can't sign in with OAuth.
TOKEN_ONLY = frozenset({"curl"})
_PROMPT_NOTE = format_message(
    "Without a token in the configuration, the client asks for one on start and stores it securely."
)
_VARIABLE_NOTE = format_message(
    "Without a token in the configuration, Codex reads it from `{variable}`.",
    variable=BEARER_VARIABLE,
)
_OAUTH_NOTE = format_message(
    "The client opens a page here for you to authorize it and gets a token automatically. "
    "If the client can't, add a token to the configuration."
)
_BRIDGE_NOTE = format_message(
    "This client only starts local programs, so mcp-remote (Node.js) connects it to the server."
)


@dataclass(frozen=True, slots=True)
class SnippetTarget:
    """A gateway address with a name and a token; no token is needed with `uses_oauth`."""

    url: str
    name: str = "bonobot"
    token: str = BEARER_PLACEHOLDER
    uses_oauth: bool = False

    @property
    def authorization(self) -> str:
        """The value of the `Authorization` header."""
        return f"Bearer {self.token}"

    @property
    def headers(self) -> dict[str, Any]:
        """The entry's `headers` field; empty with OAuth."""
        return {} if self.uses_oauth else {"headers": {"Authorization": self.authorization}}

    @property
    def is_plain_http(self) -> bool:
        """Whether the address uses plain HTTP."""
        return urlsplit(self.url).scheme == "http"


@dataclass(frozen=True, slots=True)
class ClientConfigSnippet:
    """A configuration text; `file` is blank for a command, `note` is a hint for the user.

    `link` opens the client and asks its user to add the server; blank if the client has no such
    links.
    """

    client: str
    title: str
    text: str
    language: str
    file: str = ""
    note: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class _ClientFormat:
    title: str
    render: Callable[[SnippetTarget], str]
    language: str = "json"
    file: str = ""
    note: str = ""
    build_link: Callable[[SnippetTarget], str] | None = None


def build_target(
    base_url: str, path: str = ROOT_PATH, token: str = "", *, uses_oauth: bool = False
) -> SnippetTarget:
    """Return the target at a path of the gateway, with a unique name.

    `uses_oauth`: clients without a token sign in with OAuth.
    """
    slug = path.removeprefix(ROOT_PATH).rpartition("/")[2]
    name = f"bonobot-{slug}" if slug else "bonobot"
    uses_oauth = uses_oauth and not token
    return SnippetTarget(base_url.rstrip("/") + path, name, token or BEARER_PLACEHOLDER, uses_oauth)


def build_agent_path(slug: str) -> str:
    """Return the path of an agent's tools."""
    return f"{ROOT_PATH}/agents/{slug}"


def build_server_path(slug: str) -> str:
    """Return the path of a server in the pool."""
    return f"{ROOT_PATH}/servers/{slug}"


def build_snippet(client: str, target: SnippetTarget) -> ClientConfigSnippet:
    """Return the snippet for one client; raises `KeyError` for an unknown one."""
    client_format = CLIENTS[client]
    note = client_format.note
    if target.uses_oauth and client not in TOKEN_ONLY:
        note = (
            f"{_OAUTH_NOTE} {_BRIDGE_NOTE}" if client_format.note == _BRIDGE_NOTE else _OAUTH_NOTE
        )
    return ClientConfigSnippet(
        client,
        title=client_format.title,
        text=client_format.render(target),
        language=client_format.language,
        file=client_format.file,
        note=note,
        link=client_format.build_link(replace(target, token=BEARER_PLACEHOLDER))
        if client_format.build_link
        else "",
    )


def build_snippets(target: SnippetTarget) -> list[ClientConfigSnippet]:
    """Return the snippets for all known clients."""
    return [build_snippet(client, target) for client in CLIENTS]


def _format_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _build_entry_renderer(section: str, **extra_fields: str) -> Callable[[SnippetTarget], str]:
    """Return a renderer of an entry in `section`; `extra_fields["url"]` renames the URL's field."""
    url_key = extra_fields.pop("url", "url")

    def render(target: SnippetTarget) -> str:
        entry = {**extra_fields, url_key: target.url, **target.headers}
        return _format_json({section: {target.name: entry}})

    return render


def _render_bridge(target: SnippetTarget) -> str:
    # No spaces within an argument: some clients pass arguments unquoted.
    options = [] if target.uses_oauth else ["--header", "Authorization:${AUTH_HEADER}"]
    entry: dict[str, Any] = {
        "command": "npx",
        "args": [
            "-y",
            "mcp-remote",
            target.url,
            *(["--allow-http"] * target.is_plain_http),
            *options,
        ],
    }
    if not target.uses_oauth:
        entry["env"] = {"AUTH_HEADER": target.authorization}
    return _format_json({"mcpServers": {target.name: entry}})


def _render_vs_code(target: SnippetTarget) -> str:
    inputs, entry = _build_vs_code_entry(target)
    return _format_json({**inputs, "servers": {target.name: entry}})


def _build_vs_code_link(target: SnippetTarget) -> str:
    inputs, entry = _build_vs_code_entry(target)
    config = json.dumps({"name": target.name, **inputs, **entry}, separators=(",", ":"))
    return f"vscode:mcp/install?{quote(config, safe='')}"


def _build_cursor_link(target: SnippetTarget) -> str:
    authorization = f"Bearer ${{env:{BEARER_VARIABLE}}}"
    headers = {} if target.uses_oauth else {"headers": {"Authorization": authorization}}
    config = json.dumps({"url": target.url, **headers}, separators=(",", ":"))
    query = {"name": target.name, "config": b64encode(config.encode()).decode()}
    return f"cursor://anysphere.cursor-deeplink/mcp/install?{urlencode(query)}"


def _build_vs_code_entry(target: SnippetTarget) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the `inputs` field, if the token is missing, and the server's entry."""
    if target.uses_oauth:
        return {}, {"type": "http", "url": target.url}
    input_id, has_token = f"{target.name}-token", target.token != BEARER_PLACEHOLDER
    entry = {
        "type": "http",
        "url": target.url,
        "headers": {
            "Authorization": target.authorization if has_token else f"Bearer ${{input:{input_id}}}"
        },
    }
    prompt = {
        "type": "promptString",
        "id": input_id,
        "description": f"Token for {target.name}",
        "password": True,
    }
    return ({} if has_token else {"inputs": [prompt]}), entry


def _render_claude_code(target: SnippetTarget) -> str:
    header = shlex.quote(f"Authorization: {target.authorization}")
    command_line = ["claude", "mcp", "add", "--transport", "http", target.name, target.url]
    if target.uses_oauth:
        return f"{shlex.join(command_line)}\n"
    return f"{shlex.join(command_line)} \\\n  --header {header}\n"


def _render_codex(target: SnippetTarget) -> str:
    # Slugs only have characters that are allowed in an unquoted TOML key.
    section = f"[mcp_servers.{target.name}]\nurl = {json.dumps(target.url)}\n"
    if target.uses_oauth:
        return section
    if target.token == BEARER_PLACEHOLDER:
        return f'{section}bearer_token_env_var = "{BEARER_VARIABLE}"\n'
    header = json.dumps(target.authorization, ensure_ascii=False)
    return f"{section}http_headers = {{ Authorization = {header} }}\n"


def _render_curl(target: SnippetTarget) -> str:
    meta = {
        "io.modelcontextprotocol/protocolVersion": PROTOCOL_VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    request_body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    headers = {
        "Authorization": target.authorization,
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": PROTOCOL_VERSION,
        "Mcp-Method": "tools/list",
    }
    lines = [f"curl -sS {shlex.quote(target.url)}"]
    lines += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers.items()]
    return " \\\n  ".join([*lines, f"-d {shlex.quote(json.dumps(request_body))}"]) + "\n"


CLIENTS: dict[str, _ClientFormat] = {
    "claude-code": _ClientFormat(
        "Claude Code",
        _render_claude_code,
        "sh",
        note=format_message("Use `-s user` to add it to all projects."),
    ),
    "claude-code-project": _ClientFormat(
        format_message("Claude Code (project)"),
        _build_entry_renderer("mcpServers", type="http"),
        file=".mcp.json",
    ),
    "claude-desktop": _ClientFormat(
        "Claude Desktop", _render_bridge, file="claude_desktop_config.json", note=_BRIDGE_NOTE
    ),
    "cursor": _ClientFormat(
        "Cursor",
        _build_entry_renderer("mcpServers"),
        file="~/.cursor/mcp.json",
        build_link=_build_cursor_link,
    ),
    "vscode": _ClientFormat(
        "VS Code",
        _render_vs_code,
        file=".vscode/mcp.json",
        note=_PROMPT_NOTE,
        build_link=_build_vs_code_link,
    ),
    "windsurf": _ClientFormat(
        "Windsurf",
        _build_entry_renderer("mcpServers", url="serverUrl"),
        file="~/.codeium/windsurf/mcp_config.json",
    ),
    "jetbrains": _ClientFormat(
        "JetBrains AI Assistant",
        _build_entry_renderer("mcpServers"),
        file="Settings | Tools | AI Assistant | Model Context Protocol (MCP)",
    ),
    "zed": _ClientFormat(
        "Zed", _build_entry_renderer("context_servers"), file="~/.config/zed/settings.json"
    ),
    "cline": _ClientFormat(
        "Cline",
        _build_entry_renderer("mcpServers", type="streamableHttp"),
        file="cline_mcp_settings.json",
    ),
    "gemini-cli": _ClientFormat(
        "Gemini CLI",
        _build_entry_renderer("mcpServers", url="httpUrl"),
        file="~/.gemini/settings.json",
    ),
    "codex": _ClientFormat(
        "OpenAI Codex CLI", _render_codex, "toml", file="~/.codex/config.toml", note=_VARIABLE_NOTE
    ),
    "json": _ClientFormat(
        format_message("Other clients"),
        _build_entry_renderer("mcpServers", type="http"),
        file="mcp.json",
    ),
    "mcp-remote": _ClientFormat(
        format_message("Clients that only support stdio"),
        _render_bridge,
        file="mcp.json",
        note=_BRIDGE_NOTE,
    ),
    "curl": _ClientFormat(
        "curl", _render_curl, "sh", note=format_message("Lists the tools. Useful as a quick test.")
    ),
}
