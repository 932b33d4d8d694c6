"""The commands `tools add-mcp`, `remove-mcp`, `toggle-mcp`, `list-mcp` and `test-mcp`.

They are the verbs of `mcp` under other names, and with one difference: a new server is disabled.
"""

import argparse
from dataclasses import replace

from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb, add_arguments
from bonobot.core.problems import InvalidInput
from mcp_servers.cli.servers import VERBS as SERVER_VERBS

_VERBS = {verb.name: verb for verb in SERVER_VERBS}


_CREATE_ARGUMENTS = (
    Argument("NAME", "Name of the server"),
    Argument(
        "--server-type", "Transport (default: by the other options)", choices=("stdio", "http")
    ),
    Argument("--command COMMAND", "Program and its arguments, quoted as for a shell"),
    Argument("--url URL", "URL of a Streamable HTTP endpoint"),
    Argument("--env K=V", "Environment variable", action="append"),
    Argument("--header K=V", "HTTP header", action="append"),
    Argument("--allow-private", "Allow a private address"),
    Argument("--enable", "Enable the server and discover its definitions"),
)


def _create_server(cli: CommandContext, options: argparse.Namespace) -> None:
    transport = options.server_type or ("http" if options.url else "stdio")
    needed_option, other_option = ("url", "command") if transport == "http" else ("command", "url")
    if not getattr(options, needed_option) or getattr(options, other_option):
        raise InvalidInput(
            f"A server of the type `{transport}` requires --{needed_option}, and no "
            f"--{other_option}.",
            field=f"--{needed_option}",
            remedy="Use --command for a program, or --server-type http with --url.",
        )
    parser = argparse.ArgumentParser()
    add_arguments(parser, _VERBS["add"].arguments)
    flags = {"allow_private": options.allow_private, "disabled": not options.enable}
    arguments = [options.name, f"--{needed_option}={getattr(options, needed_option)}"]
    parsed_options = parser.parse_args(arguments, argparse.Namespace(**flags))
    parsed_options.env, parsed_options.header = options.env, options.header
    _VERBS["add"].run(cli, parsed_options)


_TOGGLE_ARGUMENTS = (
    Argument("NAME", "Slug, name, or ID of the server", dest="server"),
    Argument(
        "--enable",
        "Enable the server. Without it, or with --enable=false, disable the server",
        nargs="?",
        const="true",
        default="false",
        choices=("true", "false"),
    ),
)


def _toggle_server(cli: CommandContext, options: argparse.Namespace) -> None:
    _VERBS["enable" if options.enable == "true" else "disable"].run(cli, options)


VERBS = (
    CommandVerb(
        "add-mcp",
        "Add a server, disabled unless --enable is given",
        _create_server,
        arguments=_CREATE_ARGUMENTS,
        examples=(
            "tools add-mcp time --command 'uvx mcp-server-time@2026.10.19' --enable",
            "tools add-mcp my-api --server-type http --url https://mcp.example.com/mcp",
        ),
    ),
    replace(
        _VERBS["remove"],
        name="remove-mcp",
        examples=("tools remove-mcp time", "tools remove-mcp time --yes"),
    ),
    CommandVerb(
        "toggle-mcp",
        "Enable or disable a server",
        _toggle_server,
        arguments=_TOGGLE_ARGUMENTS,
        examples=("tools toggle-mcp time --enable", "tools toggle-mcp time --enable=false"),
    ),
    replace(_VERBS["list"], name="list-mcp", examples=("tools list-mcp", "tools list-mcp --json")),
    replace(_VERBS["test"], name="test-mcp", examples=("tools test-mcp time",)),
)
