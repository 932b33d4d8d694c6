"""What calls of a server cost, and how often it may be called by everybody together (A10).

Prices are micro-dollars: for a call, and for each second that it runs. Money budgets count them.
"""

from typing import TYPE_CHECKING

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.models import Server
from mcp_servers.recording import set_columns

if TYPE_CHECKING:
    from mcp_servers.configuration import ServerSpec

PRICES = ("call_price", "second_price")
PRICED = (*PRICES, "calls_per_minute")
# An hour at this price for a second still fits the ledger: a million dollars.
LARGEST_PRICE = 10**12
LARGEST_RATE = 2**31 - 1


def priced(spec: "ServerSpec") -> dict[str, int | None]:
    """Return the columns of what a specification says of prices and rate; raises `Invalid`."""
    return checked({name: getattr(spec, name) for name in PRICED})


def checked(said: dict[str, int | None]) -> dict[str, int | None]:
    """Return columns for what was said (None: not said); a rate of 0 is none."""
    found: dict[str, int | None] = {}
    for name, value in said.items():
        if value is None:
            continue
        largest = LARGEST_PRICE if name in PRICES else LARGEST_RATE
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
            raise Invalid(
                f"`{name}` is {value!r}.",
                field=name,
                remedy=say("Use a whole number from 0 to {largest}", largest=largest)
                + ("; prices are in micro-dollars." if name in PRICES else "; 0: no limit."),
            )
        found[name] = (value or None) if name == "calls_per_minute" else value
    return found


def set_prices(
    principal: Principal,
    server: Server,
    *,
    call_price: int | None = None,
    second_price: int | None = None,
    calls_per_minute: int | None = None,
) -> None:
    """Change a server's prices and rate; None keeps one. It holds on the very next call."""
    said = {
        "call_price": call_price,
        "second_price": second_price,
        "calls_per_minute": calls_per_minute,
    }
    principal.require(Action.MANAGE_SERVERS)
    set_columns(principal, server, "server_priced", checked(said))
