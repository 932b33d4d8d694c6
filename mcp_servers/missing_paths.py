"""The folder or file that a stdio server didn't find when it started, and how to correct it."""

from dataclasses import dataclass
from pathlib import Path

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.models import Server
from mcp_servers.server_config import build_changed_spec, mask_endpoint_config
from mcp_servers.services import update_server

PACKAGE_FOLDER = "node_modules"  # a package needs those beside it


@dataclass(frozen=True)
class MissingPath:
    """A path of a server's configuration that its last error names.

    `is_hidden` means that it exists, but the sandbox doesn't show it: the server's folder (`cwd`)
    has to contain it. Otherwise the path itself is wrong.
    """

    path: str
    is_folder: bool  # it is the server's own folder, no argument
    is_hidden: bool

    @property
    def suggestion(self) -> str:
        """Return the folder that the sandbox could show, or the path to correct."""
        path = Path(self.path)
        if not self.is_hidden:
            return self.path
        packages = [parent for parent in path.parents if parent.name == PACKAGE_FOLDER]
        folder = packages[-1].parent if packages else path if path.is_dir() else path.parent
        return str(folder)


def find_missing_path(server: Server) -> MissingPath | None:
    """Return the path that the server's last error is about, if it is one of its configuration."""
    config = server.endpoint_config
    if server.transport_type != Server.Transport.STDIO or not server.status_code:
        return None
    folder = str(config.get("cwd") or "")
    for path in (folder, *map(str, config.get("args", ()))):
        if path.startswith("/") and f"`{make_visible(path, 200)}`" in server.status_detail:
            is_folder = path == folder
            return MissingPath(path, is_folder, not is_folder and Path(path).exists())
    return None


def correct_path(principal: Principal, server: Server, missing: MissingPath, value: str) -> None:
    """Set the server's folder, or replace the path in its arguments.

    Raises `InvalidInput` (`folder_missing`, `folder_not_allowed`) for a path that can't be used,
    and `Forbidden` for others than platform administrators.
    """
    principal.require(Action.MANAGE_LAUNCHERS)  # others must not learn which paths exist
    path = Path(value.strip())
    if not path.is_absolute() or not path.exists():
        raise InvalidInput(
            format_message("`{path}` doesn't exist on this host.", path=make_visible(value, 300)),
            code="folder_missing",
            field="path",
            remedy="Enter the absolute path of an existing folder.",
        )
    if missing.is_hidden and not Path(missing.path).is_relative_to(path):
        raise InvalidInput(
            format_message(
                "`{folder}` doesn't contain `{path}`.",
                folder=make_visible(value, 300),
                path=make_visible(missing.path, 300),
            ),
            code="folder_not_allowed",
            field="path",
            remedy="Enter a folder that contains it.",
        )
    config = mask_endpoint_config(server)
    if missing.is_folder or missing.is_hidden:
        config["cwd"] = str(path)
    else:
        config["args"] = [str(path) if arg == missing.path else arg for arg in config["args"]]
    update_server(principal, server, build_changed_spec(server, endpoint_config=config))
