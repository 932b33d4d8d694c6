"""An MCP server over stdio that misbehaves on request, without any library.

    faulty_stdio_server.py [--era both|modern|handshake|silent|deaf|strict|fussy|foreign|late|…]
        [--catalog NAME]

`silent` ignores unknown requests until `initialize`; `strict` exits on any other request before it;
`fussy` refuses with -32022; `late` starts slowly; `old` supports only old versions; `no` refuses
every initialization. The called tool, or the catalog, decides what goes wrong. Each start writes
one line to stderr.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODERN = "2026-07-28"
LONG = 10_000_000
MIB = 2**20

Message = dict[str, Any]
cancelled: list[Any] = []
requests: dict[Any, Message] = {}


def send(*messages: Message) -> None:
    """Write messages, one per line."""
    raw("".join(json.dumps(message) + "\n" for message in messages).encode())


def raw(data: bytes) -> None:
    """Write bytes as they are."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def result(number: Any, value: Any) -> Message:
    """Return an answer."""
    return {"jsonrpc": "2.0", "id": number, "result": value}


def error(number: Any, code: int, text: str, data: Any = None) -> Message:
    """Return an error."""
    fault = {"code": code, "message": text, "data": data}
    return {"jsonrpc": "2.0", "id": number, "error": fault}


def text(number: Any, value: Any) -> Message:
    """Return a tool's result with one text."""
    value_text = value if isinstance(value, str) else json.dumps(value)
    return result(number, {"content": [{"type": "text", "text": value_text}], "x-unknown": [1]})


# --- tools, each a way to misbehave


def echo(number: Any, arguments: Message) -> None:
    send(text(number, arguments))


def crash(number: Any, arguments: Message) -> None:
    sys.stderr.write("fatal: out of cheese\n")
    os._exit(arguments.get("status", 3))


def kill_itself(number: Any, arguments: Message) -> None:
    # The first process of a namespace ignores what it sends itself, except a fault.
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    os.abort()


def close_output(number: Any, arguments: Message) -> None:
    os.close(1)
    time.sleep(60)


def hang(number: Any, arguments: Message) -> None:
    pass


def block(number: Any, arguments: Message) -> None:
    time.sleep(600)


def garbage(number: Any, arguments: Message) -> None:
    raw(b"Welcome to the server!\n\n\xff\xfe\x00\n[1, 2\n42\nnull\n")
    send(text(number, "after the garbage"))


def broken_json(number: Any, arguments: Message) -> None:
    raw(b'{"jsonrpc": "2.0", "id": %d, "result": {"a": \n' % number)


def wrong_id(number: Any, arguments: Message) -> None:
    send(text(number + 1000, "wrong"), text(str(number), "wrong"), text(None, "wrong"))


def twice(number: Any, arguments: Message) -> None:
    send(text(number, "first"), text(number, "second"))


def long_line(number: Any, arguments: Message) -> None:
    if arguments.get("id_last"):
        raw(b'{"result": {"a": "' + b"x" * LONG + b'"}, "jsonrpc": "2.0", "id": %d}\n' % number)
    elif arguments.get("id_unknown"):
        raw(b'{"result": {"a": "' + b"x" * LONG + b'"}, "id": %d, "jsonrpc": "2.0"}\n' % number)
    else:
        raw(b'{"jsonrpc": "2.0", "id": %d, "result": {"a": "' % number + b"x" * LONG + b'"}}\n')


def long_notification(number: Any, arguments: Message) -> None:
    raw(b'{"jsonrpc": "2.0", "method": "x", "params": {"a": "' + b"x" * LONG + b'"}}\n')
    send(text(number, "after the notification"))


def endless_line(number: Any, arguments: Message) -> None:
    while True:
        raw(b"x" * 65536)


def drip(number: Any, arguments: Message) -> None:
    while True:
        raw(b" ")
        time.sleep(0.02)


def flood(number: Any, arguments: Message) -> None:
    """Send notifications or requests forever."""
    message = {"jsonrpc": "2.0", "method": arguments.get("method", "notifications/message")}
    requests = {"id": 7} if arguments.get("asks") else {}
    while True:
        send(*[message | requests | {"params": {}}] * 200)


def complain_for_ever(number: Any, arguments: Message) -> None:
    while True:
        sys.stderr.write("e" * 65536)


def wide(number: Any, arguments: Message) -> None:
    raw(b'{"jsonrpc": "2.0", "id": %d, "result": {"a": [%s0]}}\n' % (number, b"[]," * 300_000))


def deep(number: Any, arguments: Message) -> None:
    depth = arguments.get("depth", 10_000)
    value = b"[" * depth + b"]" * depth
    raw(b'{"jsonrpc": "2.0", "id": %d, "result": {"a": %s}}\n' % (number, value))


def not_an_object(number: Any, arguments: Message) -> None:
    send(result(number, arguments.get("value")))


def unusual(number: Any, arguments: Message) -> None:
    raw(
        b'{"jsonrpc": "2.0", "id": %d, "result": {"a\\ud800": "b\\u0000\\ud83d\\ude00"}}\n' % number
    )


def progress(number: Any, arguments: Message) -> None:
    token = arguments.get("token", requests[number]["params"]["_meta"].get("progressToken"))
    for step in range(arguments.get("steps", 3)):
        params = {"progressToken": token, "progress": step, "total": 9, "message": "m" * 5000}
        send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    for params in ({"progressToken": token, "progress": "much"}, {"progress": 1}, [], None):
        send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    send(text(number, "progressed"))


def batch(number: Any, arguments: Message) -> None:
    notice = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
    raw((json.dumps([notice, 7, text(number, "in a batch")]) + "\n").encode())


def ask_back(number: Any, arguments: Message) -> None:
    """Send requests to the client and return its response."""
    for count in range(arguments.get("times", 1)):
        name = f"asked-{number}-{count}"
        send({"jsonrpc": "2.0", "id": name, "method": arguments["method"], "params": {"p": 1}})
    requests["back"] = {"number": number}


def cancellations(number: Any, arguments: Message) -> None:
    send(text(number, cancelled))


def environment(number: Any, arguments: Message) -> None:
    send(text(number, dict(os.environ) | {"cwd": str(Path.cwd())}))


def grandchild(number: Any, arguments: Message) -> None:
    """Start a process in its own session that ignores signals, named by a token."""
    code = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]; "
    subprocess.Popen(
        [sys.executable, "-c", code + "time.sleep(600)", arguments["token"]],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=None if arguments.get("holds_output") else subprocess.DEVNULL,
    )
    send(text(number, "started"))


def complain(number: Any, arguments: Message) -> None:
    sys.stderr.write("e" * arguments["size"] + arguments.get("end", ""))
    sys.stderr.flush()
    send(text(number, "complained"))


def attempt(number: Any, arguments: Message) -> None:
    """Return the value of an expression evaluated in this process, or the error it raises."""
    try:
        value = eval(arguments["expression"], {"os": os, "socket": socket})  # noqa: S307 - from a test
    except OSError as problem:
        value = type(problem).__name__
    send(text(number, value))


def refuse(number: Any, arguments: Message) -> None:
    send(error(number, arguments.get("code", -32000), arguments.get("text", "no"), {"why": 1}))


TOOLS: dict[str, Callable[[Any, Message], None]] = {
    tool.__name__: tool
    for tool in (
        *(echo, crash, kill_itself, close_output, hang, block, garbage, broken_json, wrong_id),
        *(twice, long_line, long_notification, endless_line, deep, not_an_object, unusual),
        *(progress, batch, ask_back, cancellations, environment, grandchild, complain, attempt),
        *(drip, flood, complain_for_ever, wide),
        refuse,
    )
}

# --- catalogs, each a way to list badly


def build_tools(*names: str) -> list[Message]:
    return [{"name": name, "inputSchema": {"type": "object"}} for name in names]


def catalog(name: str, method: str, cursor: str | None) -> Message | None:
    """Return one page of a listing; None leaves the request without an answer."""
    if method != "tools/list":
        return FEATURES[method] if name == "mixed" else {}
    page = int(cursor or 0)
    pages: dict[str, Callable[[], Message | None]] = {
        "many_tools": lambda: {"tools": build_tools(*(f"t{n}" for n in range(100_000)))},
        "many_pages": lambda: {
            "tools": build_tools(*(f"t{page}-{n}" for n in range(500))),
            **_next(page, 10**9),
        },
        "endless_cursor": lambda: {"tools": [], **_next(page, 10**9)},
        "repeated_cursor": lambda: {"tools": build_tools(f"t{page}"), "nextCursor": "1"},
        "large_cursor": lambda: {"tools": build_tools("a"), "nextCursor": "9" * MIB},
        "tools": lambda: {"tools": build_tools(*TOOLS)},
        "mixed": lambda: {"tools": MIXED},
        "paged": lambda: {"tools": build_tools(f"t{page}"), **_next(page, 3)},
        "endless": lambda: {"tools": build_tools(f"t{page}"), **_next(page, 10**9)},
        "repeated": lambda: {"tools": build_tools(f"t{page}"), "nextCursor": "1"},
        "huge": lambda: {
            "tools": build_tools(*(f"t{page}-{n}" for n in range(300))),
            **_next(page, 9),
        },
        "heavy": lambda: {"tools": _heavy(page), **_next(page, 10**9)},
        "odd_cursor": lambda: {"tools": build_tools("a"), "nextCursor": {"a": 1}},
        "not_a_list": lambda: {"tools": {"a": 1}},
        "silent": lambda: None,
    }
    return pages[name]()


def _next(page: int, pages: int) -> Message:
    return {"nextCursor": str(page + 1)} if page + 1 < pages else {}


def _heavy(page: int) -> list[Message]:
    return [
        {"name": f"t{page}-{n}", "description": "d" * 60_000, "inputSchema": {}} for n in range(10)
    ]


MIXED: list[Any] = [
    *build_tools("good"),
    *build_tools("good"),
    {"name": "titled", "title": "T", "inputSchema": {"type": "object"}, "annotations": None},
    {"name": "no schema"},
    {"name": "list schema", "inputSchema": []},
    {"name": "string schema", "inputSchema": {"type": "string"}},
    {"name": "description", "inputSchema": {}, "description": 7},
    {"name": "annotations", "inputSchema": {}, "annotations": "x"},
    {"name": "large", "inputSchema": {}, "description": "d" * 100_000},
    {"inputSchema": {}},
    {"name": "", "inputSchema": {}},
    {"name": 7, "inputSchema": {}},
    "not an object",
    None,
    {"name": "mirrored", "inputSchema": {"properties": {"a": {"x-mcp-header": "not a token"}}}},
]
FEATURES: dict[str, Message] = {
    "resources/list": {"resources": [{"uri": "a://b", "name": "b"}, {"name": "no uri"}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "a://{b}", "name": "b"}]},
    "prompts/list": {
        "prompts": [
            {"name": "p", "arguments": [{"name": "a"}]},
            {"name": "bad", "arguments": [{"no": "name"}]},
        ]
    },
}


# --- eras


class Server:
    """Reads messages and answers them as its era does."""

    def __init__(self, era: str, listing: str) -> None:
        self.era = era
        self.listing = listing
        self.greeted = False

    def run(self) -> None:
        """Serve until the input ends."""
        sys.stderr.write(f"started {self.era}\n")
        sys.stderr.flush()
        if self.era in ("late", "late_no"):
            time.sleep(1.5)
        for line in sys.stdin.buffer:
            self.handle_message(json.loads(line))

    def handle_message(self, message: Message) -> None:
        method, number = message.get("method"), message.get("id")
        if method == "notifications/cancelled":
            cancelled.append(message["params"]["requestId"])
        elif method is None:
            send(text(requests["back"]["number"], message))
        elif number is not None and self.is_answered(method, message):
            requests[number] = message
            self.answer(method, number, message.get("params", {}))

    def is_answered(self, method: str, message: Message) -> bool:
        """Return whether this era answers a request."""
        if self.era == "deaf":
            return method != "initialize"
        if method == "initialize" or self.greeted or self.era in ("both", "modern", "late", "old"):
            return True
        if self.era == "strict":
            os._exit(1)
        if self.era in ("silent", "no"):
            return False
        supported = ["2025-11-25"] if self.era == "fussy" else ["2030-01-01"]
        if self.era in ("handshake", "late_no"):
            send(error(message["id"], -32601, "Method not found"))
        else:
            send(error(message["id"], -32022, "Unsupported", {"supported": supported}))
        return False

    def answer(self, method: str, number: Any, params: Message) -> None:
        capabilities = {"tools": {}, "resources": {}, "prompts": {}}
        if method == "server/discover":
            versions = ["2025-06-18"] if self.era == "old" else [MODERN]
            discovery = {"supportedVersions": versions, "capabilities": capabilities}
            send(result(number, discovery | {"instructions": "Be careful."}))
        elif method == "initialize":
            self.initialize(number, params)
        elif method == "tools/call":
            TOOLS[params["name"]](number, params.get("arguments", {}))
        elif method == "ping":
            send(result(number, {}))
        elif method.endswith("/list"):
            page = catalog(self.listing, method, params.get("cursor"))
            if page is not None:
                send(result(number, page))
        else:
            send(error(number, -32601, "Method not found"))

    def initialize(self, number: Any, params: Message) -> None:
        if self.era in ("no", "late_no"):
            send(error(number, -32000, "not today"))
            return
        if self.era in ("modern", "late", "foreign"):
            send(error(number, -32022, "Unsupported", {"supported": [MODERN]}))
            return
        self.greeted = True
        initialization = {
            "protocolVersion": os.environ.get("VERSION", params["protocolVersion"]),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "scripted"},
        }
        send(result(number, initialization))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", default="both")
    parser.add_argument("--catalog", default="tools")
    parser.add_argument("--token", default="")
    chosen = parser.parse_args()
    Server(chosen.era, chosen.catalog).run()
