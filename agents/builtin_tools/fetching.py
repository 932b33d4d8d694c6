"""The kit `fetch`: pages and data over HTTP, made readable, from public addresses (FEATURES E3).

Every connection, also one that a redirect leads to, is the egress guard's to allow; the kit's own
list of hosts comes first. Nothing is run of what comes back: a page becomes its text.
"""

import base64
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx2

from agents.builtin_tools.pages import readable_page
from agents.builtin_tools.tool import BuiltinTool, Context, Hints
from agents.builtin_tools.workspaces import beside
from agents.governance.kits import KITS, METHODS, Options
from agents.pictures import LARGEST, kind_of
from bonobot.lib.egress import LONGEST_URL, EgressDenied, guarded_client
from bonobot.lib.problems import Forbidden, Invalid, Problem, Unavailable
from bonobot.lib.sayings import say
from mcp_servers.labels import Label

MOST_BYTES = 4 * 1024 * 1024
LONGEST_PAGE = 1024 * 1024  # characters of HTML that are read
MOST_SENT = 256 * 1024  # characters
REDIRECTS = 5
CONNECT_S = 10.0
SECONDS = 60.0
# Types of text that don't begin with `text/`.
TEXTS = ("json", "xml", "yaml", "javascript", "x-www-form-urlencoded", "csv", "toml")


class NotReadable(Problem):
    """What came back is neither text nor an image."""

    code = "not_text"
    status = 415
    title = "Not readable"


async def _fetch(context: Context, arguments: dict[str, Any]) -> str | dict[str, Any]:
    options = context.toolbox.kits.get("fetch", KITS["fetch"].usual)
    method = arguments.get("method", "GET")
    if method not in options["methods"]:
        raise Forbidden(
            say("`{method}` is not among the methods that this agent may use.", method=method),
            code="method_refused",
            field="method",
            remedy=say("It may use: {methods}.", methods=", ".join(options["methods"])),
        )
    if "body" in arguments and method in ("GET", "HEAD"):
        raise Invalid(
            say("`{method}` sends no body.", method=method),
            field="body",
            remedy="Leave `body` out.",
        )
    seconds = SECONDS if context.timeout_s is None else min(SECONDS, context.timeout_s)
    try:
        return await _followed(method, arguments, options, seconds)
    except httpx2.HTTPError as error:
        raise Unavailable(
            say(
                "`{url}` could not be fetched: {name}.",
                url=_host(arguments["url"]),
                name=type(error).__name__,
            ),
            code="fetch_failed",
            field="url",
            remedy="Look at the address, or try again later.",
        ) from error


async def _followed(
    method: str, arguments: Mapping[str, Any], options: Options, seconds: float
) -> str | dict[str, Any]:
    """Fetch, following a few redirects, each judged like the first address."""
    url, body = arguments["url"], arguments.get("body")
    headers = {"Accept": "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.1"}
    if body is not None:
        headers["Content-Type"] = arguments.get("content_type", "application/json")
    client = guarded_client(
        allow_private=options["allow_private"],
        headers=headers,
        connect_s=min(CONNECT_S, seconds),
        read_s=seconds,
        max_body=MOST_BYTES,
    )
    async with client:
        for _ in range(REDIRECTS + 1):
            _require_host(url, options["hosts"])
            try:
                answer = await client.request(method, url, content=body)
            except EgressDenied as refused:
                if refused.code != "redirect_refused" or method not in ("GET", "HEAD"):
                    raise
                url = urljoin(url, str(refused.extra["location"]))
                continue
            return await beside(_told, url, answer)
    raise Unavailable(
        say(
            "More than {redirects} redirects led on from `{url}`.",
            redirects=REDIRECTS,
            url=_host(arguments["url"]),
        ),
        code="too_many_redirects",
        field="url",
        remedy="Use the address that they lead to.",
    )


def _require_host(url: str, hosts: Sequence[str]) -> None:
    host = _host(url)
    if hosts and not any(fnmatchcase(host, pattern) for pattern in hosts):
        raise Forbidden(
            say("`{host}` is not among the hosts that this agent may fetch from.", host=host),
            code="host_refused",
            field="url",
            remedy=say("It may fetch from: {hosts}.", hosts=", ".join(hosts)[:500]),
        )


def _host(url: str) -> str:
    """Return the host as the guard will read it, "" for what has none."""
    try:
        return httpx2.URL(url).raw_host.decode("ascii").lower().removesuffix(".")
    except (httpx2.InvalidURL, ValueError):
        return ""


def _told(url: str, answer: httpx2.Response) -> str | dict[str, Any]:
    """Return what came back: a line on it, then its text, or an image."""
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    data = answer.content
    line = f"[{answer.status_code} {kind or 'no type'}, {len(data):,} bytes, from {_shown(url)}]"
    if image := kind_of(data):
        if len(data) > LARGEST:
            raise _unreadable(kind, len(data))
        part = {"type": "image", "mimeType": image, "data": base64.b64encode(data).decode()}
        return {"content": [{"type": "text", "text": line}, part]}
    if kind in ("text/html", "application/xhtml+xml"):
        return f"{line}\n{readable_page(_text(answer)[:LONGEST_PAGE], url)}"
    is_text = kind.startswith("text/") or any(word in kind for word in TEXTS)
    if data and not is_text and (kind or b"\0" in data[:8192]):
        raise _unreadable(kind, len(data))
    return f"{line}\n{_text(answer)}"


def _text(answer: httpx2.Response) -> str:
    try:
        return answer.content.decode(answer.charset_encoding or "utf-8", "replace")
    except LookupError:
        return answer.content.decode("utf-8", "replace")


def _shown(url: str) -> str:
    """Return an address without what a query may hold."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _unreadable(kind: str, size: int) -> NotReadable:
    return NotReadable(
        say(
            "What came back is {kind}, {size:,} bytes.", kind=kind or "of no known type", size=size
        ),
        field="url",
        remedy="Only text and images (PNG, JPEG, GIF, WebP) can be read.",
    )


TOOLS = (
    BuiltinTool(
        name="http_fetch",
        description=say(
            "Fetch a page or data over HTTP. A page comes as readable text with its links; "
            "images are shown. GET unless said otherwise."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "url": {"type": "string", "minLength": 1, "maxLength": LONGEST_URL},
                "method": {"enum": list(METHODS)},
                "body": {"type": "string", "maxLength": MOST_SENT},
                "content_type": {"type": "string", "pattern": "^[A-Za-z0-9.+/; =_-]{1,100}$"},
            },
            "required": ["url"],
            "additionalProperties": False,
        },
        run=_fetch,
        kit="fetch",
        labels=(Label.UNTRUSTED_CONTENT, Label.SENDS_OUT),
        hints=Hints(read_only=False, destructive=True, idempotent=False, open_world=True),
    ),
)
