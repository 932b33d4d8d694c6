"""What the command groups `issuers` and `sso` have in common."""

import argparse
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bonobot.accounts.models import Issuer, Provider
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.core.cli.command_group import Argument, CommandContext, build_table
from bonobot.core.problems import InvalidInput

AddArgument = Callable[[argparse.ArgumentParser], object]
ISSUER_URL_HELP = "Issuer URL, exactly as in `iss` of its tokens"


def build_role_arguments(claim_example: str) -> tuple[Argument, ...]:
    """Return the arguments for the roles that tokens give."""
    return (
        Argument(
            "--role",
            "Role of users without a role from a claim. '': no access",
            choices=["", *Role],
        ),
        Argument("--role-claim CLAIM", f"Claim with the role, such as {claim_example}"),
        Argument(
            "--role-for VALUE=ROLE",
            "Role for a value of the role claim. Repeatable",
            action="append",
        ),
    )


def build_flag_arguments(flags: Mapping[str, str]) -> AddArgument:
    """Return a function that adds a pair of options for each of these fields, with its help."""

    def add_flags(parser: argparse.ArgumentParser) -> None:
        for name, help_text in flags.items():
            option = f"--{name.replace('_', '-')}"
            parser.add_argument(
                option, action=argparse.BooleanOptionalAction, default=None, help=help_text
            )

    return add_flags


def collect_options(options: argparse.Namespace, names: Collection[str]) -> dict[str, Any]:
    """Return the URL, the roles, and the fields `names` that the options set."""
    values = {name: getattr(options, name) for name in ("url", *names)}
    values = {name: value for name, value in values.items() if value is not None}
    if options.role_for is not None:
        values["roles"] = dict(map(_parse_role_mapping, options.role_for))
    return values


def _parse_role_mapping(text: str) -> tuple[str, str]:
    value, separator, role = text.rpartition("=")
    if not separator:
        raise InvalidInput(
            f"{text!r} doesn't contain a role.",
            field="--role-for",
            remedy="Use the format VALUE=ROLE, such as bonobot-operators=operator.",
        )
    return value, role


def show_list(cli: CommandContext, serialized: list[dict[str, Any]], empty: str) -> None:
    """Show the rows, or the text `empty`."""
    table_rows = [
        (i["name"], i["url"], i["role"], "" if i["enabled"] else "disabled") for i in serialized
    ]
    cli.emit(
        serialized, build_table("NAME", "ISSUER", "ROLE", "STATUS", rows=table_rows, empty=empty)
    )


def show_check(
    cli: CommandContext, row: Issuer | Provider, check_row: Callable[[Principal, Any], int]
) -> None:
    """Fetch the keys of a row now and show how many there are."""
    with cli.show_spinner(f"Checking {row.url}…"):
        keys = check_row(cli.principal, row)
    cli.emit({"id": str(row.pk), "keys": keys})
    cli.print_message(f"{row.name} is reachable. Published keys: {keys}.")
