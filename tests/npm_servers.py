"""Servers of npm as processes."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def serve_everything(node_server: Callable[[str], str], port: int) -> Iterator[str]:
    """Run server-everything over HTTP on a port of the loopback; yield its URL."""
    with subprocess.Popen(
        ["node", node_server("mcp-server-everything"), "streamableHttp"],
        env={**os.environ, "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            assert "listening" in server.stderr.readline()
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.terminate()
