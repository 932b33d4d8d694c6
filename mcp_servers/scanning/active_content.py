"""Neutralize HTML and remote images (pure).

A model may repeat what it read: a remote image in a rendered answer would leak the conversation
through its URL. Remote images and script links are replaced by a note, tags and handlers are
escaped. Everything else is unchanged. Linear in the text.

Brackets are matched as in CommonMark; where code or a tag could make another parser match them
differently, the `![` is escaped instead.
"""

import html
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

from mcp_servers.scanning.chat_tokens import escape_chat_tokens

# With more brackets than this, all remaining images are escaped without parsing.
MAX_BRACKETS: Final = 200_000
_BRACKET: Final = re.compile(r"\\.|!\[|\[|\]", re.DOTALL)
_TARGET: Final = re.compile(
    r"\(\s{0,64}(?:<(?P<pointed>[^<>\n]{0,8192})>|(?P<plain>[^\s<]"
    r"(?:[^\s()]|\([^\s()]{0,512}\)){0,8192}))?"
    r"(?P<title>\s{1,64}(?:\"[^\"]{0,2048}\"|'[^']{0,2048}'|\([^()]{0,2048}\)))?\s{0,64}\)"
)
_REFERENCE: Final = re.compile(r"\[(?P<name>[^\[\]]{0,999})\]")
_DEFINITION: Final = re.compile(
    r"^[ \t>]{0,12}\[(?P<name>[^\[\]\n]{1,999})\]:\s{0,8}<?(?P<said>[^\s>]{1,8192})", re.MULTILINE
)
_INVISIBLE_IN_URL: Final = re.compile(r"[\x00-\x20\x7f-\x9f]")
_REMOTE: Final = re.compile(r"(?:[a-z][a-z0-9+.-]{0,20}:|[\\/]{2})", re.IGNORECASE)
_REMOTE_TARGET: Final = re.compile(
    r"\]\(\s{0,64}<?\s{0,8}(?:[a-z][a-z0-9+.&#;\\-]{0,40}:|[\\/&])", re.I
)
_PARAGRAPH: Final = re.compile(r"(\n[ \t>]*\n)")


def strip_remote_images(text: str, counts: Counter[str]) -> str:
    """Return `text` without remote Markdown images, counted as `remote_image`."""
    if "![" not in text:
        return text
    parts: list[str] = []
    position = 0
    for start, end, address in _find_remote_images(text):
        counts["remote_image"] += 1
        parts += (text[position:start], format_image_note(address))
        position = end
    return _escape_ambiguous_images("".join((*parts, text[position:])), counts)


def format_image_note(address: str) -> str:
    """Return the note that replaces a remote image, with its host."""
    try:
        host = urlsplit(address).hostname or ""
    except ValueError:
        host = ""
    return (
        f"[removed: remote image{f' of {host}' if re.fullmatch(r'[a-z0-9.-]{1,80}', host) else ''}]"
    )


def is_remote(address: str) -> bool:
    """Tell whether `address` is not relative."""
    return _REMOTE.match(_INVISIBLE_IN_URL.sub("", html.unescape(address))) is not None


def _find_remote_images(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, address) of each outermost remote image, in order."""
    remote_definitions = {
        " ".join(definition["name"].split()).casefold(): definition["said"]
        for definition in _DEFINITION.finditer(text)
        if is_remote(definition["said"])
    }
    open_brackets: list[tuple[int, bool]] = []
    images: list[tuple[int, int, str]] = []
    for count, match in enumerate(_BRACKET.finditer(text)):
        if count > MAX_BRACKETS:
            break
        bracket = match.group()
        if bracket in ("[", "!["):
            open_brackets.append((match.start(), bracket == "!["))
        elif bracket == "]" and open_brackets:
            start, is_image = open_brackets.pop()
            if not is_image:
                continue
            alt_text = text[start + 2 : match.start()]
            if (
                target := _find_image_target(text, match.end(), alt_text, remote_definitions)
            ) is not None:
                while images and images[-1][0] > start:
                    images.pop()
                images.append((start, *target))
    yield from images


def _find_image_target(
    text: str, position: int, alt_text: str, remote_definitions: dict[str, str]
) -> tuple[int, str] | None:
    """Return (end, address) of the image whose alt text ends at `position`; None if not remote."""
    if target := _TARGET.match(text, position):
        address = target["pointed"] or target["plain"] or ""
        return (target.end(), address) if is_remote(address) else None
    reference = _REFERENCE.match(text, position)
    name = (reference["name"] if reference else "") or alt_text
    address = remote_definitions.get(" ".join(name.split()).casefold(), "")
    return (reference.end() if reference else position, address) if address else None


def _escape_ambiguous_images(text: str, counts: Counter[str]) -> str:
    """Escape what another Markdown parser may still read as a remote image."""
    if "![" not in text or not (_REMOTE_TARGET.search(text) or text.count("[") > MAX_BRACKETS):
        return text
    parts = _PARAGRAPH.split(text)
    for index, part in enumerate(parts):
        if "![" not in part or not _REMOTE_TARGET.search(part, part.index("![")):
            continue
        if len(text) > 1 << 16 or any(character in part for character in "`<\\"):
            counts["remote_image"] += part.count("![")
            parts[index] = part.replace("![", "!\\[")
    return "".join(parts)


# Elements that run, load or send something by themselves.
_ELEMENTS: Final = (
    "script|iframe|frame|frameset|object|embed|applet|meta|base|form|portal|fencedframe|style"
)
# A feed's `<link>` without attributes only contains text.
_ELEMENT: Final = re.compile(
    rf"<(?=(?:x?html:|svg:)?(?:(?:{_ELEMENTS})(?:[\s/>]|$)|link[\s/]))", re.IGNORECASE
)
_LOADING_ELEMENT: Final = re.compile(
    r"<(?:img|image|picture|source|video|audio|track|input|body|table|t[dhr]|svg:image|feimage)"
    r"(?=[\s/>])",
    re.IGNORECASE,
)
_ESCAPED_ELEMENT: Final = re.compile(
    f"&lt;(?={'|'.join(item.pattern.removeprefix('<') for item in (_ELEMENT, _LOADING_ELEMENT))})",
    re.IGNORECASE,
)
_ESCAPED_HANDLER: Final = re.compile(r"(?<=[\s\"'/])(?P<name>on[a-z]{3,40})&#61;", re.IGNORECASE)
_TAG: Final = re.compile(r"<[a-z!/?]", re.IGNORECASE)
_REST_OF_TAG: Final = re.compile(r"""(?:"[^"]{0,4096}"|'[^']{0,4096}'|[^'">]){0,2048}>""")
_LOADING_ATTRIBUTE: Final = re.compile(
    r"(?:^|[\s\"'/])(?:src|srcset|poster|background|data|(?:xlink:)?href|dynsrc|lowsrc|action"
    r"|formaction)\s*=(?P<said>.{0,2048})",
    re.IGNORECASE | re.DOTALL,
)
_HANDLER: Final = re.compile(
    r"(?<=[\s\"'/])(?P<name>on(?:abort|after|animation|auxclick|before|begin|blur|bounce|cancel|can"
    r"|change|click|close|contextmenu|copy|cue|cut|dblclick|drag|drop|duration|emptied|end|error"
    r"|finish|focus|form|fullscreen|got|hashchange|input|invalid|key|language|load|lost|message"
    r"|mouse|offline|online|page|paste|pause|play|pointer|popstate|progress|ratechange|readystate"
    r"|repeat|reset|resize|scroll|search|security|seek|select|show|slot|stalled|start|storage"
    r"|submit|suspend|time|toggle|touch|transition|unhandled|unload|volume|waiting|webkit|wheel)"
    r"[a-z]{0,20}\s*)=",
    re.IGNORECASE,
)
_REMOTE_STYLE: Final = re.compile(
    r"(?P<what>\burl\s*\(|@import\b|\bimage-set\s*\(|\bexpression\s*\(|-moz-binding\b|\bbehavior\s*:)"
    r"(?P<said>[^)\n;]{0,2048})",
    re.IGNORECASE,
)
# Addresses that a click or a page follows.
_LINK: Final = re.compile(
    r"(?P<before>\]\(\s{0,8}<?\s{0,8}"
    r"|^[ \t]{0,3}\[[^\]\n]{1,200}\]:\s{0,8}<?"
    r"|\b(?:xlink:)?(?:href|src|action|formaction|data|poster|background|srcset|content|to|values)"
    r"\s{0,8}=\s{0,8}"
    r"|<(?=\s{0,8}[a-z&%]))"
    r"""(?P<said>"[^"]{0,4096}"|'[^']{0,4096}'|[^\s>)"'][^\s>)]{0,4096})""",
    re.IGNORECASE | re.MULTILINE,
)
_SCRIPT_SCHEME: Final = re.compile(
    r"[\"']?(?:url=)?(?P<scheme>javascript|vbscript|livescript|mocha|data|blob|filesystem|mhtml"
    r"|view-source|jar):",
    re.IGNORECASE,
)
_INVISIBLE: Final = re.compile(r"[\x00-\x20\x7f-\x9f\\]")


def strip_active_content(text: str) -> tuple[str, dict[str, int]]:
    """Return `text` without anything that a page would run or fetch, and counts by rule.

    `remote_image`, `active_link` and `remote_style` are replaced by a note; `active_element`,
    `event_handler` and `chat_token` are escaped.
    """
    counts: Counter[str] = Counter()
    text = strip_remote_images(text, counts)
    has_tags = _TAG.search(text)
    if has_tags:
        text = _replace_loading_elements(text, counts)
        text, element_count = _ELEMENT.subn("&lt;", text)
        if element_count:
            counts["active_element"] += element_count
        text = _HANDLER.sub(lambda match: _escape_handler(match, counts), text)
        text = _REMOTE_STYLE.sub(lambda match: _remove_remote_style(match, counts), text)
    if ":" in text or "&" in text:
        text = _LINK.sub(lambda match: _remove_active_link(match, counts), text)
    text = escape_chat_tokens(text, counts)
    return text, dict(counts)


def restore_escaped_markup(text: str) -> str:
    """Return `text` with the elements and handlers that `strip_active_content` escaped.

    For code in Markdown, which shows entities as they are and runs no element. What was removed
    stays removed, and turn separators stay escaped.
    """
    if "&" not in text:
        return text
    return _ESCAPED_HANDLER.sub(r"\g<name>=", _ESCAPED_ELEMENT.sub("<", text))


Replacement = tuple[int, str, str]


def _replace_loading_elements(text: str, counts: Counter[str]) -> str:
    """Replace each element up to the end of its replacement; skip elements inside another."""
    build_replacement = _build_tag_replacer(text)
    parts: list[str] = []
    position = 0
    for match in _LOADING_ELEMENT.finditer(text):
        if (
            match.start() < position
            or (replacement := build_replacement(match.start(), match.end())) is None
        ):
            continue
        end, rule, new_text = replacement
        counts[rule] += 1
        parts += (text[position : match.start()], new_text)
        position = end
    return "".join((*parts, text[position:])) if parts else text


def _build_tag_replacer(text: str) -> Callable[[int, int], Replacement | None]:
    """Return a function that replaces a tag if it loads something, or escapes an unclosed tag.

    Only the first 1,000 tags are parsed; all others are escaped.
    """
    inspected_count = 0

    def replace_tag(start: int, name_end: int) -> Replacement | None:
        nonlocal inspected_count
        inspected_count += 1
        tag_rest = _REST_OF_TAG.match(text, name_end) if inspected_count <= 1_000 else None
        if tag_rest is None:
            return start + 1, "active_element", "&lt;"
        tag_text = html.unescape(tag_rest.group())
        addresses = [
            _INVISIBLE.sub("", item["said"]) for item in _LOADING_ATTRIBUTE.finditer(tag_text)
        ]
        if not any("//" in item or _has_scheme(item) or "\\\\" in tag_text for item in addresses):
            return None
        note = f"[removed: remote image{_format_host(next(iter(addresses), ''))}]"
        return tag_rest.end(), "remote_image", note

    return replace_tag


def _has_scheme(address: str) -> bool:
    return re.match(r"[\"']?[a-z][a-z0-9+.-]{1,20}:", address, re.IGNORECASE) is not None


def _format_host(address: str) -> str:
    try:
        host = urlsplit(address.strip("\"'<> ").partition(" ")[0]).hostname or ""
    except ValueError:
        return ""
    match = re.fullmatch(r"[a-z0-9.-]{1,80}", host)
    return f" of {host}" if match else ""


def _escape_handler(match: re.Match[str], counts: Counter[str]) -> str:
    counts["event_handler"] += 1
    name: str = match["name"]
    return f"{name.rstrip()}&#61;{name[len(name.rstrip()) :]}"


def _remove_remote_style(match: re.Match[str], counts: Counter[str]) -> str:
    argument = _INVISIBLE.sub("", html.unescape(match["said"])).lstrip("\"'(")
    is_script = match["what"].lower().startswith(("expression", "-moz", "behavior"))
    if (
        not is_script
        and "//" not in argument
        and "\\" not in match["said"]
        and not _has_scheme(argument)
    ):
        return match.group()
    counts["remote_style"] += 1
    construct = match["what"].rstrip("(: ")
    return f"[removed: {construct}{_format_host(argument)}]("


def _remove_active_link(match: re.Match[str], counts: Counter[str]) -> str:
    address = _INVISIBLE.sub("", html.unescape(html.unescape(match["said"])))
    script_scheme = _SCRIPT_SCHEME.match(address)
    if script_scheme is None:
        return match.group()
    counts["active_link"] += 1
    return f"{match['before']}[removed: {script_scheme['scheme'].lower()} link]"
