"""What a server may ask back of whoever calls it, as options."""

import argparse
from typing import Any

from mcp_servers.asked_back import ASKED_BACK
from mcp_servers.models import Server


def declare_asking(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--sampling",
        choices=Server.Sampling.values,
        help="whether it may use the agent's model; ask: a person is asked each time",
    )
    parser.add_argument(
        "--sampling-tokens",
        type=int,
        metavar="N",
        help="tokens a day that it may use so; 0: as the setting says",
    )
    for name, about in (
        ("elicitation", "whether it may ask the person who runs the session"),
        ("roots", "whether it is told the session's working folder"),
    ):
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=about)


def said_asking(options: argparse.Namespace) -> dict[str, Any]:
    """Return what was said; None keeps what is stored."""
    return {name: getattr(options, name) for name in ASKED_BACK}
