"""Prices of a server, in micro-dollars per call and per second of a call.

They count against money budgets.
"""

from typing import TYPE_CHECKING

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from mcp_servers.audit import update_server_columns
from mcp_servers.models import Server

if TYPE_CHECKING:
    from mcp_servers.server_config import ServerSpec


PRICE_NAMES = ("call_price", "second_price")
PRICE_FIELDS = (*PRICE_NAMES, "calls_per_minute")
# An hour at this price per second still fits the ledger. It is a million dollars.
MAX_PRICE = 10**12
MAX_RATE = 2**31 - 1


def build_price_columns(spec: "ServerSpec") -> dict[str, int | None]:
    """Return the columns for prices and rate of a specification; raises `InvalidInput`."""
    return clean_prices({name: getattr(spec, name) for name in PRICE_FIELDS})


def clean_prices(values: dict[str, int | None]) -> dict[str, int | None]:
    """Return columns for the values that are not None; a rate of 0 means no limit."""
    columns: dict[str, int | None] = {}
    for name, value in values.items():
        if value is None:
            continue
        largest = MAX_PRICE if name in PRICE_NAMES else MAX_RATE
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
            raise InvalidInput(
                f"`{name}` is {value!r}.",
                field=name,
                remedy=format_message("Use a whole number from 0 to {largest}", largest=largest)
                + (
                    "; prices are in micro-dollars."
                    if name in PRICE_NAMES
                    else "; 0 means no limit."
                ),
            )
        columns[name] = (value or None) if name == "calls_per_minute" else value
    return columns


def set_prices(
    principal: Principal,
    server: Server,
    *,
    call_price: int | None = None,
    second_price: int | None = None,
    calls_per_minute: int | None = None,
) -> None:
    """Change a server's prices and rate (None keeps one), effective with the next call."""
    values = {
        "call_price": call_price,
        "second_price": second_price,
        "calls_per_minute": calls_per_minute,
    }
    principal.require(Action.MANAGE_SERVERS)
    update_server_columns(principal, server, "server_prices_updated", clean_prices(values))
