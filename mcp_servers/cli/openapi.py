"""The commands `mcp operations`, `add-operation` and `remove-operation`."""

import argparse
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from bonobot.core.cli.command_group import (
    Argument,
    CommandContext,
    CommandFailed,
    CommandVerb,
    add_arguments,
    expand_variables,
    parse_pairs,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import InvalidInput, NotFound
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.discovery import discover_with_progress
from mcp_servers.cli.servers import get_server
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.models import Server
from mcp_servers.openapi.declared_operations import (
    BODY_FORMATS,
    INPUT_LOCATIONS,
    INPUT_TYPES,
    METHODS,
    METHODS_WITHOUT_BODY,
    parse_value,
)
from mcp_servers.openapi.services import (
    build_operation_preview,
    create_operation,
    delete_operation,
    get_declared_operation,
    list_declared_operations,
    update_operation,
)
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server

PARAMETER_FORMAT = "NAME[:TYPE[:LOCATION[:DESCRIPTION]]]"
# Methods whose parameters go into the query by default.
QUERY_METHODS = (*METHODS_WITHOUT_BODY, "DELETE")


def _list_operations(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    states = {row.name: row.state.value for row in server.definitions.tools()}
    operations = [
        operation | {"state": states.get(operation["name"], "undiscovered")}
        for operation in list_declared_operations(server)
    ]
    rows = [
        (
            operation["name"],
            operation["method"],
            operation["path"],
            operation["state"],
            operation["description"],
        )
        for operation in operations
    ]
    empty = f"{server.slug} has no declared operations."
    columns = ("OPERATION", "METHOD", "PATH", "STATE", "DESCRIPTION")
    cli.emit(operations, build_table(*columns, rows=rows, empty=empty))


_PARAMETER_ARGUMENTS = (
    Argument(
        f"--param {PARAMETER_FORMAT}",
        f"Parameter. TYPE: {', '.join(INPUT_TYPES)}; LOCATION: {', '.join(INPUT_LOCATIONS)}. "
        "Append ! to the name, type, or location of a required parameter. Repeatable",
        action="append",
    ),
    Argument("--default NAME=VALUE", "Default value of a parameter. Repeatable", action="append"),
    Argument("--choices NAME=A,B", "Allowed values of a parameter. Repeatable", action="append"),
)


_NEW_SERVER_ARGUMENTS = (
    Argument("--base-url URL", "Base URL (default: scheme and host of --url)"),
    Argument("--header K=V", "HTTP header, stored encrypted. Repeatable", action="append"),
    Argument("--bearer TOKEN", "Bearer token, stored encrypted"),
    Argument("--allow-private", "Allow a private address"),
)


def _add_new_server_arguments(parser: argparse.ArgumentParser) -> None:
    group: Any = parser.add_argument_group("options for a new server")
    add_arguments(group, _NEW_SERVER_ARGUMENTS)


_CREATE_ARGUMENTS = (
    Argument("SERVER", "Slug, name, or ID of the server, or the name of a new one"),
    Argument("NAME", "Name of the tool"),
    Argument("--url URL", "Path relative to the server's base URL, or a full URL", required=True),
    Argument("--description DESCRIPTION", "Description of the tool for models", required=True),
    Argument(
        "--method", "HTTP method (default: GET)", default="GET", type=str.upper, choices=METHODS
    ),
    *_PARAMETER_ARGUMENTS,
    Argument("--body", "Format of the request body", choices=BODY_FORMATS),
    Argument("--result PART", "Part of the response to return, such as data.items"),
    Argument(
        "--label LABEL", "Flow label (default: suggested labels). Repeatable", action="append"
    ),
    Argument("--replace", "Replace an existing operation"),
    Argument("--dry-run", "Show the request without saving the operation"),
    _add_new_server_arguments,
    Argument("--approve", "Approve the tool"),
)


def _create_operation(cli: CommandContext, options: argparse.Namespace) -> None:
    server = _find_server(cli, options.server)
    operation = _build_operation(options)
    base_url = server.endpoint_config.get("url", "") if server else _get_base_url(options)
    if options.dry_run:
        _show_request(cli, build_operation_preview(operation, base_url))
        return
    if server is None:
        server = create_server(cli.principal, _build_server_spec(options, base_url, operation))
        cli.print_message(f"The server {server.name} was created.")
    elif options.replace:
        update_operation(cli.principal, server, options.name, operation)
    else:
        create_operation(cli.principal, server, operation)
    outcome = discover_with_progress(cli, [server])[server.name]
    if options.approve and outcome.problem is None:
        rows = server.definitions.awaiting_review().filter(name=options.name)
        approve_definitions(cli.principal, server, {row.pk: row.digest for row in rows})
    _show_operation(cli, server, options.name)
    if outcome.problem is not None:
        cli.print_message(make_visible(f"Discovery failed: {outcome.format_summary()}"))
        raise CommandFailed


def _show_operation(cli: CommandContext, server: Server, name: str) -> None:
    server.refresh_from_db()
    row = server.definitions.tools().filter(name=name).first()
    state = row.state.value if row else "undiscovered"
    cli.emit(get_declared_operation(server, name) | {"server": server.slug, "state": state})
    cli.print_message(f"{name}: {state}")
    if state in ("pending", "changed"):
        cli.print_message(
            f"The tool is pending review. Approve it: bonobot mcp approve {server.slug} {name}"
        )


def _show_request(cli: CommandContext, preview: Mapping[str, Any]) -> None:
    request = preview["request"]
    cli.emit(dict(preview))
    cli.print_message(make_visible(f"{request['method']} {request['url']}"))
    for header in request["headers"]:
        cli.print_message(make_visible(f"{header['name']}: {header['value']}"))
    if request["body"]:
        cli.print_message(make_visible(request["body"]))


def _find_server(cli: CommandContext, name: str) -> Server | None:
    try:
        return get_server(cli, name)
    except NotFound:
        return None


def _get_base_url(options: argparse.Namespace) -> str:
    if options.replace:
        raise NotFound(
            f"The server {options.server!r} doesn't exist.",
            field="SERVER",
            remedy="List the servers: bonobot mcp list",
        )
    if options.base_url:
        return expand_variables(options.base_url, "--base-url")
    parts = urlsplit(options.url)
    if not parts.scheme or not parts.netloc:
        raise InvalidInput(
            f"The server {options.server!r} doesn't exist, and its base URL is missing.",
            code="base_url_missing",
            field="--url",
            remedy="Use a full URL, add --base-url, or specify an existing server.",
        )
    return f"{parts.scheme}://{parts.netloc}"


def _build_server_spec(
    options: argparse.Namespace, base_url: str, operation: Mapping[str, Any]
) -> ServerSpec:
    auth = {"type": "none"}
    if options.bearer:
        auth = {"type": "bearer_token", "token": expand_variables(options.bearer, "--bearer")}
    headers = parse_pairs(options.header, "--header")
    return ServerSpec(
        name=options.server,
        transport_type=Server.Transport.OPENAPI,
        endpoint_config={"url": base_url, "headers": headers, "declared": [operation]},
        auth_config=auth,
        allow_private=options.allow_private,
    )


def _build_operation(options: argparse.Namespace) -> dict[str, Any]:
    operation: dict[str, Any] = {"name": options.name, "description": options.description}
    operation |= {"method": options.method, "path": options.url}
    operation["parameters"] = _parse_parameters(options)
    optional_fields = {"body": options.body, "result": options.result, "labels": options.label}
    return operation | {name: value for name, value in optional_fields.items() if value is not None}


def _parse_parameters(options: argparse.Namespace) -> list[dict[str, Any]]:
    parameters = [_parse_parameter(text, options) for text in options.param or ()]
    parameters_by_name = {parameter["name"]: parameter for parameter in parameters}
    for option, schema_key in (("default", "default"), ("choices", "enum")):
        for text in getattr(options, option) or ():
            name, equals, value = text.partition("=")
            if not equals or name not in parameters_by_name:
                raise InvalidInput(
                    f"{name!r} isn't a declared parameter.",
                    code="unknown_parameter",
                    field=f"--{option}",
                    remedy="Declare it with --param, and use the format NAME=VALUE.",
                )
            kind, is_list = parameters_by_name[name]["type"], schema_key == "enum"
            parameters_by_name[name][schema_key] = parse_value(
                kind, value, as_list=is_list, field=f"--{option}"
            )
    return parameters


def _parse_parameter(text: str, options: argparse.Namespace) -> dict[str, Any]:
    parts = text.split(":", 3)
    required = any(part.endswith("!") for part in parts[:3])
    name, kind, location = (part.removesuffix("!") for part in [*parts[:3], "", ""][:3])
    default = "query" if options.method in QUERY_METHODS else "body"
    parameter: dict[str, Any] = {"name": name, "type": kind or "string", "required": required}
    parameter["in"] = location or ("path" if f"{{{name}}}" in options.url else default)
    return parameter | ({"description": parts[3]} if len(parts) > 3 else {})


_DELETE_ARGUMENTS = (
    Argument("SERVER", "Slug, name, or ID of the server"),
    Argument("NAME", "Name of the operation"),
)


def _delete_operation(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    delete_operation(cli.principal, server, options.name)
    discover_with_progress(cli, [server])
    cli.emit({"removed": options.name, "server": server.slug})
    cli.print_message(f"{options.name} was deleted.")


VERBS = (
    CommandVerb(
        "operations",
        "List the declared HTTP operations of a server",
        _list_operations,
        arguments=(Argument("SERVER", "Slug, name, or ID of the server"),),
        examples=("mcp operations shop", "mcp operations shop --json"),
    ),
    CommandVerb(
        "add-operation",
        "Declare an HTTP operation as a tool. Creates the server if it doesn't exist.",
        _create_operation,
        arguments=_CREATE_ARGUMENTS,
        examples=(
            "mcp add-operation shop get_order --url https://api.example.com/orders/{id} "
            "--param 'id:integer:path!:The order' --description 'Look up an order.' "
            "--bearer '${SHOP_TOKEN}'",
            "mcp add-operation shop list_orders --url /orders --param state --choices "
            "state=open,closed --param limit:integer --default limit=20 --result data.items "
            "--description 'List orders.' --dry-run",
            "mcp add-operation shop add_order --method POST --url /orders --param "
            "'customer.email!' --param 'tags:string[]' --description 'Order something.'",
        ),
    ),
    CommandVerb(
        "remove-operation",
        "Delete a declared operation. It can no longer be called.",
        _delete_operation,
        arguments=_DELETE_ARGUMENTS,
        examples=("mcp remove-operation shop add_order",),
        confirmation="Delete {name} of {server}? It can no longer be called.",
    ),
)
