"""Servers with every fixture of the conformance suite, as processes over Streamable HTTP."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.parts import ROOT

OUR_SERVER = "tests.servers.conformance_server"
SDK_SERVER = "tests.servers.sdk_everything_server"


@contextmanager
def serve_everything(folder: Path, module: str = OUR_SERVER) -> Iterator[str]:
    """Run a server and yield its URL; what it logs goes to `folder`."""
    command = [sys.executable, "-m", module, "http"]
    with (
        (folder / "everything.log").open("wb") as log,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
        ) as server,
    ):
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{server.stdout.readline().split()[1]}/mcp"
        finally:
            server.terminate()
