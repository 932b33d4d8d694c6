"""The server with every fixture of the conformance suite, as a process over Streamable HTTP."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.parts import ROOT

MODULE = "tests.servers.conformance_server"


@contextmanager
def serve_everything(folder: Path) -> Iterator[str]:
    """Run the server and yield its URL; what it logs goes to `folder`."""
    command = [sys.executable, "-m", MODULE, "http"]
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
