"""Find and read the configuration files of MCP clients.

The paths are those that each client documents for Linux, macOS and Windows. A project's file comes
before the user's.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound

CLIENT_NAMES = ("claude-code", "claude-desktop", "cursor", "vscode", "windsurf")
# Claude Code keeps its history in the same file.
MAX_FILE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class UserMachine:
    """The user's home and current folder, environment and platform."""

    home: Path
    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    platform: str = sys.platform

    @property
    def applications(self) -> Path:
        """The folder for settings of desktop applications."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            roaming = self.environ.get("APPDATA")
            return Path(roaming) if roaming else self.home / "AppData" / "Roaming"
        configured = self.environ.get("XDG_CONFIG_HOME")
        return Path(configured) if configured else self.home / ".config"


@dataclass(frozen=True)
class ClientConfigFile:
    """An existing client file, its text about servers, and further existing files."""

    path: Path
    text: str = field(repr=False)
    other_paths: tuple[Path, ...] = ()


def list_config_paths(client: str, machine: UserMachine) -> tuple[Path, ...]:
    """Return the possible configuration files of `client`, the most specific first."""
    applications, home, folder = machine.applications, machine.home, machine.folder
    paths_by_client = {
        "claude-code": (folder / ".mcp.json", home / ".claude.json"),
        "claude-desktop": (applications / "Claude" / "claude_desktop_config.json",),
        "cursor": (folder / ".cursor" / "mcp.json", home / ".cursor" / "mcp.json"),
        "vscode": (
            folder / ".vscode" / "mcp.json",
            applications / "Code" / "User" / "mcp.json",
            applications / "Code" / "User" / "settings.json",
        ),
        "windsurf": (home / ".codeium" / "windsurf" / "mcp_config.json",),
    }
    return paths_by_client[client]


def read_client_config(client: str, machine: UserMachine) -> ClientConfigFile:
    """Return the first existing file of `client`; raises `NotFound` naming all candidates."""
    candidates = list_config_paths(client, machine)
    existing_paths = [path for path in candidates if path.is_file()]
    if not existing_paths:
        raise NotFound(
            format_message("No configuration file for {client} was found.", client=client),
            code="no_client_file",
            field="--from",
            remedy=format_message(
                "Searched: {paths}. Specify another file as FILE.",
                paths=", ".join(str(path) for path in candidates),
            ),
        )
    text = read_text(existing_paths[0])
    if existing_paths[0].name == ".claude.json":
        text = _extract_claude_code_servers(text, machine.folder)
    return ClientConfigFile(existing_paths[0], text, tuple(existing_paths[1:]))


def read_text(path: Path) -> str:
    """Return a configuration file's text; raises `NotFound`, `InvalidInput`."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidInput(
                format_message("{path} is too large.", path=path), code="too_large", field="FILE"
            )
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(
            format_message("{path} isn't UTF-8 text.", path=path),
            code="not_text",
            field="FILE",
            remedy="Save it as UTF-8, or specify another file.",
        ) from None
    except OSError as error:
        raise NotFound(
            format_message("{path} can't be read: {error}.", path=path, error=error.strerror),
            code="unreadable_file",
            field="FILE",
            remedy="Specify a file that you can read, or `-` for standard input.",
        ) from None


def _extract_claude_code_servers(text: str, folder: Path) -> str:
    """Return the servers of the user and of this folder's project, without the history."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text  # the import reports the error
    merged_servers: dict[str, Any] = {}
    for section in _iterate_server_sections(document, folder):
        servers = section.get("mcpServers")
        merged_servers.update(servers if isinstance(servers, dict) else {})
    return json.dumps({"mcpServers": merged_servers}, indent=2)


def _iterate_server_sections(document: Any, folder: Path) -> Iterator[dict[str, Any]]:
    if isinstance(document, dict):
        yield document
        projects = document.get("projects")
        project = projects.get(str(folder)) if isinstance(projects, dict) else None
        if isinstance(project, dict):
            yield project
