"""The commands `bonobot mcp add`, `list`, `test`, `refresh`, `approve` and others of servers."""

import argparse
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings

from bonobot.accounts.extension_points import agent_directory
from bonobot.core.cli import watch_rows
from bonobot.core.cli.command_group import (
    Alternatives,
    Argument,
    CommandContext,
    CommandFailed,
    CommandVerb,
    expand_variables,
    parse_pairs,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.i18n.messages import format_count
from bonobot.core.problems import InvalidInput, NotFound, Problem
from bonobot.core.text.amounts import parse_dollars
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.auth_config import mask_auth_config
from mcp_servers.client_capabilities import CAPABILITY_FIELDS
from mcp_servers.extension_points import attached_agents
from mcp_servers.models import HealthCheck, Preset, Server
from mcp_servers.openapi.document import MAX_DOCUMENT_BYTES
from mcp_servers.server_config import ServerSpec, mask_endpoint_config
from mcp_servers.server_prices import MAX_PRICE, PRICE_FIELDS

if TYPE_CHECKING:
    from mcp_servers.discovery import DiscoveryResult


APPROVE_ARGUMENT = (
    Argument(
        "--approve", "Approve the discovered definitions, except suspicious ones, without asking"
    ),
)


OPERATION_ARGUMENTS = (
    Argument(
        "--operation ID",
        "Operation of the API: its operationId, or 'GET /path'. Repeatable",
        action="append",
    ),
    Argument("--tag TAG", "All operations with this tag. Repeatable", action="append"),
    Argument("--all", "All operations, including ones that write"),
    Argument("--base-url URL", "Base URL of the API (default: from the document)"),
)


def build_api_spec(
    cli: CommandContext, options: argparse.Namespace, common: dict[str, Any]
) -> ServerSpec:
    """Return the specification of an API; by default with its read operations.

    Raises `InvalidInput` (`unreadable_file`, `base_url_missing`), and what `inspect_document` and
    `select_operations` raise.
    """
    from mcp_servers.openapi.select_operations import (
        inspect_document,
        list_read_operations,
        select_operations,
    )

    source = expand_variables(options.openapi, "--openapi")
    config: dict[str, Any] = {}
    if source.startswith(("http://", "https://")):
        config["document_url"] = source
    else:
        config["document"] = _read_file(source)
    with cli.show_spinner("Reading the document…"):
        outline = inspect_document(cli.principal, allow_private=common["allow_private"], **config)
    for notice in outline.as_dict()["notices"]:
        cli.print_message(f"! {notice}")
    operations, tags = options.operation, options.tag or ()
    if not (operations or tags or options.all):
        operations = list_read_operations(outline)
    config["document"] = outline.text
    config["operations"] = select_operations(outline, operations, tags=tags, select_all=options.all)
    config["url"] = (
        expand_variables(options.base_url, "--base-url") if options.base_url else outline.base_url
    )
    if not config["url"]:
        raise InvalidInput(
            "The document doesn't contain the API's base URL.",
            code="base_url_missing",
            field="--base-url",
            remedy="Specify it with --base-url, such as https://api.example.com/v1.",
        )
    return ServerSpec(transport_type="openapi", endpoint_config=config, **common)


def _read_file(path: str) -> str:
    try:
        with Path(path).expanduser().open("rb") as file:
            raw = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise InvalidInput(
            f"{path} can't be read: {error.strerror}.",
            code="unreadable_file",
            field="--openapi",
            remedy="Specify a file that you can read, or a URL.",
        ) from None
    return raw.decode("utf-8", "replace")


_parse_price = partial(parse_dollars, largest=MAX_PRICE)
PRICE_ARGUMENTS = (
    Argument(
        "--call-price DOLLARS",
        "Price per call. Counts toward cost budgets",
        type=_parse_price,
    ),
    Argument("--second-price DOLLARS", "Price per second of a call", type=_parse_price),
    Argument(
        "--calls-per-minute N",
        "Maximum calls per minute of all callers combined. 0: no limit",
        type=int,
    ),
)


def collect_price_options(options: argparse.Namespace) -> dict[str, int | None]:
    """Return the price options; None keeps the stored value."""
    names = ("call_price", "second_price", "calls_per_minute")
    return {name: getattr(options, name) for name in names}


_CLIENT_CAPABILITY_ARGUMENTS = (
    Argument(
        "--sampling",
        "Whether the server can use the agent's model. ask: a person approves each request",
        choices=Server.Sampling.values,
    ),
    Argument(
        "--sampling-tokens N",
        "Maximum sampling tokens per day. 0: the default limit",
        type=int,
    ),
    Argument(
        "--session-state",
        "Whether the program keeps state for each session. none: gateway sessions share it",
        choices=Server.SessionState.values,
    ),
    Argument("--[no-]elicitation", "Whether the server can send elicitation requests"),
    Argument("--[no-]roots", "Whether the server receives the workspace path of the session"),
)


def collect_client_capabilities(options: argparse.Namespace) -> dict[str, Any]:
    """Return the client capability options; None keeps the stored value."""
    return {name: getattr(options, name) for name in CAPABILITY_FIELDS}


def get_server(cli: CommandContext, name: str) -> Server:
    """Return a server by slug, name or id; raises `NotFound`."""
    servers = Server.objects.for_organization(cli.principal.organization_id)
    try:
        by_id = servers.filter(pk=UUID(name))
    except ValueError:
        by_id = servers.none()
    server = (
        servers.in_organization_pool().filter(slug=name).first()
        or servers.filter(slug=name).first()
        or servers.filter(name=name).first()
        or by_id.first()
    )
    if server is None:
        raise NotFound(
            f"The server {name!r} doesn't exist.",
            field="SERVER",
            remedy="List the servers: bonobot mcp list",
        )
    return server


SERVER_FIELDS = ("sandbox", "network", "env_exceptions", *PRICE_FIELDS, *CAPABILITY_FIELDS)


def serialize_server(server: Server) -> dict[str, Any]:
    """Return the JSON representation of a server, with secrets masked."""
    return {
        "id": str(server.pk),
        "name": server.name,
        "slug": server.slug,
        "scope": "agent" if server.private_to_agent else "pool",
        "transport_type": server.transport_type,
        "endpoint_config": mask_endpoint_config(server),
        **{name: getattr(server, name) for name in SERVER_FIELDS},
        "auth_config": mask_auth_config(server),
        "enabled": server.enabled,
        "status": server.status,
        "status_code": server.status_code,
        "status_detail": server.status_detail,
        "era": server.era,
        "latency_ms": server.latency_ms,
        "last_connected_at": server.last_connected_at,
        "tools": server.definitions.tools().filter(present=True).count(),
        "pending_review": server.definitions.awaiting_review().count(),
    }


_CREATE_ARGUMENTS = (
    Argument("NAME", "Name of the server"),
    Alternatives(
        Argument("--url URL", "URL of a Streamable HTTP endpoint"),
        Argument("--command COMMAND", "Program and its arguments, quoted as for a shell"),
        Argument("--openapi FILE|URL", "OpenAPI document of a REST API"),
        Argument("--preset SLUG", "Slug of a preset in the catalog"),
        required=True,
    ),
    Argument("--agent SLUG", "Create the server for this agent only, and attach it"),
    Argument("--header K=V", "HTTP header, stored encrypted. Repeatable", action="append"),
    Argument("--env K=V", "Environment variable of the program. Repeatable", action="append"),
    Argument("--set K=V", "Parameter of the preset. Repeatable", action="append"),
    Argument("--cwd CWD", "Working directory of the program"),
    Argument(
        "--sandbox",
        "Sandbox mode of the program (default: sandbox). It never runs with less protection.",
        choices=Server.SandboxMode.values,
    ),
    Argument(
        "--[no-]network",
        "Whether a sandboxed program has the network access of this host "
        "(default: with sandbox, external addresses that the egress rules allow; with "
        "bubblewrap, none)",
    ),
    Argument(
        "--allow-env NAME=REASON",
        "Allow a dangerous variable of --env for a reason, which is recorded in the audit log",
        action="append",
    ),
    Argument("--bearer TOKEN", "Bearer token, stored encrypted"),
    *OPERATION_ARGUMENTS,
    *PRICE_ARGUMENTS,
    *_CLIENT_CAPABILITY_ARGUMENTS,
    Argument("--allow-private", "Allow a private address"),
    *APPROVE_ARGUMENT,
    Argument("--disabled", "Add the server disabled, without connecting to it"),
)


# Options with an effect only on servers of these sources.
_SOURCES_OF_OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("bearer", "header"), ("url", "openapi")),
    **dict.fromkeys(("env", "cwd", "allow_env"), ("command",)),
    **dict.fromkeys(("sandbox", "network"), ("command", "preset")),
    "set": ("preset",),
    **dict.fromkeys(("operation", "tag", "all", "base_url"), ("openapi",)),
}


def _check_options(options: argparse.Namespace) -> None:
    """Raise `InvalidInput` (`no_effect`) for an option that the server's source doesn't use."""
    source = next(
        name for name in ("url", "command", "openapi", "preset") if getattr(options, name)
    )
    for name, sources in _SOURCES_OF_OPTIONS.items():
        if getattr(options, name) in (None, False, []) or source in sources:
            continue
        flag = f"--{name.replace('_', '-')}"
        remedy = "Remove the option."
        if source == "command" and name in ("bearer", "header"):
            remedy = "Pass credentials of a program as an environment variable: --env NAME=VALUE."
        raise InvalidInput(
            f"{flag} has no effect with --{source}.", code="no_effect", field=flag, remedy=remedy
        )
    if options.disabled and options.approve:
        raise InvalidInput(
            "A disabled server isn't discovered, so --approve has no effect.",
            code="no_effect",
            field="--approve",
            remedy="Remove --disabled, or approve the definitions after you enable the server.",
        )


def _show_launcher_warnings(cli: CommandContext, server: Server) -> None:
    """Print what is risky in the command of a stdio server, such as a package without a version."""
    from mcp_servers.launchers import check_launcher

    config = server.endpoint_config
    if server.transport_type == Server.Transport.STDIO:
        command = config["command"]
        for warning in check_launcher(command, config.get("args", ()), allowed_launchers={command}):
            cli.print_note(f"! {warning.detail}", {"warning": warning.as_dict()})


def _create_server(cli: CommandContext, options: argparse.Namespace) -> None:
    from mcp_servers.cli.definitions import review_new_server
    from mcp_servers.services import create_server

    _check_options(options)
    agent_id = None
    if options.agent is not None:
        agent_id = agent_directory.get().find_id_by_slug(
            cli.principal.organization_id, options.agent
        )
    try:
        spec, preset = _build_server_spec(cli, options)
        server = create_server(cli.principal, spec, scope_id=agent_id, preset=preset)
    except Problem as refusal:
        if refusal.code == "private_address":  # commands run as a platform administrator
            refusal.remedy = "Check the address. To allow it, add --allow-private."
        raise
    _show_launcher_warnings(cli, server)
    if agent_id:
        attached_agents.get().attach(cli.principal, agent_id, server)
    if not server.enabled:
        cli.emit(serialize_server(server))
        cli.print_message(f"{server.name} was added. Enable it: bonobot mcp enable {server.slug}")
        return
    if server.interactive:  # discovery needs a person to sign in first
        _show_login(cli, server)
        return
    problem = None
    try:
        _discover_server(cli, server)
        review_new_server(cli, server, approve=options.approve)
    except Problem as exc:
        problem = exc
    server.refresh_from_db()
    cli.emit(serialize_server(server))
    if problem is not None:
        cli.print_message(f"{server.name} was added, but discovery failed.")
        cli.print_message(
            f"Fix the problem, then discover it again: bonobot mcp refresh {server.slug}"
        )
        raise problem
    _show_discovery(cli, server)


def _show_login(cli: CommandContext, server: Server) -> None:
    from mcp_servers.oauth_client.access_tokens import build_login_url

    url = build_login_url(server.pk)
    cli.emit(serialize_server(server) | {"sign_in": {"state": "needed", "url": url}})
    cli.print_message(f"{server.name} was added. Sign in at {url}")
    cli.print_message(
        f"To wait for the sign-in and discover the server: bonobot mcp login {server.slug}"
    )


def _build_server_spec(
    cli: CommandContext, options: argparse.Namespace
) -> tuple[ServerSpec, Preset | None]:
    auth = {"type": "none"}
    if options.bearer:
        auth = {"type": "bearer_token", "token": expand_variables(options.bearer, "--bearer")}
    common: dict[str, Any] = {
        "name": options.name,
        "allow_private": options.allow_private,
        "enabled": not options.disabled,
    }
    common |= (
        _collect_sandbox_options(options)
        | collect_price_options(options)
        | collect_client_capabilities(options)
    )
    env, headers = parse_pairs(options.env, "--env"), parse_pairs(options.header, "--header")
    if options.preset:
        return _build_preset_spec(cli, options, common)
    if options.openapi:
        spec = build_api_spec(cli, options, {**common, "auth_config": auth})
        return replace(spec, endpoint_config={**spec.endpoint_config, "headers": headers}), None
    if options.url:
        config: dict[str, Any] = {"url": expand_variables(options.url, "--url"), "headers": headers}
        return ServerSpec(
            transport_type="http", endpoint_config=config, auth_config=auth, **common
        ), None
    try:
        command, *args = shlex.split(options.command)
    except ValueError as error:
        raise InvalidInput(
            f"The command can't be parsed: {error}.",
            field="--command",
            remedy="Check its quotes.",
        ) from None
    cwd = {"cwd": options.cwd} if options.cwd else {}
    config = {"command": command, "args": args, "env": env, **cwd}
    if options.allow_env:
        common["env_exceptions"] = parse_pairs(options.allow_env, "--allow-env")
    return ServerSpec(transport_type="stdio", endpoint_config=config, **common), None


def _collect_sandbox_options(options: argparse.Namespace) -> dict[str, str]:
    """Return the sandbox options that were set; the others come from the preset or defaults."""
    sandbox = {} if options.sandbox is None else {"sandbox": options.sandbox}
    if options.network is None:
        return sandbox
    return sandbox | {"network": Server.Network.HOST if options.network else Server.Network.NONE}


def _build_preset_spec(
    cli: CommandContext, options: argparse.Namespace, common: dict[str, Any]
) -> tuple[ServerSpec, Preset]:
    from mcp_servers.presets.services import build_server_spec, get_preset

    preset = get_preset(cli.principal, options.preset, field="--preset")
    return build_server_spec(
        cli.principal, preset, parse_pairs(options.set, "--set"), **common
    ), preset


def _discover_server(
    cli: CommandContext, server: Server, kind: str = HealthCheck.Kind.DISCOVERY
) -> "DiscoveryResult":
    from bonobot.core.runtime import get_runtime
    from mcp_servers.discovery import run_discovery

    with cli.show_spinner(f"Discovering {server.name}…"):
        result: DiscoveryResult = get_runtime().call(
            run_discovery,
            server.pk,
            actor=cli.principal.actor,
            kind=kind,
            install_wait_s=settings.BONOBOT_INSTALL_S,  # an installation ends with this process
        )
    return result


def _install_server(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.core.runtime import get_runtime
    from mcp_servers.reinstall_package import reinstall_package

    server = get_server(cli, options.server)
    with cli.show_spinner(f"Installing {server.name}…"):
        installation = get_runtime().call(reinstall_package, cli.principal, server)
    state = installation.state if installation else "nothing to install"
    cli.emit(
        {
            "server": server.slug,
            "state": state,
            "detail": installation.detail if installation else "",
        }
    )
    cli.print_message(f"{server.name}: {state}")


def _show_discovery(cli: CommandContext, server: Server) -> None:
    serialized = serialize_server(server)
    cli.print_message(
        f"{server.name}: {format_count(serialized['tools'], 'tool')}, {server.latency_ms} ms"
        + (f", {server.era} era" if server.era else "")
    )
    if serialized["pending_review"]:
        pending_review = format_count(serialized["pending_review"], "definition")
        cli.print_message(f"{pending_review} to review: bonobot mcp approve {server.slug}")


def _list_servers(cli: CommandContext, options: argparse.Namespace) -> None:
    organization_id = cli.principal.organization_id
    servers = Server.objects.for_organization(organization_id)
    if options.agent is not None:
        agent_id = agent_directory.get().find_id_by_slug(organization_id, options.agent)
        servers = servers.filter(pk__in=attached_agents.get().list_server_ids(agent_id))

    def load_rows() -> list[dict[str, Any]]:
        return [serialize_server(server) for server in servers.prefetch_related("secrets")]

    watch_rows.show_rows(cli, options, load_rows, _render_servers)


def _render_servers(servers: list[dict[str, Any]]) -> Any:
    rows = [
        (s["name"], s["transport_type"], s["status"], s["tools"], s["pending_review"], s["scope"])
        for s in servers
    ]
    empty = "No servers yet. Add one: bonobot mcp add NAME --url URL"
    columns = ("NAME", "TRANSPORT", "STATUS", "TOOLS", "TO REVIEW", "SCOPE")
    return build_table(*columns, rows=rows, empty=empty)


def _test_server(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    try:
        result = _discover_server(cli, server, HealthCheck.Kind.TEST)
    except Problem as problem:
        status = "needs_reauth" if problem.code == "needs_reauth" else "error"
        cli.emit({"status": status, "tools_discovered": 0, "tools": []} | problem.as_dict())
        if not cli.as_json:
            cli.show_problem(problem)
        raise CommandFailed from problem
    tools = [
        {"name": row.name, "description": row.description}
        for row in server.definitions.tools().filter(present=True)
    ]
    cli.emit(
        {
            "status": "connected",
            "tools_discovered": len(tools),
            "tools": tools,
            "latency_ms": result.latency_ms,
        }
    )
    cli.print_message(f"Connected: {format_count(len(tools), 'tool')} in {result.latency_ms} ms")


def _refresh_server(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    result = _discover_server(cli, server)
    server.refresh_from_db()
    counts = {name: getattr(result, name) for name in ("new", "changed", "removed", "refused")}
    cli.emit(serialize_server(server) | counts | {"notices": result.notices})
    cli.print_message(", ".join(f"{count} {name}" for name, count in counts.items()))
    for notice in result.notices:
        cli.print_message(f"! {make_visible(notice)}")
    _show_discovery(cli, server)


def _delete_server(cli: CommandContext, options: argparse.Namespace) -> None:
    from mcp_servers.services import delete_server

    server = get_server(cli, options.server)
    delete_server(cli.principal, server)
    cli.emit({"removed": server.name})
    cli.print_message(f"{server.name} was deleted.")


def _build_enable_handler(enabled: bool) -> Any:
    def set_enabled(cli: CommandContext, options: argparse.Namespace) -> None:
        from mcp_servers.services import set_server_enabled

        server = get_server(cli, options.server)
        set_server_enabled(cli.principal, server, enabled=enabled)
        cli.emit(serialize_server(server))
        cli.print_message(f"{server.name} was {'enabled' if enabled else 'disabled'}.")

    return set_enabled


_SERVER_ARGUMENT = (Argument("SERVER", "Slug, name, or ID of the server"),)


VERBS = (
    CommandVerb(
        "add",
        "Add a server and discover its definitions",
        _create_server,
        arguments=_CREATE_ARGUMENTS,
        examples=(
            "mcp add docs --url https://mcp.example.com/mcp --header 'X-Key=${DOCS_KEY}'",
            "mcp add time --command 'uvx mcp-server-time@2026.10.19' --approve",
            "mcp add pets --openapi https://api.example.com/openapi.json --tag pets",
            "mcp add files --preset filesystem --set FOLDER=/srv/files",
            "mcp add ours --command 'python3 /srv/ours.py' --sandbox namespaces --no-network",
        ),
    ),
    CommandVerb(
        "list",
        "List servers",
        _list_servers,
        arguments=(
            Argument("--agent SLUG", "Only servers of this agent"),
            *watch_rows.WATCH_ARGUMENTS,
        ),
        examples=("mcp list", "mcp list --agent helper", "mcp list --watch", "mcp list --json"),
    ),
    CommandVerb(
        "test",
        "Test the connection to a server and count its tools",
        _test_server,
        arguments=_SERVER_ARGUMENT,
        examples=("mcp test time",),
    ),
    CommandVerb(
        "refresh",
        "Discover the definitions of a server again",
        _refresh_server,
        arguments=_SERVER_ARGUMENT,
        examples=("mcp refresh time",),
    ),
    CommandVerb(
        "install",
        "Reinstall the npx or uvx package of a server",
        _install_server,
        arguments=_SERVER_ARGUMENT,
        examples=("mcp install time",),
    ),
    CommandVerb(
        "enable",
        "Enable a server",
        _build_enable_handler(True),
        arguments=_SERVER_ARGUMENT,
        examples=("mcp enable time",),
    ),
    CommandVerb(
        "disable",
        "Disable a server",
        _build_enable_handler(False),
        arguments=_SERVER_ARGUMENT,
        examples=("mcp disable time",),
    ),
    CommandVerb(
        "remove",
        "Delete a server",
        _delete_server,
        arguments=_SERVER_ARGUMENT,
        examples=("mcp remove time", "mcp remove time --yes"),
        confirmation="Delete the server {server}? Agents lose its tools.",
    ),
)
