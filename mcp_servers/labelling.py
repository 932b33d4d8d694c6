"""Labelling: what a tool most likely does with what it touches (FEATURES X9, X6). Pure.

A suggestion, made before a person has looked: words of its name and description, the shape of its
arguments, and what our catalogue says of its server. Where nothing is known it is taken to read
private data and text that anybody wrote; what calculates or tells the time gets no label. Hints of
the server itself only add.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_servers.label_words import (
    ADDRESSES,
    CODE,
    FILLER,
    LOCAL,
    MAKES,
    PRIVATE,
    PUBLIC,
    PURE,
    READS,
    RECIPIENTS,
    RUNS,
    SENDS,
    TEXTS,
    UNTRUSTED,
)
from mcp_servers.labels import BITS, Label
from mcp_servers.openapi.extensions import declared_labels

Labels = tuple[Label, ...]
SEEN: Labels = (Label.PRIVATE_DATA, Label.UNTRUSTED_CONTENT)
READ_AT_MOST = 4_096
ARGUMENTS_AT_MOST = 200
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*|\d+")
# Said anywhere in a description, a way out; the negated is not told apart, which is the safe side.
_SAYS_SENDS = re.compile(
    r"\b(?:send|post|publish|forward|upload|transmit|deliver)(?:s|ing|es)?\s+"
    r"(?:\w+\s+){0,4}(?:to|an?|the|e?mails?|messages?|via|over)\b"
    r"|\bmakes?\s+(?:an?\s+)?(?:http|web|api|network)\s+(?:request|call)s?\b"
    r"|\bweb\s?hooks?\b|\bout(?:going|bound)\b|\bruns?\s+(?:a\s+)?(?:shell|command|script)s?\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of a definition's server: how it is reached, and our catalogue's labels.

    `preset` holds pairs of a tool's own name (or `*`) and its labels. `declared` says that an
    administrator wrote the definitions by hand: labels that stand in them are theirs.
    """

    transport: str = "stdio"
    preset: tuple[tuple[str, Labels], ...] = ()
    declared: bool = False


@dataclass(frozen=True, slots=True)
class _Clues:
    """A tool in words: of its name, of its first sentence, and its arguments."""

    name: frozenset[str]
    first: str
    said: frozenset[str]
    arguments: Mapping[str, Any]
    text: str

    @property
    def reads(self) -> bool:
        """Tell whether the name begins with a deed that only looks."""
        return self.first in READS or (not self.first_makes and bool(self.name & READS))

    @property
    def first_makes(self) -> bool:
        """Tell whether the name begins with a deed that makes, sends or runs something."""
        return self.first in MAKES | SENDS | RUNS


def origin(transport: str, preset: object = None, *, declared: bool = False) -> Origin:
    """Return what is known of a server; `preset` are a preset's labels: a list, or by tool."""
    if isinstance(preset, Mapping):
        pairs = tuple((str(name), read(labels)) for name, labels in preset.items())
    else:
        found = read(preset)
        pairs = (("*", found),) if found else ()
    return Origin(transport, pairs, declared)


def read(said: object) -> Labels:
    """Return labels as they are written in files: `private-data` or `private_data`, once each."""
    if not isinstance(said, Collection) or isinstance(said, str):
        return ()
    found = {str(one).replace("-", "_") for one in said}
    return tuple(label for label in Label if label in found)


def suggested(kind: str, payload: Mapping[str, Any], known: Origin) -> Labels:
    """Return the labels of a definition before anybody has set any, in a fixed order."""
    if known.declared and (said := declared_labels(payload)) is not None:
        return read(said)
    found = _flowing(kind, payload, known)
    again = kind == "tool" and _is_repeatable(payload, known)
    return (*found, Label.REPEATABLE) if again else found


def _flowing(kind: str, payload: Mapping[str, Any], known: Origin) -> Labels:
    if kind in ("resource", "resource_template"):
        return _resource(known)
    if kind != "tool":
        return ()
    by_preset = dict(known.preset)
    name = str(payload.get("name") or "")
    if name in by_preset:
        return _with_hints(set(by_preset[name]), payload)
    if known.transport == "openapi":
        return _with_hints(_operation(payload), payload)
    clues = _clues(payload)
    found = _tool(clues, known)
    if "*" in by_preset and not _is_pure(clues):
        found = _by_server(found, frozenset(by_preset["*"]), clues)
    return _with_hints(found, payload)


def wider(suggestion: Collection[str], labels: Collection[str] | None) -> Labels:
    """Return what a suggestion has and the set labels lack; nothing where none were set."""
    return () if labels is None else tuple(one for one in BITS if one in {*suggestion} - {*labels})


def _is_repeatable(payload: Mapping[str, Any], known: Origin) -> bool:
    """Tell whether a second call does no more than the first (FEATURES X6).

    A preset may say so. For operations of an API our own annotations do, which its method made;
    else the server must say that the tool only reads, and its name and arguments must look so.
    """
    if Label.REPEATABLE in dict(known.preset).get(str(payload.get("name") or ""), ()):
        return True
    said = payload.get("annotations")
    hints = said if isinstance(said, Mapping) else {}
    if known.transport == "openapi":
        return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True
    clues = _clues(payload)
    looks = _is_pure(clues) or (clues.reads and not _sends(clues))
    return looks and hints.get("readOnlyHint") is True


def _resource(known: Origin) -> Labels:
    of_server = dict(known.preset).get("*")
    if of_server is None:
        return (Label.PRIVATE_DATA,)
    return tuple(label for label in of_server if label in SEEN) or (Label.PRIVATE_DATA,)


def _operation(payload: Mapping[str, Any]) -> set[Label]:
    """Return the labels of an API's operation: our own annotation says whether it only reads."""
    hints = payload.get("annotations")
    only_reads = isinstance(hints, Mapping) and hints.get("readOnlyHint") is True
    found = {Label.PRIVATE_DATA if only_reads else Label.SENDS_OUT}
    return found | ({Label.SENDS_OUT} if _has_address(_arguments(payload)) else set())


def _by_server(found: set[Label], server: frozenset[Label], clues: _Clues) -> set[Label]:
    """Return a tool's labels where the catalogue knows its server.

    What may be seen there holds for all its tools; which of them send is told by the tool.
    """
    seen = server & frozenset(SEEN)
    sends = Label.SENDS_OUT in found or (Label.SENDS_OUT in server and not clues.reads)
    return {*seen, *((Label.SENDS_OUT,) if sends else ())}


def _with_hints(found: set[Label], payload: Mapping[str, Any]) -> Labels:
    hints = payload.get("annotations")
    if isinstance(hints, Mapping) and hints.get("openWorldHint") is True:
        found = found | {Label.UNTRUSTED_CONTENT}
    return tuple(label for label in BITS if label in found)


def _tool(clues: _Clues, known: Origin) -> set[Label]:
    if _is_pure(clues):
        return set()
    things = clues.name - FILLER
    # Words of the description count where the name has none that is known.
    if not things & (PRIVATE | UNTRUSTED):
        things |= clues.said
    found = {Label.SENDS_OUT} if _sends(clues) else set()
    if not _only_makes(clues):
        found |= {Label.PRIVATE_DATA} if things & PRIVATE - _AMBIGUOUS else set()
        found |= {Label.UNTRUSTED_CONTENT} if _untrusted(clues, things) else set()
    if found or _only_makes(clues):
        return found | _unknown_way_out(clues, known)
    return {*SEEN} | _unknown_way_out(clues, known)


# A page is private in a notebook and public on the web: there it is no clue alone.
_AMBIGUOUS = frozenset({"page"})


def _untrusted(clues: _Clues, things: frozenset[str]) -> bool:
    if things & UNTRUSTED or _has_address(clues.arguments):
        return True
    # A search with nothing of one's own to search in is one of the web.
    return "search" in clues.name and not things & PRIVATE


def _only_makes(clues: _Clues) -> bool:
    return clues.first_makes and clues.first not in ("open", "review", *RUNS, *_ALSO_READS)


# They answer with what came back.
_ALSO_READS = frozenset({"curl", "wget", "request", "navigate"})


def _sends(clues: _Clues) -> bool:
    names = _names(clues.arguments)
    if _has_address(clues.arguments) or (names & RECIPIENTS and names & TEXTS):
        return True
    if clues.name & _SHELLS or (clues.name & RUNS and (clues.name | names) & CODE):
        return True
    if clues.reads:
        return False
    if clues.first in SENDS or clues.name & SENDS & _ANYWHERE:
        return True
    if clues.first in MAKES and clues.name & PUBLIC:
        return True
    return not clues.name & LOCAL and bool(_SAYS_SENDS.search(clues.text))


_SHELLS = frozenset({"bash", "eval", "exec", "shell", "ssh", "terminal"})
_ANYWHERE = frozenset({"broadcast", "notify", "publish", "push", "send", "tweet", "upload"})


def _unknown_way_out(clues: _Clues, known: Origin) -> set[Label]:
    """Text given to what changes something at a server elsewhere may be read by others there."""
    shared = bool((clues.name | _names(clues.arguments)) & {"repo", "repository", "remote"})
    elsewhere = shared or (known.transport != "stdio" and not clues.name & LOCAL)
    takes_text = any(_is_text(one) for one in clues.arguments.values())
    if elsewhere and takes_text and not clues.reads:
        return {Label.SENDS_OUT}
    return set()


def _is_pure(clues: _Clues) -> bool:
    """Tell whether all words of the name are of calculating, clocks and the like."""
    of_note = clues.name - FILLER
    if not clues.name or not of_note <= PURE or (not of_note and clues.name != {"test"}):
        return False
    return not _has_address(clues.arguments) and not _names(clues.arguments) & (CODE | RECIPIENTS)


def _clues(payload: Mapping[str, Any]) -> _Clues:
    name = _words(str(payload.get("name") or "")[:512])
    description = payload.get("description")
    text = description[:READ_AT_MOST] if isinstance(description, str) else ""
    sentence = re.split(r"[.\n]", text.strip(), maxsplit=1)[0]
    deeds = READS | MAKES | SENDS | RUNS
    return _Clues(
        name=frozenset(name),
        first=next((word for word in name if word in deeds), ""),
        said=frozenset(_words(sentence)) & (PRIVATE | UNTRUSTED),
        arguments=_arguments(payload),
        text=text,
    )


def _words(text: str) -> list[str]:
    """Return the words of a name or sentence in small letters, each in its singular."""
    return [_singular(word.lower()) for word in _WORD.findall(text)]


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("ses", "xes", "ches", "shes")) and word[:-2] in PRIVATE | UNTRUSTED | PUBLIC:
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is", "dns", "rss", "sms", "js")):
        return word[:-1]
    return word


def _arguments(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = payload.get("inputSchema")
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return dict(list(found.items())[:ARGUMENTS_AT_MOST])


def _names(arguments: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(word for name in arguments for word in _argument_words(name))


def _argument_words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name[:200]))


def _has_address(arguments: Mapping[str, Any]) -> bool:
    """Tell whether an argument is an address: whoever chooses it chooses who is told."""
    for name, schema in arguments.items():
        words = _argument_words(name)
        if words and words[-1] in ADDRESSES and _may_be_text(schema):
            return True
        if isinstance(schema, Mapping) and schema.get("format") in ("uri", "iri", "url"):
            return True
    return False


def _is_text(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string" and "enum" not in schema


def _may_be_text(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return True
    return schema.get("type") not in ("boolean", "integer", "number") and "enum" not in schema
