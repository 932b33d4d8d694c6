"""Start the server with the options of its own `main`, on a free port."""

import asyncio

from tests.servers.sdk_everything_server.server import event_store, mcp
from tests.servers.sdk_server import serve_http

RETRY_MS = 100

if __name__ == "__main__":
    app = mcp.streamable_http_app(event_store=event_store, retry_interval=RETRY_MS)
    asyncio.run(serve_http(app, 0))
