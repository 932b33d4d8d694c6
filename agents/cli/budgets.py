"""The command group `budgets`, and `mcp price`."""

import argparse
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from agents.budgets.services import (
    WARN_AT,
    BudgetLine,
    BudgetUse,
    Owner,
    list_budgets,
    load_budget_use,
    set_budgets,
)
from agents.models import Agent, Budget
from bonobot.accounts.models import Organization
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.problems import InvalidInput
from mcp_servers.cli.servers import MICRO, add_price_arguments, collect_price_options, find
from mcp_servers.cli.servers import as_json as server_json
from mcp_servers.server_config import set_prices

_LINE = re.compile(r"(?:(session):)?([a-z]+)/([a-z]+)=\$?([\d.,]+)(?:@(\d+)%?)?")
HOW = "[session:]UNIT/PERIOD=LIMIT[@PERCENT]"


def as_json(row: Budget, use: BudgetUse) -> dict[str, Any]:
    """Return the JSON representation of a budget."""
    return {
        "id": str(row.pk),
        "scope": use.scope,
        "owner": str(row.agent or row.server or row.organization),
        "unit": row.unit,
        "period": row.period,
        "limit": row.limit,
        "warn_at": row.warn_at,
        "warned": use.warned,
        "spent": use.spent,
        "reserved": use.reserved,
    }


def _list(cli: CommandContext, options: argparse.Namespace) -> None:
    whole = Budget.objects.for_organization(cli.principal.organization_id)
    one = options.agent or options.server
    rows = list_budgets(_get_owner(cli, options)) if one else whole
    _show(cli, list(rows.select_related("agent", "server", "organization")))


def _set(cli: CommandContext, options: argparse.Namespace) -> None:
    owner = _get_owner(cli, options)
    if not options.lines and not options.none:
        raise InvalidInput(
            "No budget is given.", field="LINE", remedy=f"Write {HOW}, or --none for no budgets."
        )
    set_budgets(cli.principal, owner, [_parse_line(text) for text in options.lines])
    rows = list_budgets(owner).select_related("agent", "server", "organization")
    _show(cli, list(rows))


def _show(cli: CommandContext, rows: list[Budget]) -> None:
    found = [as_json(row, use) for row, use in zip(rows, load_budget_use(rows), strict=True)]
    shown = [
        (
            one["owner"] + (" (each session)" if one["scope"] == "session" else ""),
            "dollars" if one["unit"] == Budget.Unit.MONEY else one["unit"],
            one["period"],
            _format_amount(one["unit"], one["limit"]),
            "-" if one["scope"] == "session" else _format_amount(one["unit"], one["spent"]),
            _format_amount(one["unit"], one["reserved"]),
            "warned" if one["warned"] and one["scope"] != "session" else f"at {one['warn_at']} %",
        )
        for one in found
    ]
    columns = ("WHOSE", "UNIT", "PERIOD", "LIMIT", "SPENT", "HELD", "WARNING")
    empty = "No budgets yet. Set one: bonobot budgets set --agent SLUG tokens/day=200000"
    cli.emit(found, build_table(*columns, rows=shown, empty=empty))


def _format_amount(unit: str, value: int) -> str:
    return f"${value / MICRO:,.2f}" if unit == Budget.Unit.MONEY else f"{value:,}"


def _get_owner(cli: CommandContext, options: argparse.Namespace) -> Owner:
    organization_id = cli.principal.organization_id
    if options.agent:
        agent: Agent = Agent.objects.get_or_404(organization_id, slug=options.agent)
        return agent
    if options.server:
        return find(cli, options.server)
    return Organization.objects.get(pk=organization_id)


def _parse_line(text: str) -> BudgetLine:
    found = _LINE.fullmatch(text)
    if found is None:
        raise InvalidInput(f"{text!r} is no budget.", field="LINE", remedy=f"Write {HOW}.")
    each, unit, period, limit, warn_at = found.groups()
    money = unit == "dollars"
    try:
        amount = Decimal(limit.replace(",", "")) * (MICRO if money else 1)
    except InvalidOperation:
        amount = Decimal("0.5")
    if amount != int(amount):
        raise InvalidInput(f"{limit!r} is no limit.", field="LINE", remedy="Write a whole number.")
    return BudgetLine(
        Budget.Unit.MONEY.value if money else unit,
        period,
        int(amount),
        each_session=bool(each),
        warn_at=int(warn_at) if warn_at else WARN_AT,
    )


def _set_server_prices(cli: CommandContext, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    set_prices(cli.principal, server, **collect_price_options(options))
    cli.emit(server_json(server))
    rate = f"{server.calls_per_minute} calls a minute" if server.calls_per_minute else "no limit"
    cli.say(
        f"{server.name}: ${server.call_price / MICRO:g} a call, "
        f"${server.second_price / MICRO:g} a second, {rate}"
    )


def _add_owner_arguments(parser: argparse.ArgumentParser) -> None:
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--agent", metavar="SLUG", help="those of an agent and its sessions")
    whose.add_argument("--server", metavar="SERVER", help="those of a server: slug, name or id")


def _set_arguments(parser: argparse.ArgumentParser) -> None:
    _add_owner_arguments(parser)
    parser.add_argument(
        "lines",
        metavar="LINE",
        nargs="*",
        help=f"{HOW}; units: tokens, dollars, calls, seconds; periods: day, month, total; "
        "session: for each session of the agent; PERCENT: when to warn",
    )
    parser.add_argument("--none", action="store_true", help="have no budgets any more")


def _add_server_price_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    add_price_arguments(parser)


VERBS = (
    CommandVerb(
        "list",
        "List the budgets with what is spent of them.",
        _list,
        _add_owner_arguments,
        ("budgets list", "budgets list --agent helper --json"),
    ),
    CommandVerb(
        "set",
        "Replace the budgets of the organization, an agent or a server.",
        _set,
        _set_arguments,
        (
            "budgets set dollars/month=200@90",
            "budgets set --agent helper tokens/day=200000 session:dollars/total=1.50",
            "budgets set --server search seconds/day=3600 calls/day=5000",
            "budgets set --agent helper --none",
        ),
    ),
)
PRICING = (
    CommandVerb(
        "price",
        "Say what calls of a server cost and how often it may be called, or show it.",
        _set_server_prices,
        _add_server_price_arguments,
        ("mcp price search --call-price 0.005", "mcp price gpu --second-price 0.0004"),
    ),
)
