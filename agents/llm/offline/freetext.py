"""Arguments that have no form of their own: what follows the name, what follows the command."""

import re
from collections.abc import Iterable, Iterator

from agents.llm.offline.slots import Slot
from agents.llm.offline.words import STOP, also, listed, stem, words

Span = tuple[int, int]

CONNECTIVES = listed(
    "a about an back exactly following for me message of out phrase saying says string text that "
    "the this to top up with word words"
)
FILLER = STOP | CONNECTIVES
NOT_A_NOUN = STOP | listed("name id value key type")
PLACE = re.compile(r"\b(?:in|at|for|near|of|around)\s+(?=\w)")
POINTED_AT = re.compile(
    r"\b(?:to|against|with|into)\s+(?:the\s+)?[\"'`]?([\w@][\w@./~^-]{0,200})", re.I
)
PROPER = re.compile(r"[A-Z][\w’'-]*(?:,? [A-Z][\w’'-]*)*")
WORD = re.compile(r"[^\W_]+(?:'\w+)?")
PLEASE = re.compile(r"[,;]?\s+(?:please|thanks|thank you|for me)\s*[.!]*$", re.I)
DANGLING = re.compile(r"(?:^|\s)(?:in|at|from|of|on|to|for|with|and)$")


def after_its_name(text: str, slot: Slot) -> Iterator[Span]:
    """Yield where the word behind "branch" or "branch named" stands; with a role, behind "to"."""
    for noun in reversed([word for word in slot.words if word not in NOT_A_NOUN]):
        pattern = (
            rf"\b{re.escape(noun)}s?\s+(?:(?:named|called|is|number|id)\s+)?[\"'`]?"
            r"([\w@#][\w@#./~^-]{0,200})"
        )
        yield from _words_at(re.finditer(pattern, text, re.I))
    if slot.role == "target":
        yield from _words_at(POINTED_AT.finditer(text))


def rest_of(text: str, slot: Slot, tool_name: str, taken: Iterable[Span]) -> Span | None:
    """Return what follows the words that picked the tool: of `echo hello`, where `hello` is.

    Of several stretches between values that went elsewhere it is the longest.
    """
    own = {stem(word) for word in words(tool_name)} | {stem(word) for word in slot.words}
    rests = [_trimmed(text, start, end, slot, own) for start, end in _between(text, taken)]
    fit = [(start, end) for start, end in rests if words(text[start:end])]
    if slot.kind == "word":
        # One word is easily anything: only behind what the tool does, "checkout dev".
        deed = {stem(word) for word in words(tool_name)[-1:]}
        fit = [(a, b) for a, b in fit if b - a == len(text[a:b].split()[0])]
        fit = [(a, b) for a, b in fit if deed <= {stem(word) for word in words(text[:a])}]
    return max(fit, key=lambda span: span[1] - span[0], default=None)


def _between(text: str, taken: Iterable[Span]) -> Iterator[Span]:
    at = 0
    for start, end in sorted(taken):
        yield at, max(at, start)
        at = max(at, end)
    yield at, len(text)


def _trimmed(text: str, start: int, end: int, slot: Slot, own: set[str]) -> Span:
    """Return a stretch without the command in front and the politeness behind."""
    place = PLACE.search(text, start, end) if slot.kind == "place" else None
    start = place.end() if place else _behind_command(text, start, end, own)
    if slot.kind == "place" and (named := PROPER.match(text, start, end)):
        return named.span()
    rest = text[start:end].strip(" \t\n:,;")
    rest = DANGLING.sub("", PLEASE.sub("", rest))
    if slot.kind in ("place", "word"):
        rest = rest.rstrip(".!?")
    at = text.find(rest, start)
    return at, at + len(rest)


def _behind_command(text: str, start: int, end: int, own: set[str]) -> int:
    skipped = FILLER
    for match in WORD.finditer(text, start, end):
        word = match.group().lower().partition("'")[0]
        if stem(word) in own or not own.isdisjoint(also(stem(word))):
            skipped = CONNECTIVES  # the command itself: what comes now is what it is about
        elif word not in skipped:
            break
        start = match.end()
    return start


def _words_at(matches: Iterator[re.Match[str]]) -> Iterator[Span]:
    for match in matches:
        word = match.group(1).rstrip(".")
        if word and word.lower() not in STOP:
            yield match.start(1), match.start(1) + len(word)
