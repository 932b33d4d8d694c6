"""Receivers of notifications: an HTTP server and a mail server that record what they receive."""

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
    """A webhook receiver: the requests it received, and its response."""

    url: str = ""
    received: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)
    status: int = 204
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def last(self) -> Any:
        """The last JSON body."""
        return json.loads(self.received[-1][1])


@dataclass
class Mailbox:
    """A mail server: the received envelopes and messages; with `refuses` it answers 550."""

    port: int = 0
    refuses: bool = False
    received: list[tuple[list[str], Message]] = field(default_factory=list)


@contextmanager
def run_webhook_receiver() -> Iterator[Hook]:
    """Listen for webhooks while the block runs."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.received.append((dict(self.headers.items()), body))
            self.send_response(hook.status)
            for name, value in hook.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(hook.body)))
            self.end_headers()
            self.wfile.write(hook.body)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, _serve_in_thread(server):
        hook.url = f"http://127.0.0.1:{server.server_address[1]}/hook/geheimer-pfad"
        yield hook


@contextmanager
def run_mail_server() -> Iterator[Mailbox]:
    """Listen for mail while the block runs."""
    mailbox = Mailbox()

    class Handler(socketserver.StreamRequestHandler):
        def reply(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        def handle(self) -> None:
            self.reply("220 here")
            to: list[str] = []
            while line := self.rfile.readline().decode().strip():
                verb = line.upper()
                if verb.startswith("RCPT TO:"):
                    to.append(line[8:].strip().strip("<>"))
                    self.reply("550 nobody here" if mailbox.refuses else "250 ok")
                elif verb == "DATA":
                    self.reply("354 go on")
                    mailbox.received.append((to, self.message()))
                    to = []
                    self.reply("250 taken")
                elif verb == "QUIT":
                    self.reply("221 bye")
                    return
                else:
                    self.reply("250 ok")

        def message(self) -> Message:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
            return message_from_bytes(b"".join(lines), policy=default)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server, _serve_in_thread(server):
        mailbox.port = server.server_address[1]
        yield mailbox


@contextmanager
def _serve_in_thread(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
