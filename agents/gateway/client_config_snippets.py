"""Configuration snippets for MCP clients. Pure.

Each client has its own file and field names for a name, an address and a header with the token.
Without a token, the snippet has a placeholder, or the client prompts for it or reads it from the
environment. With OAuth, the address is enough.
"""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from bonobot.core.i18n.messages import format_message

PLACEHOLDER = "YOUR_TOKEN"
VARIABLE = "BONOBOT_TOKEN"
MODERN = "2026-07-28"
ROOT = "/mcp"
# Clients that can't sign in with OAuth.
TOKEN_ONLY = frozenset({"curl"})


@dataclass(frozen=True, slots=True)
class SnippetTarget:
    """A gateway address with a name and a token; no token is needed with `uses_oauth`."""

    url: str
    name: str = "bonobot"
    token: str = PLACEHOLDER
    signs_in: bool = False

    @property
    def bearer(self) -> str:
        """The value of the `Authorization` header."""
        return f"Bearer {self.token}"

    @property
    def headers(self) -> dict[str, Any]:
        """The entry's `headers` field; empty with OAuth."""
        return {} if self.signs_in else {"headers": {"Authorization": self.bearer}}

    @property
    def local(self) -> bool:
        """Whether the address uses plain HTTP."""
        return urlsplit(self.url).scheme == "http"


@dataclass(frozen=True, slots=True)
class ClientConfigSnippet:
    """A configuration text; `file` is blank for a command, `note` is a hint for the user."""

    client: str
    title: str
    text: str
    language: str
    file: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class _ClientFormat:
    title: str
    write: Callable[[SnippetTarget], str]
    language: str = "json"
    file: str = ""
    note: str = ""


def build_target(
    base_url: str, path: str = ROOT, token: str = "", *, signs_in: bool = False
) -> SnippetTarget:
    """Return the target at a path of the gateway, with a unique name.

    `uses_oauth`: clients without a token sign in with OAuth.
    """
    slug = path.removeprefix(ROOT).rpartition("/")[2]
    name = f"bonobot-{slug}" if slug else "bonobot"
    signs_in = signs_in and not token
    return SnippetTarget(base_url.rstrip("/") + path, name, token or PLACEHOLDER, signs_in)


def build_agent_path(slug: str) -> str:
    """Return the path of an agent's tools."""
    return f"{ROOT}/agents/{slug}"


def build_server_path(slug: str) -> str:
    """Return the path of a server in the pool."""
    return f"{ROOT}/servers/{slug}"


def build_snippet(client: str, about: SnippetTarget) -> ClientConfigSnippet:
    """Return the snippet for one client; raises `KeyError` for an unknown one."""
    known = CLIENTS[client]
    note = known.note
    if about.signs_in and client not in TOKEN_ONLY:
        note = f"{_SIGNS_IN} {_STDIO}" if known.note == _STDIO else _SIGNS_IN
    return ClientConfigSnippet(
        client, known.title, known.write(about), known.language, known.file, note
    )


def build_snippets(about: SnippetTarget) -> list[ClientConfigSnippet]:
    """Return the snippets for all known clients."""
    return [build_snippet(client, about) for client in CLIENTS]


def _format_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _build_entry_writer(member: str, **names: str) -> Callable[[SnippetTarget], str]:
    """Return a renderer of an entry in `section`; `extra_fields["url"]` renames the URL's field."""
    url = names.pop("url", "url")

    def write(about: SnippetTarget) -> str:
        entry = {**names, url: about.url, **about.headers}
        return _format_json({member: {about.name: entry}})

    return write


def _write_bridge(about: SnippetTarget) -> str:
    # No spaces within an argument: some clients pass arguments unquoted.
    options = [] if about.signs_in else ["--header", "Authorization:${AUTH_HEADER}"]
    entry: dict[str, Any] = {
        "command": "npx",
        "args": ["-y", "mcp-remote", about.url, *(["--allow-http"] * about.local), *options],
    }
    if not about.signs_in:
        entry["env"] = {"AUTH_HEADER": about.bearer}
    return _format_json({"mcpServers": {about.name: entry}})


def _write_vs_code(about: SnippetTarget) -> str:
    if about.signs_in:
        return _format_json({"servers": {about.name: {"type": "http", "url": about.url}}})
    asked, known = f"{about.name}-token", about.token != PLACEHOLDER
    entry = {
        "type": "http",
        "url": about.url,
        "headers": {"Authorization": about.bearer if known else f"Bearer ${{input:{asked}}}"},
    }
    prompt = {
        "type": "promptString",
        "id": asked,
        "description": f"Token for {about.name}",
        "password": True,
    }
    inputs = {} if known else {"inputs": [prompt]}
    return _format_json({**inputs, "servers": {about.name: entry}})


def _write_claude_code(about: SnippetTarget) -> str:
    header = shlex.quote(f"Authorization: {about.bearer}")
    words = ["claude", "mcp", "add", "--transport", "http", about.name, about.url]
    if about.signs_in:
        return f"{shlex.join(words)}\n"
    return f"{shlex.join(words)} \\\n  --header {header}\n"


def _write_codex(about: SnippetTarget) -> str:
    # Slugs only have characters that are allowed in an unquoted TOML key.
    head = f"[mcp_servers.{about.name}]\nurl = {json.dumps(about.url)}\n"
    if about.signs_in:
        return head
    if about.token == PLACEHOLDER:
        return f'{head}bearer_token_env_var = "{VARIABLE}"\n'
    header = json.dumps(about.bearer, ensure_ascii=False)
    return f"{head}http_headers = {{ Authorization = {header} }}\n"


def _write_curl(about: SnippetTarget) -> str:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    headers = {
        "Authorization": about.bearer,
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": "tools/list",
    }
    lines = [f"curl -sS {shlex.quote(about.url)}"]
    lines += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in headers.items()]
    return " \\\n  ".join([*lines, f"-d {shlex.quote(json.dumps(asked))}"]) + "\n"


_ASKS = format_message("Without a token in it, it asks for one when it starts and keeps it safe.")
_READS = f"Without a token in it, it reads one from the variable {VARIABLE}."
_SIGNS_IN = format_message(
    "It opens a page here that asks you, and gets a token by itself. If it can't, write one in."
)
_STDIO = format_message("It starts local programs only, so mcp-remote (Node.js) goes between.")

CLIENTS: dict[str, _ClientFormat] = {
    "claude-code": _ClientFormat(
        "Claude Code", _write_claude_code, "sh", note="With `-s user` it is there in every project."
    ),
    "claude-code-project": _ClientFormat(
        format_message("Claude Code, in a project"),
        _build_entry_writer("mcpServers", type="http"),
        file=".mcp.json",
    ),
    "claude-desktop": _ClientFormat(
        "Claude Desktop", _write_bridge, file="claude_desktop_config.json", note=_STDIO
    ),
    "cursor": _ClientFormat("Cursor", _build_entry_writer("mcpServers"), file="~/.cursor/mcp.json"),
    "vscode": _ClientFormat("VS Code", _write_vs_code, file=".vscode/mcp.json", note=_ASKS),
    "windsurf": _ClientFormat(
        "Windsurf",
        _build_entry_writer("mcpServers", url="serverUrl"),
        file="~/.codeium/windsurf/mcp_config.json",
    ),
    "zed": _ClientFormat(
        "Zed", _build_entry_writer("context_servers"), file="~/.config/zed/settings.json"
    ),
    "cline": _ClientFormat(
        "Cline",
        _build_entry_writer("mcpServers", type="streamableHttp"),
        file="cline_mcp_settings.json",
    ),
    "gemini-cli": _ClientFormat(
        "Gemini CLI",
        _build_entry_writer("mcpServers", url="httpUrl"),
        file="~/.gemini/settings.json",
    ),
    "codex": _ClientFormat(
        "OpenAI Codex CLI", _write_codex, "toml", file="~/.codex/config.toml", note=_READS
    ),
    "json": _ClientFormat(
        format_message("Other programs"),
        _build_entry_writer("mcpServers", type="http"),
        file="mcp.json",
    ),
    "mcp-remote": _ClientFormat(
        format_message("Programs that start servers by stdio"),
        _write_bridge,
        file="mcp.json",
        note=_STDIO,
    ),
    "curl": _ClientFormat(
        "curl", _write_curl, "sh", note=format_message("It lists the tools: a quick try.")
    ),
}
