"""`bonobot mcp add --openapi`: a REST API as a server, its operations chosen (FEATURES X12)."""

import argparse
from pathlib import Path
from typing import Any

from bonobot.cli.group import Cli, expand
from bonobot.lib.problems import Invalid
from mcp_servers.configuration import ServerSpec
from mcp_servers.openapi.choosing import chosen, look_at, reading
from mcp_servers.openapi.reading import LONGEST_TEXT


def declare_choice(parser: argparse.ArgumentParser) -> None:
    """Declare the options that choose operations."""
    parser.add_argument(
        "--operation",
        action="append",
        metavar="ID",
        help="an operation of the API: its operationId, or 'GET /path' (again for more)",
    )
    parser.add_argument("--tag", action="append", help="all operations with this tag")
    parser.add_argument("--all", action="store_true", help="all operations, writing ones too")
    parser.add_argument("--base-url", metavar="U", help="where the API is (default: as it says)")


def api_spec(cli: Cli, options: argparse.Namespace, common: dict[str, Any]) -> ServerSpec:
    """Return the specification of an API; without a choice its reading operations are meant.

    Raises `Invalid` (`unreadable_file`, and what `look_at` and `chosen` raise).
    """
    source = expand(options.openapi, "--openapi")
    config: dict[str, Any] = {}
    if source.startswith(("http://", "https://")):
        config["document_url"] = source
    else:
        config["document"] = _text(source)
    with cli.waiting("Reading the document …"):
        offer = look_at(cli.principal, allow_private=common["allow_private"], **config)
    for notice in offer.as_dict()["notices"]:
        cli.say(f"! {notice}")
    wanted, tags = options.operation, options.tag or ()
    if not (wanted or tags or options.all):
        wanted = reading(offer)
    config["document"] = offer.text
    config["operations"] = chosen(offer, wanted, tags=tags, everything=options.all)
    config["url"] = expand(options.base_url, "--base-url") if options.base_url else offer.base_url
    if not config["url"]:
        raise Invalid(
            "The document doesn't say where the API is.",
            code="base_url_missing",
            field="--base-url",
            remedy="Give it: --base-url https://api.example.com/v1",
        )
    return ServerSpec(transport_type="openapi", endpoint_config=config, **common)


def _text(path: str) -> str:
    try:
        with Path(path).expanduser().open("rb") as file:
            raw = file.read(LONGEST_TEXT + 1)
    except OSError as error:
        raise Invalid(
            f"{path} can't be read: {error.strerror}.", code="unreadable_file", field="--openapi"
        ) from None
    return raw.decode("utf-8", "replace")
