"""The commands `mcp operations`, `add-operation` and `remove-operation`."""

import argparse
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from bonobot.core.cli.command_group import (
    CommandContext,
    CommandFailed,
    CommandVerb,
    build_table,
    expand_variables,
    parse_pairs,
)
from bonobot.core.problems import Conflict, InvalidInput, NotFound
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.discovery import discover_servers
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

PARAMETER_FORMAT = "NAME[:TYPE[:PLACE[:TEXT]]]"
# Methods whose parameters go into the query by default.
QUERY_METHODS = (*METHODS_WITHOUT_BODY, "DELETE")


def _add_server_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")


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
    empty = f"Nothing is declared by hand at {server.slug}."
    columns = ("OPERATION", "METHOD", "PATH", "STATE", "DESCRIPTION")
    cli.emit(operations, build_table(*columns, rows=rows, empty=empty))


def _add_create_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id; or a new one's name")
    parser.add_argument("name", metavar="NAME", help="the tool's name")
    parser.add_argument(
        "--url", required=True, help="path below the server's address, or the whole address"
    )
    parser.add_argument("--description", required=True, help="what it does: a model chooses by it")
    parser.add_argument("--method", default="GET", type=str.upper, choices=METHODS)
    parser.add_argument(
        "--param",
        action="append",
        metavar=PARAMETER_FORMAT,
        help=(
            f"a parameter (again for more). TYPE: {', '.join(INPUT_TYPES)}; PLACE: "
            f"{', '.join(INPUT_LOCATIONS)}; "
            "a ! behind one of the three where it must be given"
        ),
    )
    parser.add_argument("--default", action="append", metavar="NAME=VALUE", help="sent if left out")
    parser.add_argument("--choices", action="append", metavar="NAME=A,B", help="nothing else")
    parser.add_argument("--body", choices=BODY_FORMATS, help="how fields of a body are sent")
    parser.add_argument("--result", metavar="PART", help="of the answer, such as data.items")
    parser.add_argument("--label", action="append", help="a flow label (default: suggested)")
    parser.add_argument("--replace", action="store_true", help="declare it anew")
    parser.add_argument("--dry-run", action="store_true", help="show what would be sent")
    new_server_options = parser.add_argument_group("for a new server")
    new_server_options.add_argument(
        "--base-url", metavar="U", help="its address (default: the host of --url)"
    )
    new_server_options.add_argument(
        "--header", action="append", metavar="K=V", help="an HTTP header (sealed)"
    )
    new_server_options.add_argument(
        "--bearer", metavar="TOKEN", help="sign in by a bearer token (sealed)"
    )
    new_server_options.add_argument(
        "--allow-private", action="store_true", help="allow a private address"
    )
    parser.add_argument("--approve", action="store_true", help="approve the tool")


def _create_operation(cli: CommandContext, options: argparse.Namespace) -> None:
    server = _find_server(cli, options.server)
    operation = _build_operation(options)
    base_url = server.endpoint_config.get("url", "") if server else _get_base_url(options)
    if options.dry_run:
        _show_request(cli, build_operation_preview(operation, base_url))
        return
    if server is None:
        server = create_server(cli.principal, _build_server_spec(options, base_url, operation))
        cli.print_message(f"{server.name} is a new server.")
    elif options.replace:
        update_operation(cli.principal, server, options.name, operation)
    else:
        create_operation(cli.principal, server, operation)
    outcome = discover_servers(cli, [server])[server.name]
    if options.approve and outcome.problem is None:
        rows = server.definitions.awaiting_review().filter(name=options.name)
        approve_definitions(cli.principal, server, {row.pk: row.digest for row in rows})
    _show_operation(cli, server, options.name)
    if outcome.problem is not None:
        cli.print_message(make_visible(f"It could not be discovered: {outcome.format_summary()}"))
        raise CommandFailed


def _show_operation(cli: CommandContext, server: Server, name: str) -> None:
    server.refresh_from_db()
    row = server.definitions.tools().filter(name=name).first()
    state = row.state.value if row else "undiscovered"
    cli.emit(get_declared_operation(server, name) | {"server": server.slug, "state": state})
    cli.print_message(f"{name}: {state}")
    if state in ("pending", "changed"):
        cli.print_message(f"It waits for approval: bonobot mcp approve {server.slug} {name}")


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
        raise NotFound(f"There is no server {options.server!r} here.", field="SERVER")
    if options.base_url:
        return expand_variables(options.base_url, "--base-url")
    parts = urlsplit(options.url)
    if not parts.scheme or not parts.netloc:
        raise InvalidInput(
            f"There is no server {options.server!r}, and nothing says where a new one is.",
            code="base_url_missing",
            field="--url",
            remedy="Write the whole address, or give --base-url, or the name of a server.",
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
                    f"{name!r} is none of the parameters.",
                    code="unknown_parameter",
                    field=f"--{option}",
                    remedy="Declare it with --param first: NAME=VALUE belongs to it.",
                )
            kind, many = parameters_by_name[name]["type"], schema_key == "enum"
            parameters_by_name[name][schema_key] = parse_value(
                kind, value, many=many, field=f"--{option}"
            )
    return parameters


def _parse_parameter(text: str, options: argparse.Namespace) -> dict[str, Any]:
    parts = text.split(":", 3)
    required = any(part.endswith("!") for part in parts[:3])
    name, kind, place = (part.removesuffix("!") for part in [*parts[:3], "", ""][:3])
    default = "query" if options.method in QUERY_METHODS else "body"
    parameter: dict[str, Any] = {"name": name, "type": kind or "string", "required": required}
    parameter["in"] = place or ("path" if f"{{{name}}}" in options.url else default)
    return parameter | ({"description": parts[3]} if len(parts) > 3 else {})


def _add_delete_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument("name", metavar="NAME", help="the operation's name")
    parser.add_argument("--yes", action="store_true", help="don't ask")


def _delete_operation(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    get_declared_operation(server, options.name)
    question = f"Remove {options.name} of {server.name}? It isn't called from then on."
    if cli.can_ask and not options.yes and not cli.confirm(question):
        raise Conflict("Nothing was removed.", code="not_confirmed", field="NAME")
    delete_operation(cli.principal, server, options.name)
    discover_servers(cli, [server])
    cli.emit({"removed": options.name, "server": server.slug})
    cli.print_message(f"{options.name} is removed.")


VERBS = (
    CommandVerb(
        "operations",
        "List the HTTP operations that are declared by hand at a server.",
        _list_operations,
        _add_server_argument,
        ("mcp operations shop", "mcp operations shop --json"),
    ),
    CommandVerb(
        "add-operation",
        "Declare an HTTP operation as a tool; the first one makes the server.",
        _create_operation,
        _add_create_arguments,
        (
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
        "Remove a declared operation; it isn't called from then on.",
        _delete_operation,
        _add_delete_arguments,
        ("mcp remove-operation shop add_order",),
    ),
)
