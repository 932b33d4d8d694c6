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

from agents.builtin_tools.toolset_options import HTTP_METHODS, TOOLSETS, OptionValues
from agents.builtin_tools.types import BuiltinTool, BuiltinToolContext, BuiltinToolHints
from agents.builtin_tools.workspaces import run_in_thread
from bonobot.core.http.egress import MAX_URL_LENGTH
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, InvalidInput, Problem, ServiceUnavailable
from mcp_servers.flow_labels import FlowLabel

# Left out together with their content.
SKIPPED_ELEMENTS = frozenset(
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
VOID_ELEMENTS = frozenset(
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
BLOCK_ELEMENTS = frozenset(
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
RAW_TEXT_ELEMENTS = frozenset(("script", "style", "textarea", "title", "iframe", "noscript"))
TAG_DELIMITER = re.compile("[>\"']")
MAX_TAG_LENGTH = 4096  # the attributes of longer tags are ignored
TAG_NAME = re.compile(r"/?([A-Za-z][A-Za-z0-9:-]*)")
ATTRIBUTE = re2.compile(
    r"""([A-Za-z][A-Za-z0-9:_-]*)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?"""
)
MAX_DEPTH = 500
MAX_LINK_LENGTH = 500
MAX_RESPONSE_BYTES = 4 * 1024 * 1024
MAX_HTML_LENGTH = 1024 * 1024  # characters of HTML
MAX_REQUEST_LENGTH = 256 * 1024  # characters
MAX_REDIRECTS = 5
CONNECT_TIMEOUT_S = 10.0
FETCH_TIMEOUT_S = 60.0
# Media types of text that don't start with `text/`.
TEXT_TYPES = ("json", "xml", "yaml", "javascript", "x-www-form-urlencoded", "csv", "toml")


def extract_page_text(html: str, url: str) -> str:
    """Return a page's text: title, headings, lists, links; without hidden elements."""
    parser, lowercase_html, position = _PageTextParser(url), html.lower(), 0
    while (start := html.find("<", position)) >= 0:
        parser.add_text(unescape(html[position:start]))
        if html.startswith("<!--", start):
            end = html.find("-->", start + 4)
            position = end + 3
        elif html[start + 1 : start + 2] in ("!", "?"):
            end = html.find(">", start)
            position = end + 1
        elif not (name := TAG_NAME.match(html[start + 1 : start + 64])):
            parser.add_text("<")
            end = position = start + 1
        else:
            end = _find_tag_end(html, start)
            position = end + 1
            tag, is_closing = name.group(1).lower(), html[start + 1] == "/"
            if end >= 0 and is_closing:
                parser.close_element(tag)
            elif end >= 0:
                parser.open_element(tag, _parse_attributes(html[start + 1 + name.end() : end]))
                if tag in RAW_TEXT_ELEMENTS:
                    end = lowercase_html.find(f"</{tag}", position)
                    parser.add_text(unescape(html[position:end]) if tag == "title" else "")
                    position = end
        if end < 0:  # an unfinished tag: the rest belongs to it
            return parser.to_text()
    parser.add_text(unescape(html[position:]))
    return parser.to_text()


def _find_tag_end(html: str, position: int) -> int:
    """Return the index of a tag's `>` outside quotes; -1 if the tag is unfinished."""
    while match := TAG_DELIMITER.search(html, position):
        position = match.start()
        if html[position] == ">":
            return position
        position = html.find(html[position], position + 1) + 1
        if not position:
            return -1
    return -1


def _parse_attributes(text: str) -> dict[str, str]:
    if ("=" not in text and "hidden" not in text) or len(text) > MAX_TAG_LENGTH:
        return {}
    return {
        match.group(1).lower(): unescape(match.group(2) or match.group(3) or match.group(4) or "")
        for match in ATTRIBUTE.finditer(text)
    }


class _PageTextParser:
    """Collects the text of a page; tolerates wrong nesting."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lines: list[str] = []
        self._line: list[str] = []
        self._hidden_elements: list[str] = []
        self._open_links: list[str] = []
        self._title: list[str] | None = None
        self._pre_depth = 0

    def open_element(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Handle a start tag."""
        if tag == "title" and self._title is None:
            self._title = []
            self._hidden_elements.append(tag)
            return
        is_skipped = tag in SKIPPED_ELEMENTS or (attributes and _is_hidden(attributes))
        if self._hidden_elements or is_skipped:
            # `</head>` is optional: `<body>` ends the head too.
            if tag == "body" and self._hidden_elements == ["head"]:
                self._hidden_elements.clear()
            elif tag not in VOID_ELEMENTS and len(self._hidden_elements) < MAX_DEPTH:
                self._hidden_elements.append(tag)
            return
        if tag in BLOCK_ELEMENTS:
            self._end_line()
        self._pre_depth += tag == "pre"
        self._line.append(HEADINGS.get(tag, "- " if tag == "li" else ""))
        if tag == "a":
            self._open_links.append(attributes.get("href", ""))
        if tag == "img" and (alt := attributes.get("alt")):
            self._line.append(f"[image: {alt}]")
        if tag in ("td", "th"):
            self._line.append(" | ")

    def close_element(self, tag: str) -> None:
        """Handle an end tag."""
        if self._hidden_elements:
            if tag in self._hidden_elements:
                while self._hidden_elements.pop() != tag:
                    pass
            return
        if tag == "a" and self._open_links:
            self._line.append(self._format_link(self._open_links.pop()))
        if tag in BLOCK_ELEMENTS:
            self._end_line(keep_spaces=self._pre_depth > 0)
        self._pre_depth -= tag == "pre" and self._pre_depth > 0

    def add_text(self, data: str) -> None:
        if self._hidden_elements:
            if self._hidden_elements[-1] == "title" and self._title is not None:
                self._title.append(data)
        elif self._pre_depth:
            *lines, last_line = data.split("\n")
            for line in lines:
                self._line.append(line)
                self._end_line(keep_spaces=True)
            self._line.append(last_line)
        else:
            self._line.append(data)

    def to_text(self) -> str:
        self._end_line()
        title = " ".join("".join(self._title or ()).split())
        return "\n".join([*([f"# {title}", ""] if title else []), *self._lines]).strip()

    def _format_link(self, href: str) -> str:
        target = urljoin(self._url, href) if _is_link(href) else ""
        return f" ({target})" if target and len(target) <= MAX_LINK_LENGTH else ""

    def _end_line(self, *, keep_spaces: bool = False) -> None:
        text = "".join(self._line)
        self._line.clear()
        line = text.rstrip() if keep_spaces else " ".join(text.split())
        if line and line not in ("-", "|"):
            self._lines.append(line)


def _is_link(href: str) -> bool:
    scheme = href.partition(":")[0].lower() if ":" in href.partition("/")[0] else ""
    return bool(href) and not href.startswith("#") and scheme in ("", "http", "https")


def _is_hidden(attributes: Mapping[str, str]) -> bool:
    style = "".join(attributes.get("style", "").lower().split())
    hiding_rules = ("display:none", "visibility:hidden", "opacity:0;", "font-size:0;")
    return (
        "hidden" in attributes
        or attributes.get("aria-hidden") == "true"
        or any(rule in f"{style};" for rule in hiding_rules)
    )


class UnreadableContent(Problem):
    """The response is neither text nor an image."""

    code = "not_text"
    status = 415
    title = "Unsupported content type"


async def _handle_http_fetch(
    context: BuiltinToolContext, arguments: dict[str, Any]
) -> str | dict[str, Any]:
    options = context.toolbox.options_by_toolset.get("fetch", TOOLSETS["fetch"].defaults)
    method = arguments.get("method", "GET")
    if method not in options["methods"]:
        raise Forbidden(
            format_message("This agent can't use the method `{method}`.", method=method),
            code="method_denied",
            field="method",
            remedy=format_message(
                "Use one of the allowed methods: {methods}.", methods=", ".join(options["methods"])
            ),
        )
    if "body" in arguments and method in ("GET", "HEAD"):
        raise InvalidInput(
            format_message("`{method}` requests can't have a body.", method=method),
            field="body",
            remedy="Omit `body`.",
        )
    timeout_s = (
        FETCH_TIMEOUT_S if context.timeout_s is None else min(FETCH_TIMEOUT_S, context.timeout_s)
    )
    try:
        return await _fetch_with_redirects(method, arguments, options, timeout_s)
    except httpx2.HTTPError as error:
        raise ServiceUnavailable(
            format_message(
                "`{url}` couldn't be fetched: {name}.",
                url=_parse_host(arguments["url"]),
                name=type(error).__name__,
            ),
            code="fetch_failed",
            field="url",
            remedy="Check the URL, or try again later.",
        ) from error


async def _fetch_with_redirects(
    method: str, arguments: Mapping[str, Any], options: OptionValues, timeout_s: float
) -> str | dict[str, Any]:
    """Fetch a URL and follow redirects, each checked like the first URL."""
    from bonobot.core.http.egress import EgressDenied, build_guarded_client

    url, body = arguments["url"], arguments.get("body")
    headers = {"Accept": "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.1"}
    if body is not None:
        headers["Content-Type"] = arguments.get("content_type", "application/json")
    client = build_guarded_client(
        allow_private=options["allow_private"],
        headers=headers,
        connect_s=min(CONNECT_TIMEOUT_S, timeout_s),
        read_s=timeout_s,
        max_body=MAX_RESPONSE_BYTES,
    )
    async with client:
        for _ in range(MAX_REDIRECTS + 1):
            _require_allowed_host(url, options["hosts"])
            try:
                response = await client.request(method, url, content=body)
            except EgressDenied as denial:
                if denial.code != "redirect_denied" or method not in ("GET", "HEAD"):
                    raise
                url = urljoin(url, str(denial.extra["location"]))
                continue
            return await run_in_thread(_format_response, url, response)
    raise ServiceUnavailable(
        format_message(
            "`{url}` redirected more than {redirects} times.",
            redirects=MAX_REDIRECTS,
            url=_parse_host(arguments["url"]),
        ),
        code="too_many_redirects",
        field="url",
        remedy="Use the final URL directly.",
    )


def _require_allowed_host(url: str, hosts: Sequence[str]) -> None:
    host = _parse_host(url)
    if hosts and not any(fnmatchcase(host, pattern) for pattern in hosts):
        raise Forbidden(
            format_message("This agent can't fetch from `{host}`.", host=host),
            code="host_denied",
            field="url",
            remedy=format_message(
                "Use one of the allowed hosts: {hosts}.", hosts=", ".join(hosts)[:500]
            ),
        )


def _parse_host(url: str) -> str:
    """Return the host as the egress guard parses it; "" if there is none."""
    try:
        return httpx2.URL(url).raw_host.decode("ascii").lower().removesuffix(".")
    except (httpx2.InvalidURL, ValueError):
        return ""


def _format_response(url: str, response: httpx2.Response) -> str | dict[str, Any]:
    """Return a summary line and the text or image of a response."""
    from agents.images import MAX_IMAGE_BYTES, detect_media_type

    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    data = response.content
    summary = (
        f"[{response.status_code} {media_type or 'no type'}, {len(data):,} bytes, from "
        f"{_strip_query(url)}]"
    )
    if image_type := detect_media_type(data):
        if len(data) > MAX_IMAGE_BYTES:
            raise _build_unreadable_error(media_type, len(data))
        image_content = {
            "type": "image",
            "mimeType": image_type,
            "data": base64.b64encode(data).decode(),
        }
        return {"content": [{"type": "text", "text": summary}, image_content]}
    if media_type in ("text/html", "application/xhtml+xml"):
        return f"{summary}\n{extract_page_text(_decode_body(response)[:MAX_HTML_LENGTH], url)}"
    is_text = media_type.startswith("text/") or any(word in media_type for word in TEXT_TYPES)
    if data and not is_text and (media_type or b"\0" in data[:8192]):
        raise _build_unreadable_error(media_type, len(data))
    return f"{summary}\n{_decode_body(response)}"


def _decode_body(response: httpx2.Response) -> str:
    try:
        return response.content.decode(response.charset_encoding or "utf-8", "replace")
    except LookupError:
        return response.content.decode("utf-8", "replace")


def _strip_query(url: str) -> str:
    """Return a URL without its query, which may contain secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _build_unreadable_error(media_type: str, size: int) -> UnreadableContent:
    return UnreadableContent(
        format_message(
            "The response is {kind}, {size:,} bytes.",
            kind=media_type or "of no known type",
            size=size,
        ),
        field="url",
        remedy="Only text and images (PNG, JPEG, GIF, WebP) can be read.",
    )


FETCH_TOOLS = (
    BuiltinTool(
        name="http_fetch",
        description=format_message(
            "Fetch a page or data over HTTP. Pages are returned as readable text with "
            "links; images are displayed. The default method is GET."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "url": {"type": "string", "minLength": 1, "maxLength": MAX_URL_LENGTH},
                "method": {"enum": list(HTTP_METHODS)},
                "body": {"type": "string", "maxLength": MAX_REQUEST_LENGTH},
                "content_type": {"type": "string", "pattern": "^[A-Za-z0-9.+/; =_-]{1,100}$"},
            },
            "required": ["url"],
            "additionalProperties": False,
        },
        run=_handle_http_fetch,
        toolset="fetch",
        labels=(FlowLabel.UNTRUSTED_CONTENT, FlowLabel.SENDS_OUT),
        hints=BuiltinToolHints(
            read_only=False, destructive=True, idempotent=False, open_world=True
        ),
    ),
)
