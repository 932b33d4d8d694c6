"""Clean and inspect tool results (pure).

Clients of the gateway get a server's JSON unchanged, except for invisible characters.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bonobot.core.records import record
from bonobot.core.text.untrusted_text import format_path_step, make_visible
from mcp_servers.scanning.active_content import strip_active_content
from mcp_servers.scanning.hidden_text import (
    HiddenRun,
    count_suspicious_characters,
    find_hidden_runs,
    has_suspicious_characters,
    strip_suspicious_characters,
)
from mcp_servers.scanning.prompt_injection import count_injections

# Removing a run may join two others, so the rest is checked again.
_MAX_PASSES = 2
# No language has more suspicious characters than this, and more than one in six.
_MAX_SUSPICIOUS_CHARACTERS = 4_096


@dataclass(frozen=True, slots=True)
class CleanedText:
    """A text without hidden characters, and the number of characters removed by rule."""

    text: str
    removed: dict[str, int]

    @property
    def removed_count(self) -> int:
        """Return how many characters were removed."""
        return sum(self.removed.values())


@dataclass(frozen=True, slots=True)
class InspectedText:
    """A text that is safe for our own models.

    `sanitized` counts removed characters and neutralized places by rule, `flagged` the places that
    look like instructions to the model.
    """

    text: str
    sanitized: dict[str, int]
    flagged: dict[str, int]


def clean_result(text: str) -> CleanedText:
    """Return `text` without hidden characters and terminal sequences.

    Takes up to 0.3 s for 256 KiB of hostile text: keep more than 16 KiB off the loop.
    """
    if not has_suspicious_characters(text):
        return CleanedText(text, {})
    removed: Counter[str] = Counter()
    is_flooded = count_suspicious_characters(text) > max(_MAX_SUSPICIOUS_CHARACTERS, len(text) // 6)
    for _ in range(0 if is_flooded else _MAX_PASSES):
        text, removed_in_pass = _remove_runs(text, find_hidden_runs(text))
        if not removed_in_pass:
            return CleanedText(text, dict(removed))
        removed += removed_in_pass
    # Still not stable, or far too many: remove every suspicious character.
    cleaned = strip_suspicious_characters(text)
    removed["flood"] = len(text) - len(cleaned)
    return CleanedText(cleaned, dict(+removed))


def inspect_result(text: str) -> InspectedText:
    """Return `text` without hidden characters and active content, and what was found in it.

    Active content is replaced by a note or escaped (`active_content`).
    Takes up to 1 s for 256 KiB of hostile text: keep more than 16 KiB off the loop.
    """
    cleaned = clean_result(text)
    safe_text, active_content = strip_active_content(cleaned.text)
    return InspectedText(
        safe_text, {**cleaned.removed, **active_content}, count_injections(cleaned.text)
    )


def _remove_runs(text: str, runs: Iterable[HiddenRun]) -> tuple[str, Counter[str]]:
    removed: Counter[str] = Counter()
    parts: list[str] = []
    position = 0
    for run in runs:
        parts.append(text[position : run.start])
        removed[run.rule] += run.end - run.start
        position = run.end
    return "".join((*parts, text[position:])) if removed else text, removed


MAX_PLACES: Final = 50
# These fields hold Base64.
_BINARY_FIELDS: Final = {"image": "data", "audio": "data"}


@record()
class StrippedValue:
    """A JSON value without hidden characters.

    `removed` counts characters by rule; `places` are the JSON paths of the first fifty changed
    strings, with the rules (`… (key)` for a key).
    """

    value: Any
    removed: dict[str, int]
    places: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def is_changed(self) -> bool:
        """Tell whether anything was removed."""
        return bool(self.removed)


def strip_json_value(value: Any) -> StrippedValue:
    """Return a JSON value without hidden characters in its strings and keys.

    Returns the value itself if nothing was removed, else a copy. Binary parts (`data` of images and
    audio, `blob`) and the order of lists and objects are kept. Linear in size: keep more than 16
    KiB off the loop (`strip_result`).
    """
    if not _may_have_hidden_text(value):
        return StrippedValue(value, {})
    removed: Counter[str] = Counter()
    places: list[tuple[str, tuple[str, ...]]] = []
    root: list[Any] = [value]
    pending: list[tuple[Any, Any, str]] = [(root, 0, "$")]
    while pending:
        container, key, path = pending.pop()
        node = container[key]
        if isinstance(node, str):
            cleaned = _clean_text(node, path, removed, places)
            if cleaned is not node:
                container[key] = cleaned
        elif isinstance(node, Mapping):
            cleaned_object = container[key] = dict(_clean_keys(node, path, removed, places))
            pending.extend(
                (cleaned_object, name, f"{path}{format_path_step(name)}")
                for name in reversed(_list_text_fields(cleaned_object))
            )
        elif isinstance(node, list | tuple):
            cleaned_list = container[key] = list(node)
            pending.extend(
                (cleaned_list, i, f"{path}[{i}]") for i in reversed(range(len(cleaned_list)))
            )
    return StrippedValue(root[0] if removed else value, dict(removed), tuple(places))


def _may_have_hidden_text(value: Any) -> bool:
    """Tell whether any string or key may have hidden characters; a quick check for most values."""
    texts: list[str] = []
    level: list[Any] = [value]
    while level:
        children: list[Any] = []
        for node in level:
            if isinstance(node, str):
                texts.append(node)
            elif isinstance(node, dict):
                texts += map(str, node)
                children += node.values()
            elif isinstance(node, list | tuple):
                children += node
            elif isinstance(node, Mapping):
                return True
        level = children
    return has_suspicious_characters("\n".join(texts))


def _list_text_fields(node: Mapping[str, Any]) -> list[str]:
    """Return the fields that may contain text."""
    binary = _BINARY_FIELDS.get(str(node.get("type")), "")
    return [name for name in node if name not in ("blob", binary)]


def _clean_keys(
    node: Mapping[Any, Any],
    path: str,
    removed: Counter[str],
    places: list[tuple[str, tuple[str, ...]]],
) -> Iterator[tuple[str, Any]]:
    """Yield fields with cleaned names; a duplicate name shows its hidden characters instead."""
    used_names = {str(name) for name in node}
    for name, field_value in node.items():
        text = str(name)
        cleaned = _clean_text(text, f"{path}{format_path_step(text)} (key)", removed, places)
        if cleaned != text and cleaned in used_names:
            cleaned = make_visible(text)
        used_names.add(cleaned)
        yield cleaned, field_value


def _clean_text(
    text: str,
    path: str,
    removed: Counter[str],
    places: list[tuple[str, tuple[str, ...]]],
) -> str:
    cleaned = clean_result(text)
    if not cleaned.removed:
        return text
    removed.update(cleaned.removed)
    if len(places) < MAX_PLACES:
        places.append((path, tuple(sorted(cleaned.removed))))
    return cleaned.text
