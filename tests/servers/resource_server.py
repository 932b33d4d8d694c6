"""A small MCP server for tests (2026-07-28, stdio): resources, templates, prompts and completion.

It uses only the standard library. Like a careless server, it returns a text for every requested
URI, so forbidden reads must be stopped before they arrive here. Each request appends a line
`method name` to the file that `LIBRARY_FILE` names.
"""

import json
import os
import sys
from pathlib import Path

VERSION = "2026-07-28"
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "YPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)

RESOURCES = [
    {"uri": "lib://rules", "name": "rules", "title": "House rules", "mimeType": "text/markdown"},
    {"uri": "lib://logo", "name": "logo", "mimeType": "image/png"},
    {"uri": "lib://page", "name": "page", "mimeType": "text/html"},
    {"uri": "lib://hidden", "name": "hidden", "mimeType": "text/plain"},
    {"uri": "lib://books/secret", "name": "secret", "mimeType": "text/plain"},
]
TEMPLATES = [
    {"uriTemplate": "lib://books/{book}", "name": "book", "description": "A book."},
    {"uriTemplate": "lib://files/{+path}", "name": "file"},
]
PROMPTS = [
    {
        "name": "review",
        "title": "Review",
        "description": "Ask for a review.",
        "arguments": [
            {"name": "book", "description": "Which one.", "required": True},
            {"name": "tone"},
        ],
    },
    {"name": "plain"},
]
TEXTS = {
    "lib://rules": "# Be quiet",
    "lib://page": "<script>alert(1)</script>",
    "lib://hidden": "see\u200bthis \U000e0041",
}


def read(uri):
    if uri == "lib://logo":
        return {"uri": uri, "mimeType": "image/png", "blob": PNG}
    mime = "text/html" if uri == "lib://page" else "text/plain"
    return {"uri": uri, "mimeType": mime, "text": TEXTS.get(uri, f"the text of {uri}")}


def prompt(name, arguments):
    text = (
        f"Review {arguments.get('book')} ({arguments.get('tone', 'plainly')})"
        if arguments
        else name
    )
    image = {"type": "image", "mimeType": "image/png", "data": PNG}
    return {
        "description": "As asked.",
        "messages": [
            {"role": "user", "content": {"type": "text", "text": text}},
            {"role": "assistant", "content": image},
        ],
    }


def complete(params):
    prefix = params["argument"]["value"]
    values = [f"{prefix}{number}" for number in range(150)] + ["hid\u200bden", 7]
    return {"completion": {"values": values if prefix != "!" else values[-2:], "total": 150}}


def result(method, params):
    if method == "server/discover":
        return {
            "supportedVersions": [VERSION],
            "capabilities": {"resources": {}, "prompts": {}, "completions": {}},
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "library", "version": "1"}},
        }
    cache = {"ttlMs": 0, "cacheScope": "private"}
    if method == "resources/read":
        return {"contents": [read(params["uri"])], **cache}
    if method == "prompts/get":
        return prompt(params["name"], params.get("arguments") or {})
    if method == "completion/complete":
        return complete(params)
    return {
        "resources/list": {"resources": RESOURCES, **cache},
        "resources/templates/list": {"resourceTemplates": TEMPLATES, **cache},
        "prompts/list": {"prompts": PROMPTS, **cache},
    }.get(method)


def answer(request):
    params = request.get("params") or {}
    if file := os.environ.get("LIBRARY_FILE"):
        name = params.get("uri") or params.get("name") or ""
        with Path(file).open("a", encoding="utf-8") as log:
            log.write(f"{request['method']} {name}\n")
    value = result(request["method"], params)
    if value is None:
        body = {"error": {"code": -32601, "message": "Method not found"}}
    else:
        body = {"result": {"resultType": "complete", **value}}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            answer(message)
