"""Receivers of notices: an HTTP server and a mail server, real sockets, that keep what they get."""

import json
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hook:
    """A webhook's receiver: what it got, and what it answers."""

    url: str = ""
    got: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)
    status: int = 204
    answer: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def last(self) -> Any:
        """The JSON that came last."""
        return json.loads(self.got[-1][1])


@dataclass
class Mailbox:
    """A mail server: the envelopes and messages that it took; `refuses` answers 550 to all."""

    port: int = 0
    refuses: bool = False
    got: list[tuple[list[str], Message]] = field(default_factory=list)


@contextmanager
def hook_listening() -> Iterator[Hook]:
    """Listen for webhooks while the block runs."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.got.append((dict(self.headers.items()), body))
            self.send_response(hook.status)
            for name, value in hook.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(hook.answer)))
            self.end_headers()
            self.wfile.write(hook.answer)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, _serving(server):
        hook.url = f"http://127.0.0.1:{server.server_address[1]}/hook/geheimer-pfad"
        yield hook


@contextmanager
def mail_listening() -> Iterator[Mailbox]:
    """Listen for mail while the block runs."""
    box = Mailbox()

    class Handler(socketserver.StreamRequestHandler):
        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        def handle(self) -> None:
            self.say("220 here")
            to: list[str] = []
            while line := self.rfile.readline().decode().strip():
                verb = line.upper()
                if verb.startswith("RCPT TO:"):
                    to.append(line[8:].strip().strip("<>"))
                    self.say("550 nobody here" if box.refuses else "250 ok")
                elif verb == "DATA":
                    self.say("354 go on")
                    box.got.append((to, self.message()))
                    to = []
                    self.say("250 taken")
                elif verb == "QUIT":
                    self.say("221 bye")
                    return
                else:
                    self.say("250 ok")

        def message(self) -> Message:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
            return message_from_bytes(b"".join(lines), policy=default)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server, _serving(server):
        box.port = server.server_address[1]
        yield box


@contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
