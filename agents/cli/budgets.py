"""The command group `budgets`, and `mcp price`."""

import argparse
import re
from decimal import Decimal
from typing import Any

from agents.budgets.services import (
    DEFAULT_WARN_AT,
    BudgetLine,
    BudgetUse,
    Owner,
    list_budgets,
    load_budget_use,
    set_budgets,
)
from agents.models import Agent, Budget
from bonobot.accounts.models import Organization
from bonobot.core.cli.command_group import Alternatives, Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.i18n.messages import format_count
from bonobot.core.problems import InvalidInput
from bonobot.core.text.amounts import MICROUSD_PER_USD, parse_number
from mcp_servers.cli.servers import PRICE_ARGUMENTS, collect_price_options, get_server
from mcp_servers.cli.servers import serialize_server as server_json
from mcp_servers.server_prices import set_prices

_LINE_PATTERN = re.compile(r"(?:(session):)?([a-z]+)/([a-z]+)=\$?([\d.,]+)(?:@(\d+)%?)?")
LINE_FORMAT = "[session:]UNIT/PERIOD=LIMIT[@PERCENT]"


def serialize_budget(row: Budget, use: BudgetUse) -> dict[str, Any]:
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


def _list_budgets(cli: CommandContext, options: argparse.Namespace) -> None:
    all_budgets = Budget.objects.for_organization(cli.principal.organization_id)
    owner_name = options.agent or options.server
    rows = list_budgets(_get_owner(cli, options)) if owner_name else all_budgets
    _print_budgets(cli, list(rows.select_related("agent", "server", "organization")))


def _set_budgets(cli: CommandContext, options: argparse.Namespace) -> None:
    owner = _get_owner(cli, options)
    if not options.lines and not options.none:
        raise InvalidInput(
            "No budget was specified.",
            field="LINE",
            remedy=f"Use the format {LINE_FORMAT}, or --none to delete all budgets.",
        )
    set_budgets(cli.principal, owner, [_parse_line(text) for text in options.lines])
    rows = list_budgets(owner).select_related("agent", "server", "organization")
    _print_budgets(cli, list(rows))


def _print_budgets(cli: CommandContext, rows: list[Budget]) -> None:
    serialized = [
        serialize_budget(row, use) for row, use in zip(rows, load_budget_use(rows), strict=True)
    ]
    table_rows = [
        (
            budget["owner"] + (" (each session)" if budget["scope"] == "session" else ""),
            "dollars" if budget["unit"] == Budget.Unit.MONEY else budget["unit"],
            budget["period"],
            _format_amount(budget["unit"], budget["limit"]),
            "-"
            if budget["scope"] == "session"
            else _format_amount(budget["unit"], budget["spent"]),
            _format_amount(budget["unit"], budget["reserved"]),
            "sent"
            if budget["warned"] and budget["scope"] != "session"
            else f"at {budget['warn_at']}%",
        )
        for budget in serialized
    ]
    columns = ("APPLIES TO", "UNIT", "PERIOD", "LIMIT", "SPENT", "RESERVED", "WARNING")
    empty = "No budgets yet. Set one: bonobot budgets set --agent SLUG tokens/day=200000"
    cli.emit(serialized, build_table(*columns, rows=table_rows, empty=empty))


def _format_amount(unit: str, value: int) -> str:
    return f"${value / MICROUSD_PER_USD:,.2f}" if unit == Budget.Unit.MONEY else f"{value:,}"


def _get_owner(cli: CommandContext, options: argparse.Namespace) -> Owner:
    if options.agent:
        return cli.get_row(Agent, slug=options.agent)
    if options.server:
        return get_server(cli, options.server)
    return Organization.objects.get(pk=cli.principal.organization_id)


def _parse_line(text: str) -> BudgetLine:
    match = _LINE_PATTERN.fullmatch(text)
    if match is None:
        raise InvalidInput(
            f"{text!r} isn't a valid budget.", field="LINE", remedy=f"Use the format {LINE_FORMAT}."
        )
    session_prefix, unit, period, limit, warn_at = match.groups()
    is_money = unit == "dollars"
    try:
        amount = parse_number(limit) * (MICROUSD_PER_USD if is_money else 1)
    except ValueError:
        amount = Decimal("0.5")
    if amount != int(amount):
        raise InvalidInput(
            f"{limit!r} isn't a valid limit.", field="LINE", remedy="Use a whole number."
        )
    return BudgetLine(
        Budget.Unit.MONEY.value if is_money else unit,
        period,
        int(amount),
        each_session=bool(session_prefix),
        warn_at=int(warn_at) if warn_at else DEFAULT_WARN_AT,
    )


def _set_server_prices(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    set_prices(cli.principal, server, **collect_price_options(options))
    cli.emit(server_json(server))
    rate = (
        f"{format_count(server.calls_per_minute, 'call')} per minute"
        if server.calls_per_minute
        else "no rate limit"
    )
    cli.print_message(
        f"{server.name}: ${server.call_price / MICROUSD_PER_USD:g} per call, "
        f"${server.second_price / MICROUSD_PER_USD:g} per second, {rate}"
    )


_OWNER_ARGUMENTS = Alternatives(
    Argument("--agent SLUG", "Budgets of an agent and its sessions"),
    Argument("--server SERVER", "Budgets of a server: its slug, name, or ID"),
)


_SET_ARGUMENTS = (
    _OWNER_ARGUMENTS,
    Argument(
        "LINE",
        f"{LINE_FORMAT}. Units: tokens, dollars, calls, seconds. Periods: day, month, total. "
        "session: applies to each session of the agent. PERCENT: usage at which to warn.",
        nargs="*",
        dest="lines",
    ),
    Argument("--none", "Delete all budgets"),
)


_SERVER_PRICE_ARGUMENTS = (
    Argument("SERVER", "Slug, name, or ID of the server"),
    *PRICE_ARGUMENTS,
)


VERBS = (
    CommandVerb(
        "list",
        "List budgets with the amounts spent",
        _list_budgets,
        arguments=(_OWNER_ARGUMENTS,),
        examples=("budgets list", "budgets list --agent helper --json"),
    ),
    CommandVerb(
        "set",
        "Replace the budgets of the organization, an agent, or a server",
        _set_budgets,
        arguments=_SET_ARGUMENTS,
        examples=(
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
        "Show or set the cost and rate limit of calls to a server",
        _set_server_prices,
        arguments=_SERVER_PRICE_ARGUMENTS,
        examples=("mcp price search --call-price 0.005", "mcp price gpu --second-price 0.0004"),
    ),
)
