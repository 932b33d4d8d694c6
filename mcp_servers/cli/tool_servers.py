"""The commands `tools add-mcp`, `remove-mcp`, `toggle-mcp`, `list-mcp` and `test-mcp`.

They are the verbs of `mcp` under other names, and with one difference: a new server is disabled.
"""

import argparse
from dataclasses import replace

from bonobot.core.cli.command_group import CommandContext, CommandVerb
from bonobot.core.problems import InvalidInput
from mcp_servers.cli.servers import VERBS as SERVER_VERBS

_VERBS = {verb.name: verb for verb in SERVER_VERBS}


def _add_create_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name of the server")
    parser.add_argument(
        "--server-type", choices=("stdio", "http"), help="Transport (default: by the other options)"
    )
    parser.add_argument("--command", help="Program and its arguments, quoted as for a shell")
    parser.add_argument("--url", help="URL of a Streamable HTTP endpoint")
    parser.add_argument("--env", action="append", metavar="K=V", help="Environment variable")
    parser.add_argument("--header", action="append", metavar="K=V", help="HTTP header")
    parser.add_argument("--allow-private", action="store_true", help="Allow a private address")
    parser.add_argument(
        "--enable", action="store_true", help="Enable the server and discover its definitions"
    )


def _create_server(cli: CommandContext, options: argparse.Namespace) -> None:
    transport = options.server_type or ("http" if options.url else "stdio")
    needed, other_option = ("url", "command") if transport == "http" else ("command", "url")
    if not getattr(options, needed) or getattr(options, other_option):
        raise InvalidInput(
            f"A server of the type `{transport}` requires --{needed}, and no --{other_option}.",
            field=f"--{needed}",
            remedy="Use --command for a program, or --server-type http with --url.",
        )
    parser = argparse.ArgumentParser()
    _VERBS["add"].add_arguments(parser)
    flags = {"allow_private": options.allow_private, "disabled": not options.enable}
    arguments = [options.name, f"--{needed}={getattr(options, needed)}"]
    parsed_options = parser.parse_args(arguments, argparse.Namespace(**flags))
    parsed_options.env, parsed_options.header = options.env, options.header
    _VERBS["add"].run(cli, parsed_options)


def _add_toggle_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="NAME", help="Slug, name, or ID of the server")
    parser.add_argument(
        "--enable",
        nargs="?",
        const="true",
        default="false",
        choices=("true", "false"),
        help="Enable the server. Without it, or with --enable=false, disable the server",
    )


def _toggle_server(cli: CommandContext, options: argparse.Namespace) -> None:
    _VERBS["enable" if options.enable == "true" else "disable"].run(cli, options)


VERBS = (
    CommandVerb(
        "add-mcp",
        "Add a server, disabled unless --enable is given",
        _create_server,
        _add_create_arguments,
        (
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
        _add_toggle_arguments,
        ("tools toggle-mcp time --enable", "tools toggle-mcp time --enable=false"),
    ),
    replace(_VERBS["list"], name="list-mcp", examples=("tools list-mcp", "tools list-mcp --json")),
    replace(_VERBS["test"], name="test-mcp", examples=("tools test-mcp time",)),
)
