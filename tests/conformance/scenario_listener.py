"""A listener that runs scenarios for clients of the suite, in the test process."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Thread

from django.db import connections

from tests.conformance.play_scenario import play

MAX_PARALLEL = 4
SLOTS = BoundedSemaphore(MAX_PARALLEL)


class Player(BaseHTTPRequestHandler):
    """Runs the scenario of a request and responds with its error."""

    def do_POST(self) -> None:
        """Run one scenario."""
        scenario = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with SLOTS:
            try:
                error = play(**scenario).encode()
            finally:
                connections.close_all()
        self.send_response(200)
        self.send_header("Content-Length", str(len(error)))
        self.end_headers()
        self.wfile.write(error)

    def log_message(self, *args: object) -> None:
        """Don't log: the suite reports the result."""


@contextmanager
def relay() -> Iterator[int]:
    """Yield the port that accepts scenarios."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Player) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()
