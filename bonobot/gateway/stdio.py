"""The gateway over standard input and output: one client, with a token from the environment.

The token is looked at for each request, so one that was revoked is of no use any more.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import get_args

from mcp.server.stdio import stdio_server

from bonobot.gateway.offerings import Kind
from bonobot.gateway.places import Address
from bonobot.gateway.serving import Serving
from bonobot.gateway.visitors import welcome
from bonobot.lib.runtime import runtime

# A client beside this process comes from no address: tokens for networks are of no use here.
NOWHERE = ""


async def look(token: str, address: Address) -> dict[str, int]:
    """Return how much a client would find at an address; raises `BadToken`, `NotFound`."""
    visitor, serving = await welcome(token, address, NOWHERE), Serving()
    return {kind: len(await serving.listed(visitor, kind)) for kind in get_args(Kind)}


async def serve(token: str, address: Address) -> None:
    """Serve an address until standard input ends; raises `BadToken`, `NotFound`."""
    visitor = await welcome(token, address, NOWHERE)
    serving = Serving(partial(welcome, token, address, NOWHERE))
    session = partial(serving.clients.alone, visitor)
    async with stdio_server() as (received, sent):
        telling = runtime().loop.create_task(serving.listening.follow(visitor, session))
        try:
            options = serving.server.create_initialization_options()
            await serving.server.run(received, sent, options)
        finally:
            telling.cancel()
            serving.listening.stop()
            with suppress(asyncio.CancelledError):
                await telling
