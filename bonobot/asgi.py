"""The ASGI application: `uvicorn bonobot.asgi:application`.

Django refuses the lifespan protocol, so it is answered here: the server's loop becomes the
process's one Runtime at startup, and connections and children end in order at shutdown.
"""

import gc
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")
django_application = get_asgi_application()  # sets Django up, which the imports below need

from bonobot import health, readiness  # noqa: E402
from bonobot.gateway.mount import Mount, serves  # noqa: E402
from bonobot.lib.runtime import Runtime  # noqa: E402

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

gateway = Mount()


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer lifespan and health here, the gateway's paths there, everything else by Django."""
    kind = scope["type"]
    if kind == "lifespan":
        await lifespan(receive, send)
    elif kind == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
    elif scope["path"] == health.PATH:
        await health.respond(send)
    elif scope["path"] == readiness.PATH:
        await readiness.respond(scope["query_string"], send)
    elif serves(scope["path"]):
        await gateway(scope, receive, send)
    else:
        await django_application(scope, receive, send)


async def lifespan(receive: Receive, send: Send) -> None:
    """Own the process's Runtime from startup to shutdown."""
    await receive()
    runtime = Runtime.adopt()
    # What is loaded by now stays: to look through it again holds all calls for a tenth of a second.
    gc.collect()
    gc.freeze()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await runtime.aclose()
    await send({"type": "lifespan.shutdown.complete"})
