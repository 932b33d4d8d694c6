"""The shell toolset."""

from typing import Any

from agents.builtin_tools.command_sandbox import CommandResult, CommandSandbox, run
from agents.builtin_tools.toolset_options import KITS, Options
from agents.builtin_tools.toolsets.filesystem import FOLDER_PATH, get_workspace, normalize_path
from agents.builtin_tools.types import BuiltinTool, BuiltinToolContext, BuiltinToolHints
from agents.builtin_tools.workspaces import QuotaExceeded, Workspace, run_in_thread
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from mcp_servers.client.server_sandbox import ProcessLimits

LONGEST = 32_768
OPEN_FILES = 1024
SHOWN_OF_STOPPED = 8_000  # the last characters
SHELL = "/bin/sh"


class CommandStopped(Problem):
    """The command was stopped; the message contains its output so far."""

    code = "shell_timeout"
    status = 504
    title = "The command was stopped"


async def _run(context: BuiltinToolContext, arguments: dict[str, Any]) -> dict[str, Any]:
    options = context.toolbox.kits.get("shell", KITS["shell"].usual)
    place, at = get_workspace(context), normalize_path(arguments.get("path", "."))
    await run_in_thread(_prepare, place, at)
    seconds = float(min(arguments.get("time_s", options["time_s"]), options["time_s"]))
    if context.timeout_s is not None:
        seconds = min(seconds, context.timeout_s)
    box = CommandSandbox(
        root=place.root, at=at, network=options["network"], limits=_build_limits(place, options)
    )
    found = await run(place, box, (SHELL, "-c", arguments["command"]), seconds=seconds)
    if found.ended:
        raise _build_stop_error(found, seconds)
    text = f"{found.out}\n[exit status {found.status}]".lstrip()
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": {"exit_status": found.status},
    }


def _prepare(place: Workspace, at: str) -> None:
    """Create the agent's own folder if missing, and check that the path is a folder."""
    with place.open() as folder:
        place.require_room(folder, 1)
        with folder.folder(at):
            pass


def _build_limits(place: Workspace, options: Options) -> ProcessLimits:
    return ProcessLimits(
        memory_mib=options["memory_mib"],
        processes=options["processes"],
        open_files=OPEN_FILES,
        cpu_s=options["time_s"],
        file_mib=0 if place.attached else max(1, place.most_bytes // (1024 * 1024)),
    )


def _build_stop_error(found: CommandResult, seconds: float) -> Problem:
    said = found.out[-SHOWN_OF_STOPPED:]
    if found.ended == "quota":
        return QuotaExceeded(
            format_message(
                "The command was stopped: it filled the workspace beyond its quota.\n{said}",
                said=said,
            ),
            remedy="Delete what isn't needed any more, or ask for a larger workspace.",
        )
    if found.ended == "output":
        return CommandStopped(
            format_message(
                "The command was stopped: it wrote more than anybody will read.\n{said}", said=said
            ),
            code="shell_output",
            remedy="Write to a file, or show less of it.",
        )
    return CommandStopped(
        format_message(
            "The command was stopped: it was not done after {seconds:.0f} s.\n{said}",
            seconds=seconds,
            said=said,
        ),
        remedy="Do less at a time, or have an administrator give the shell more time.",
    )


SHELL_TOOLS = (
    BuiltinTool(
        name="run_shell",
        description=format_message(
            "Run a command with /bin/sh in a sandbox whose only files are the system's "
            "programs and the workspace, at /workspace. Output and errors come together, with the "
            "exit status. Nothing that it starts outlives it."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "command": {"type": "string", "minLength": 1, "maxLength": LONGEST},
                "path": FOLDER_PATH | {"description": "Where to run it; left out: /workspace."},
                "time_s": {"type": "integer", "minimum": 1, "maximum": 600},
            },
            "required": ["command"],
            "additionalProperties": False,
        },
        run=_run,
        kit="shell",
        reads=True,
        writes=True,
        online="network",
        hints=BuiltinToolHints(
            read_only=False, destructive=True, idempotent=False, open_world=True
        ),
    ),
)
