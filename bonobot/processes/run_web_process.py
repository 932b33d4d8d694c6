"""The web process: uvicorn with Bonobot's application, HTTP protocol and deadlines.

    python -m bonobot.processes.run_web_process --host 127.0.0.1 --port 8000

uvicorn's own command line can't listen on a port that several processes share.
"""

import socket
import sys
from argparse import ArgumentParser
from contextlib import suppress

import uvicorn

from bonobot.processes.memory_arenas import limit_memory_arenas

APPLICATION = "bonobot.asgi:application"
HTTP_PROTOCOL = "bonobot.processes.http_protocol:Protocol"
GRACE_S = 5  # seconds for open requests at the end
BACKLOG = 2_048  # connections that wait to be accepted
STARTUP_FAILURE = 3  # exit status, as of uvicorn's command line


def run_web_process(host: str, port: int, *, log_level: str | None, reuse_port: bool) -> int:
    """Serve HTTP until a signal comes; return the exit status."""
    config = build_config(host, port, log_level)
    config.load_app()
    server = uvicorn.Server(config)
    with suppress(KeyboardInterrupt):  # uvicorn raises it again after it has shut down
        server.run([bind_shared_port(host, port)] if reuse_port else None)
    return 0 if server.started else STARTUP_FAILURE


def build_config(host: str, port: int, log_level: str | None = None) -> uvicorn.Config:
    """Return uvicorn's options."""
    return uvicorn.Config(
        APPLICATION,
        host=host,
        port=port,
        http=HTTP_PROTOCOL,
        ws="none",
        lifespan="on",
        log_level=log_level,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE_S,
    )


def bind_shared_port(host: str, port: int) -> socket.socket:
    """Return a socket that shares the port with other processes of this user (`SO_REUSEPORT`).

    The kernel distributes new connections among the processes that listen, which the server does
    when it is ready. Raises `OSError`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    shared_socket = socket.socket(family)
    shared_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    shared_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:  # as asyncio does
        shared_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    shared_socket.bind((host, port))
    return shared_socket


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    parser = ArgumentParser(prog="python -m bonobot.processes.run_web_process")
    parser.add_argument("--host", default="127.0.0.1", help="Address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="Port to listen on")
    parser.add_argument("--log-level", help="Level of uvicorn's own logger (default: info)")
    parser.add_argument(
        "--reuse-port", action="store_true", help="Share the port with other web processes"
    )
    return parser


if __name__ == "__main__":
    options = build_parser().parse_args()
    limit_memory_arenas()
    sys.exit(
        run_web_process(
            options.host,
            options.port,
            log_level=options.log_level,
            reuse_port=options.reuse_port,
        )
    )
