"""Extract clues from a tool's declaration: its action, subjects, location and arguments (pure).

They come from words (`label_words.toml`) in the name, the first sentence of the description and the
argument names. `inference` derives labels from them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mcp_servers.flow_labels.label_words import verbs, words

READ_AT_MOST = 4_096
ARGUMENTS_AT_MOST = 200
CHOICES_AT_MOST = 50
# A description has its verb among the first words, if at all.
_VERB_WITHIN = 8
_VAGUE_WITHIN = 3
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*|\d+")
_SPOKEN = re.compile(r"[a-z]+\d*")
_ENDS = re.compile(r"[.\n]\s|[.\n]$|\n")
_OPEN_PAGE = re.compile(r"\b(?:current|web)\s+page\b")
# Anywhere in a description, an external effect; negations are ignored, to be safe.
_SAYS_SENDS = re.compile(
    r"\b(?:send|post|publish|forward|upload|transmit|deliver)(?:s|ing|es)?\s+"
    r"(?:\w+\s+){0,4}(?:to|an?|the|e?mails?|messages?|via|over)\b"
    r"|\bmakes?\s+(?:an?\s+)?(?:http|web|api|network)\s+(?:request|call)s?\b"
    r"|\bweb\s?hooks?\b|\bout(?:going|bound)\b|\bruns?\s+(?:a\s+)?(?:shell|command|script)s?\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ToolClues:
    """The words of a tool's name and first sentence, in order, and its arguments."""

    name: tuple[str, ...]
    sentence: tuple[str, ...]
    text: str
    arguments: Mapping[str, Any]

    @cached_property
    def named(self) -> frozenset[str]:
        """Return the words of the name without filler words."""
        return frozenset(self.name) - words("other", "filler")

    @cached_property
    def things(self) -> frozenset[str]:
        """Return the words of the name, with known ones of the sentence if the name has none."""
        known = words("things", "private") | words("things", "untrusted")
        known |= words("things", "web") | words("things", "published")
        return self.named if self.named & known else self.named | (frozenset(self.sentence) & known)

    @cached_property
    def deed(self) -> str:
        """Return the action: `read`, `change`, `send`, `act`, `run`, `look` …, or "".

        From a clear verb of the name, else the description's verb, else a vague verb of the name.
        """
        if {"or", "and"} & {*self.name} and any(_clear(word) == "change" for word in self.name):
            return "change"
        if self.name and self.name[-1] in words("other", "closing"):
            return "read"
        if found := _first(_clear, self.name):
            return found
        if self.chooses & {"change", "send"}:
            return "change"
        spoken = self.sentence[:_VERB_WITHIN]
        return (
            _first(_clear, spoken)
            or _first(_vague, spoken[:_VAGUE_WITHIN])
            or _first(_vague, self.name)
        )

    @cached_property
    def is_deed_a_guess(self) -> bool:
        """Tell whether the action comes only from a vague word of the name (`git_branch`)."""
        spoken = self.sentence[:_VERB_WITHIN]
        said = _first(_clear, (*self.name, *spoken)) or _first(_vague, spoken[:_VAGUE_WITHIN])
        return bool(self.deed) and not said and not self.chooses

    @cached_property
    def is_named_a_reader(self) -> bool:
        """Tell whether the name has a clear or vague verb for reading."""
        return any("read" in (_clear(word), _vague(word)) for word in self.name)

    @cached_property
    def chooses(self) -> frozenset[str]:
        """Return the actions that an argument selects from (`action`: `list`, `delete`)."""
        found = set()
        for name, schema in self.arguments.items():
            listed = schema.get("enum") if isinstance(schema, Mapping) else None
            if name.lower() in words("arguments", "choice") and isinstance(listed, list):
                for value in listed[:CHOICES_AT_MOST]:
                    found |= {_clear(word) or _vague(word) for word in split_words(str(value)[:80])}
        return frozenset(found - {""})

    @cached_property
    def argument_words(self) -> frozenset[str]:
        """Return the words of the argument names."""
        return frozenset(word for name in self.arguments for word in argument_words(name))

    @cached_property
    def has_address(self) -> bool:
        """Tell whether an argument is an address, so that the caller selects the destination."""
        return any(_is_address(name, schema) for name, schema in self.arguments.items())

    @cached_property
    def has_url(self) -> bool:
        """Tell whether an argument is a URL by its full name: its content is returned."""
        return bool({name.lower() for name in self.arguments} & words("arguments", "url"))

    @cached_property
    def names_recipients(self) -> bool:
        """Tell whether the arguments include a recipient and a text."""
        recipients = words("arguments", "recipient")
        split = [argument_words(name) for name in self.arguments]
        named = any(parts and {parts[0], parts[-1]} & recipients for parts in split)
        return named and bool(self.argument_words & words("arguments", "text"))

    @cached_property
    def runs_code(self) -> bool:
        """Tell whether the tool runs code from its arguments."""
        if {*self.name} & words("things", "shell"):
            return True
        if any(
            name.lower() in words("arguments", "command") and may_be_text(schema)
            for name, schema in self.arguments.items()
        ):
            return True
        runs = self.deed == "run" or bool({*self.name} & words("verbs", "run"))
        code = words("things", "code") | {"function", "expression"}
        return runs and bool(({*self.name} | self.argument_words) & code)

    @cached_property
    def is_in_browser(self) -> bool:
        """Tell whether the tool controls a browser."""
        said = {*self.name, *self.sentence}
        if said & words("things", "browser") or {*self.name} & words("verbs", "act"):
            return True
        if {name.lower() for name in self.arguments} & words("arguments", "page_part"):
            return True
        return not self.is_at_service and bool(_OPEN_PAGE.search(" ".join(self.sentence)))

    @cached_property
    def is_at_service(self) -> bool:
        """Tell whether arguments look like those of a shared service: owners, tenants, IDs."""
        if self.argument_words & words("things", "service") and not self._names_clone:
            return True
        return any(_is_id(name) for name in self.arguments)

    @property
    def _names_clone(self) -> bool:
        """Tell whether the repository is a local folder (`repo_path`)."""
        return not self.argument_words & (words("things", "service") - {"repo"}) and any(
            {"repo", "path"} <= {*argument_words(name)} for name in self.arguments
        )

    @cached_property
    def is_local(self) -> bool:
        """Tell whether the tool works on local data that others can't read."""
        if self.is_at_service:
            return False
        local = words("things", "local") | words("things", "at_hand")
        known = {*self.name} if {*self.name} & local else {*self.sentence}
        paths = self.argument_words & words("arguments", "path")
        return bool(known & local) or self._names_clone or bool(paths)

    @cached_property
    def is_named_local(self) -> bool:
        """Tell whether the name, or a local clone in the arguments, says that the data is local."""
        named = bool({*self.name} & words("things", "local"))
        return self.is_local and (named or self._names_clone)

    @cached_property
    def is_own(self) -> bool:
        """Tell whether the tool organizes a person's own data without notifying others."""
        if self.deed == "send" or self.argument_words & words("things", "service"):
            return False
        return bool({*self.name} & words("things", "own"))

    @cached_property
    def is_pure(self) -> bool:
        """Tell whether all words of the name are about calculations, clocks and similar."""
        if not self.name or not self.named <= words("other", "pure"):
            return False
        if not self.named and {*self.name} != {"test"}:
            return False
        risky = words("things", "code") | words("arguments", "recipient")
        risky |= words("things", "local") | words("things", "service")
        return not self.has_address and not self.argument_words & risky

    @cached_property
    def says_it_sends(self) -> bool:
        """Tell whether the description mentions sending."""
        return bool(_SAYS_SENDS.search(self.text))


def read_clues(payload: Mapping[str, Any]) -> ToolClues:
    """Return the clues in a declaration; never raises."""
    description = payload.get("description")
    text = description[:READ_AT_MOST] if isinstance(description, str) else ""
    sentence = _ENDS.split(text.strip(), maxsplit=1)[0].lower()
    return ToolClues(
        name=tuple(split_words(str(payload.get("name") or "")[:512])),
        sentence=tuple(singular(word) for word in _SPOKEN.findall(sentence)),
        text=text,
        arguments=_arguments(payload),
    )


def split_words(text: str) -> list[str]:
    """Return the words of a name in lower case and singular."""
    return [singular(word.lower()) for word in _WORD.findall(text)]


def singular(word: str) -> str:
    """Return the singular of a word."""
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("sses", "xes", "ches", "shes")) or word in ("aliases", "statuses"):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is", "dns", "rss", "sms", "js")):
        return word[:-1]
    return word


def argument_words(name: str) -> tuple[str, ...]:
    """Return the words of an argument's name in lower case."""
    return tuple(word.lower() for word in _WORD.findall(name[:200]))


def may_be_text(schema: Any) -> bool:
    """Tell whether an argument accepts free text."""
    if not isinstance(schema, Mapping):
        return True
    return schema.get("type") not in ("boolean", "integer", "number") and "enum" not in schema


def _clear(word: str) -> str:
    return _kind(word, "verbs")


def _vague(word: str) -> str:
    return _kind(word, "vague")


def _first(kind_of: Callable[[str], str], spoken: Iterable[str]) -> str:
    return next((kind for word in spoken if (kind := kind_of(word))), "")


def _kind(word: str, section: str) -> str:
    """Return the action of a verb, whatever its ending."""
    known = verbs(section)
    forms: Iterable[str] = (word, word.removesuffix("e"), word.removesuffix("ing"))
    return next((known[form] for form in forms if form in known), "")


def _arguments(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = payload.get("inputSchema")
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {str(name): one for name, one in list(found.items())[:ARGUMENTS_AT_MOST]}


def _is_address(name: str, schema: Any) -> bool:
    parts = argument_words(name)
    ends = {parts[-1], "".join(parts[-2:])} if parts else set()
    if ends & words("arguments", "address") and may_be_text(schema):
        return True
    return isinstance(schema, Mapping) and schema.get("format") in ("uri", "iri", "url")


def _is_id(name: str) -> bool:
    parts = argument_words(name)
    if len(parts) < 2 or parts[-1] not in ("id", "ids"):
        return False
    return not {*parts} & words("things", "at_hand")
