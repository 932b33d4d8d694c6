"""A listener that plays scenarios for clients of the suite, in the process of the tests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Thread

from django.db import connections

from tests.conformance.play_scenario import play

BESIDE_EACH_OTHER = 4
PLACES = BoundedSemaphore(BESIDE_EACH_OTHER)


class Player(BaseHTTPRequestHandler):
    """Plays the scenario of a request and answers with what went wrong."""

    def do_POST(self) -> None:
        """Play one scenario."""
        part = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with PLACES:
            try:
                wrong = play(**part).encode()
            finally:
                connections.close_all()
        self.send_response(200)
        self.send_header("Content-Length", str(len(wrong)))
        self.end_headers()
        self.wfile.write(wrong)

    def log_message(self, *args: object) -> None:
        """Say nothing: the suite tells how it went."""


@contextmanager
def relay() -> Iterator[int]:
    """Yield the port on which scenarios are played."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Player) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()
