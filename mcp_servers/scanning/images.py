"""Find images of Markdown that a page would fetch from elsewhere, and put a note in their place.

Brackets are matched as CommonMark matches them; where code or a tag could make another reader match
them otherwise, the image's mark is escaped instead. Linear in the text.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

# More brackets than this before any image could be told: all images are escaped unread.
MOST_BRACKETS: Final = 200_000
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
_UNSEEN: Final = re.compile(r"[\x00-\x20\x7f-\x9f]")
_REMOTE: Final = re.compile(r"(?:[a-z][a-z0-9+.-]{0,20}:|[\\/]{2})", re.IGNORECASE)
_FAR: Final = re.compile(r"\]\(\s{0,64}<?\s{0,8}(?:[a-z][a-z0-9+.&#;\\-]{0,40}:|[\\/&])", re.I)
_PARAGRAPH: Final = re.compile(r"(\n[ \t>]*\n)")


def without_images(text: str, found: Counter[str]) -> str:
    """Return `text` without Markdown images from elsewhere; counted as `remote_image`."""
    if "![" not in text:
        return text
    kept: list[str] = []
    at = 0
    for start, end, address in _remote(text):
        found["remote_image"] += 1
        kept += (text[at:start], note(address))
        at = end
    return _escaped("".join((*kept, text[at:])), found)


def note(address: str) -> str:
    """Return what stands where a remote image stood, with the host that it came from."""
    try:
        host = urlsplit(address).hostname or ""
    except ValueError:
        host = ""
    return (
        f"[removed: remote image{f' of {host}' if re.fullmatch(r'[a-z0-9.-]{1,80}', host) else ''}]"
    )


def remote(address: str) -> bool:
    """Tell whether a page would look for `address` anywhere but beside itself."""
    return _REMOTE.match(_UNSEEN.sub("", html.unescape(address))) is not None


def _remote(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, address) of each outermost image from elsewhere, in order."""
    defined = {
        " ".join(one["name"].split()).casefold(): one["said"]
        for one in _DEFINITION.finditer(text)
        if remote(one["said"])
    }
    opened: list[tuple[int, bool]] = []
    images: list[tuple[int, int, str]] = []
    for count, match in enumerate(_BRACKET.finditer(text)):
        if count > MOST_BRACKETS:
            break
        said = match.group()
        if said in ("[", "!["):
            opened.append((match.start(), said == "!["))
        elif said == "]" and opened:
            start, image = opened.pop()
            if not image:
                continue
            shown = text[start + 2 : match.start()]
            if (place := _place(text, match.end(), shown, defined)) is not None:
                while images and images[-1][0] > start:
                    images.pop()
                images.append((start, *place))
    yield from images


def _place(text: str, at: int, shown: str, defined: dict[str, str]) -> tuple[int, str] | None:
    """Return (end, address) of the image whose words end at `at`; None: near, or none."""
    if target := _TARGET.match(text, at):
        address = target["pointed"] or target["plain"] or ""
        return (target.end(), address) if remote(address) else None
    reference = _REFERENCE.match(text, at)
    name = (reference["name"] if reference else "") or shown
    address = defined.get(" ".join(name.split()).casefold(), "")
    return (reference.end() if reference else at, address) if address else None


def _escaped(text: str, found: Counter[str]) -> str:
    """Escape what may still be an image for a reader who matches brackets in another way."""
    if "![" not in text or not (_FAR.search(text) or text.count("[") > MOST_BRACKETS):
        return text
    parts = _PARAGRAPH.split(text)
    for index, part in enumerate(parts):
        if "![" not in part or not _FAR.search(part, part.index("![")):
            continue
        if len(text) > 1 << 16 or any(one in part for one in "`<\\"):
            found["remote_image"] += part.count("![")
            parts[index] = part.replace("![", "!\\[")
    return "".join(parts)
