"""The fetch toolset: HTTP requests, and HTML converted to text.

Every connection, including those of redirects, is checked against the toolset's list of hosts, then
by the egress guard. No script of a page is run.

Pages are untrusted, so they are parsed in one pass, in linear time and without a tree: common
parsers take minutes for a few hundred kilobytes of unfinished or deeply nested tags.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from html import unescape
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx2
import re2

from agents.builtin_tools.toolset_options import KITS, METHODS, Options
from agents.builtin_tools.types import BuiltinTool, BuiltinToolContext, BuiltinToolHints
from agents.builtin_tools.workspaces import run_in_thread
from agents.images import LARGEST, detect_media_type
from bonobot.core.http.egress import LONGEST_URL, EgressDenied, build_guarded_client
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, InvalidInput, Problem, ServiceUnavailable
from mcp_servers.flow_labels import FlowLabel

# Left out together with their content.
LEFT_OUT = frozenset(
    [
        "script",
        "style",
        "template",
        "noscript",
        "svg",
        "math",
        "iframe",
        "object",
        "embed",
        "canvas",
        "audio",
        "video",
        "select",
        "textarea",
        "head",
    ]
)
VOID = frozenset(
    [
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "source",
        "track",
        "wbr",
    ]
)
BLOCKS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "br",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "html",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "title",
        "tr",
        "ul",
    ]
)
HEADINGS: Mapping[str, str] = {f"h{level}": "#" * level + " " for level in range(1, 7)}
# Their content is text up to their closing tag (HTML, 13.2.6.2).
RAW = frozenset(("script", "style", "textarea", "title", "iframe", "noscript"))
CLOSER = re.compile("[>\"']")
LONGEST_TAG = 4096  # the attributes of longer tags are ignored
NAME = re.compile(r"/?([A-Za-z][A-Za-z0-9:-]*)")
ATTRIBUTE = re2.compile(
    r"""([A-Za-z][A-Za-z0-9:_-]*)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?"""
)
DEEPEST = 500
LONGEST_LINK = 500


def extract_page_text(html: str, url: str) -> str:
    """Return a page's text: title, headings, lists, links; without hidden elements."""
    page, lower, at = _PageTextParser(url), html.lower(), 0
    while (start := html.find("<", at)) >= 0:
        page.text_part(unescape(html[at:start]))
        if html.startswith("<!--", start):
            end = html.find("-->", start + 4)
            at = end + 3
        elif html[start + 1 : start + 2] in ("!", "?"):
            end = html.find(">", start)
            at = end + 1
        elif not (name := NAME.match(html[start + 1 : start + 64])):
            page.text_part("<")
            end = at = start + 1
        else:
            end = _end_of_tag(html, start)
            at = end + 1
            tag, closing = name.group(1).lower(), html[start + 1] == "/"
            if end >= 0 and closing:
                page.close(tag)
            elif end >= 0:
                page.open(tag, _parse_attributes(html[start + 1 + name.end() : end]))
                if tag in RAW:
                    end = lower.find(f"</{tag}", at)
                    page.text_part(unescape(html[at:end]) if tag == "title" else "")
                    at = end
        if end < 0:  # an unfinished tag: the rest belongs to it
            return page.text()
    page.text_part(unescape(html[at:]))
    return page.text()


def _end_of_tag(html: str, at: int) -> int:
    """Return the index of a tag's `>` outside quotes; -1 if the tag is unfinished."""
    while found := CLOSER.search(html, at):
        at = found.start()
        if html[at] == ">":
            return at
        at = html.find(html[at], at + 1) + 1
        if not at:
            return -1
    return -1


def _parse_attributes(text: str) -> dict[str, str]:
    if ("=" not in text and "hidden" not in text) or len(text) > LONGEST_TAG:
        return {}
    return {
        one.group(1).lower(): unescape(one.group(2) or one.group(3) or one.group(4) or "")
        for one in ATTRIBUTE.finditer(text)
    }


class _PageTextParser:
    """Collects the text of a page; tolerates wrong nesting."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lines: list[str] = []
        self._line: list[str] = []
        self._hidden: list[str] = []
        self._links: list[str] = []
        self._title: list[str] | None = None
        self._pre = 0

    def open(self, tag: str, said: Mapping[str, str]) -> None:
        """Handle a start tag."""
        if tag == "title" and self._title is None:
            self._title = []
            self._hidden.append(tag)
            return
        hides = tag in LEFT_OUT or (said and _is_hidden(said))
        if self._hidden or hides:
            # `</head>` is optional: `<body>` ends the head too.
            if tag == "body" and self._hidden == ["head"]:
                self._hidden.clear()
            elif tag not in VOID and len(self._hidden) < DEEPEST:
                self._hidden.append(tag)
            return
        if tag in BLOCKS:
            self._end_line()
        self._pre += tag == "pre"
        self._line.append(HEADINGS.get(tag, "- " if tag == "li" else ""))
        if tag == "a":
            self._links.append(said.get("href", ""))
        if tag == "img" and (alt := said.get("alt")):
            self._line.append(f"[image: {alt}]")
        if tag in ("td", "th"):
            self._line.append(" | ")

    def close(self, tag: str) -> None:
        """Handle an end tag."""
        if self._hidden:
            if tag in self._hidden:
                while self._hidden.pop() != tag:
                    pass
            return
        if tag == "a" and self._links:
            self._line.append(self._link(self._links.pop()))
        if tag in BLOCKS:
            self._end_line(keep=self._pre > 0)
        self._pre -= tag == "pre" and self._pre > 0

    def text_part(self, data: str) -> None:
        """Handle text."""
        if self._hidden:
            if self._hidden[-1] == "title" and self._title is not None:
                self._title.append(data)
        elif self._pre:
            *lines, rest = data.split("\n")
            for line in lines:
                self._line.append(line)
                self._end_line(keep=True)
            self._line.append(rest)
        else:
            self._line.append(data)

    def text(self) -> str:
        """Return the collected text."""
        self._end_line()
        title = " ".join("".join(self._title or ()).split())
        return "\n".join([*([f"# {title}", ""] if title else []), *self._lines]).strip()

    def _link(self, href: str) -> str:
        target = urljoin(self._url, href) if _is_link(href) else ""
        return f" ({target})" if target and len(target) <= LONGEST_LINK else ""

    def _end_line(self, *, keep: bool = False) -> None:
        text = "".join(self._line)
        self._line.clear()
        shown = text.rstrip() if keep else " ".join(text.split())
        if shown and shown not in ("-", "|"):
            self._lines.append(shown)


def _is_link(href: str) -> bool:
    scheme = href.partition(":")[0].lower() if ":" in href.partition("/")[0] else ""
    return bool(href) and not href.startswith("#") and scheme in ("", "http", "https")


def _is_hidden(said: Mapping[str, str]) -> bool:
    style = "".join(said.get("style", "").lower().split())
    unseen = ("display:none", "visibility:hidden", "opacity:0;", "font-size:0;")
    return (
        "hidden" in said
        or said.get("aria-hidden") == "true"
        or any(rule in f"{style};" for rule in unseen)
    )


MOST_BYTES = 4 * 1024 * 1024
LONGEST_PAGE = 1024 * 1024  # characters of HTML
MOST_SENT = 256 * 1024  # characters
REDIRECTS = 5
CONNECT_S = 10.0
SECONDS = 60.0
# Media types of text that don't start with `text/`.
TEXTS = ("json", "xml", "yaml", "javascript", "x-www-form-urlencoded", "csv", "toml")


class UnreadableContent(Problem):
    """The response is neither text nor an image."""

    code = "not_text"
    status = 415
    title = "Not readable"


async def _fetch(context: BuiltinToolContext, arguments: dict[str, Any]) -> str | dict[str, Any]:
    options = context.toolbox.kits.get("fetch", KITS["fetch"].usual)
    method = arguments.get("method", "GET")
    if method not in options["methods"]:
        raise Forbidden(
            format_message(
                "`{method}` is not among the methods that this agent may use.", method=method
            ),
            code="method_refused",
            field="method",
            remedy=format_message("It may use: {methods}.", methods=", ".join(options["methods"])),
        )
    if "body" in arguments and method in ("GET", "HEAD"):
        raise InvalidInput(
            format_message("`{method}` sends no body.", method=method),
            field="body",
            remedy="Leave `body` out.",
        )
    seconds = SECONDS if context.timeout_s is None else min(SECONDS, context.timeout_s)
    try:
        return await _fetch_with_redirects(method, arguments, options, seconds)
    except httpx2.HTTPError as error:
        raise ServiceUnavailable(
            format_message(
                "`{url}` could not be fetched: {name}.",
                url=_parse_host(arguments["url"]),
                name=type(error).__name__,
            ),
            code="fetch_failed",
            field="url",
            remedy="Look at the address, or try again later.",
        ) from error


async def _fetch_with_redirects(
    method: str, arguments: Mapping[str, Any], options: Options, seconds: float
) -> str | dict[str, Any]:
    """Fetch a URL and follow redirects, each checked like the first URL."""
    url, body = arguments["url"], arguments.get("body")
    headers = {"Accept": "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.1"}
    if body is not None:
        headers["Content-Type"] = arguments.get("content_type", "application/json")
    client = build_guarded_client(
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
            return await run_in_thread(_format_response, url, answer)
    raise ServiceUnavailable(
        format_message(
            "More than {redirects} redirects led on from `{url}`.",
            redirects=REDIRECTS,
            url=_parse_host(arguments["url"]),
        ),
        code="too_many_redirects",
        field="url",
        remedy="Use the address that they lead to.",
    )


def _require_host(url: str, hosts: Sequence[str]) -> None:
    host = _parse_host(url)
    if hosts and not any(fnmatchcase(host, pattern) for pattern in hosts):
        raise Forbidden(
            format_message(
                "`{host}` is not among the hosts that this agent may fetch from.", host=host
            ),
            code="host_refused",
            field="url",
            remedy=format_message("It may fetch from: {hosts}.", hosts=", ".join(hosts)[:500]),
        )


def _parse_host(url: str) -> str:
    """Return the host as the egress guard parses it; "" if there is none."""
    try:
        return httpx2.URL(url).raw_host.decode("ascii").lower().removesuffix(".")
    except (httpx2.InvalidURL, ValueError):
        return ""


def _format_response(url: str, answer: httpx2.Response) -> str | dict[str, Any]:
    """Return a summary line and the text or image of a response."""
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    data = answer.content
    line = (
        f"[{answer.status_code} {kind or 'no type'}, {len(data):,} bytes, from {_strip_query(url)}]"
    )
    if image := detect_media_type(data):
        if len(data) > LARGEST:
            raise _build_unreadable_error(kind, len(data))
        part = {"type": "image", "mimeType": image, "data": base64.b64encode(data).decode()}
        return {"content": [{"type": "text", "text": line}, part]}
    if kind in ("text/html", "application/xhtml+xml"):
        return f"{line}\n{extract_page_text(_decode_body(answer)[:LONGEST_PAGE], url)}"
    is_text = kind.startswith("text/") or any(word in kind for word in TEXTS)
    if data and not is_text and (kind or b"\0" in data[:8192]):
        raise _build_unreadable_error(kind, len(data))
    return f"{line}\n{_decode_body(answer)}"


def _decode_body(answer: httpx2.Response) -> str:
    try:
        return answer.content.decode(answer.charset_encoding or "utf-8", "replace")
    except LookupError:
        return answer.content.decode("utf-8", "replace")


def _strip_query(url: str) -> str:
    """Return a URL without its query, which may contain secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _build_unreadable_error(kind: str, size: int) -> UnreadableContent:
    return UnreadableContent(
        format_message(
            "What came back is {kind}, {size:,} bytes.", kind=kind or "of no known type", size=size
        ),
        field="url",
        remedy="Only text and images (PNG, JPEG, GIF, WebP) can be read.",
    )


FETCH_TOOLS = (
    BuiltinTool(
        name="http_fetch",
        description=format_message(
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
        labels=(FlowLabel.UNTRUSTED_CONTENT, FlowLabel.SENDS_OUT),
        hints=BuiltinToolHints(
            read_only=False, destructive=True, idempotent=False, open_world=True
        ),
    ),
)
