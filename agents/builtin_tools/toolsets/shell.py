"""The shell toolset."""

from typing import Any

from agents.builtin_tools.command_sandbox import CommandResult, CommandSandbox, run_command
from agents.builtin_tools.toolset_options import TOOLSETS, OptionValues
from agents.builtin_tools.toolsets.filesystem import (
    FOLDER_PATH_SCHEMA,
    get_workspace,
    normalize_path,
)
from agents.builtin_tools.types import BuiltinTool, BuiltinToolContext, BuiltinToolHints
from agents.builtin_tools.workspaces import QuotaExceeded, Workspace, run_in_thread
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from mcp_servers.client.resource_limits import ProcessLimits

MAX_COMMAND_LENGTH = 32_768
MAX_OPEN_FILES = 1024
MAX_STOPPED_OUTPUT = 8_000  # the last characters
SHELL = "/bin/sh"


class CommandStopped(Problem):
    """The command was stopped; the message contains its output so far."""

    code = "shell_timeout"
    status = 504
    title = "Command stopped"


async def _handle_run_shell(
    context: BuiltinToolContext, arguments: dict[str, Any]
) -> dict[str, Any]:
    options = context.toolbox.options_by_toolset.get("shell", TOOLSETS["shell"].defaults)
    workspace, start_folder = get_workspace(context), normalize_path(arguments.get("path", "."))
    await run_in_thread(_prepare_start_folder, workspace, start_folder)
    timeout_s = float(min(arguments.get("time_s", options["time_s"]), options["time_s"]))
    if context.timeout_s is not None:
        timeout_s = min(timeout_s, context.timeout_s)
    sandbox = CommandSandbox(
        root=workspace.root,
        start_folder=start_folder,
        network=options["network"],
        limits=_build_limits(workspace, options),
    )
    result = await run_command(
        workspace, sandbox, (SHELL, "-c", arguments["command"]), timeout_s=timeout_s
    )
    if result.ended_by:
        raise _build_stop_error(result, timeout_s)
    text = f"{result.output}\n[exit status {result.exit_status}]".lstrip()
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": {"exit_status": result.exit_status},
    }


def _prepare_start_folder(workspace: Workspace, start_folder: str) -> None:
    """Create the agent's own folder if missing, and check that the path is a folder."""
    with workspace.open() as folder:
        workspace.require_room(folder, 1)
        with folder.open_folder(start_folder):
            pass


def _build_limits(workspace: Workspace, options: OptionValues) -> ProcessLimits:
    return ProcessLimits(
        memory_mib=options["memory_mib"],
        processes=options["processes"],
        open_files=MAX_OPEN_FILES,
        cpu_s=options["time_s"],
        file_mib=0 if workspace.attached else max(1, workspace.max_bytes // (1024 * 1024)),
    )


def _build_stop_error(result: CommandResult, timeout_s: float) -> Problem:
    output = result.output[-MAX_STOPPED_OUTPUT:]
    if result.ended_by == "quota":
        return QuotaExceeded(
            format_message(
                "The command was stopped because it exceeded the workspace quota.\n{output}",
                output=output,
            ),
            remedy="Delete what is no longer needed, or request a larger workspace.",
        )
    if result.ended_by == "output":
        return CommandStopped(
            format_message(
                "The command was stopped because it wrote too much output.\n{output}",
                output=output,
            ),
            code="shell_output",
            remedy="Write the output to a file, or print less.",
        )
    return CommandStopped(
        format_message(
            "The command was stopped because it didn't finish within {seconds:.0f} s.\n{output}",
            seconds=timeout_s,
            output=output,
        ),
        remedy="Do less per command, or ask an administrator to raise the shell's time limit.",
    )


SHELL_TOOLS = (
    BuiltinTool(
        name="run_shell",
        description=format_message(
            "Run a command with /bin/sh in a sandbox. Its only files are the system's "
            "programs and the workspace, at /workspace. Output and errors are returned "
            "together with the exit status. Processes it starts end with it."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "command": {"type": "string", "minLength": 1, "maxLength": MAX_COMMAND_LENGTH},
                "path": FOLDER_PATH_SCHEMA
                | {"description": "The folder to run it in. Default: /workspace."},
                "time_s": {"type": "integer", "minimum": 1, "maximum": 600},
            },
            "required": ["command"],
            "additionalProperties": False,
        },
        run=_handle_run_shell,
        toolset="shell",
        reads_workspace=True,
        writes_workspace=True,
        network_option="network",
        hints=BuiltinToolHints(
            read_only=False, destructive=True, idempotent=False, open_world=True
        ),
    ),
)
