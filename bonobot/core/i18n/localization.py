"""Localize messages and times for the reader.

The database, logs and programs use English (`bonobot.core.i18n.messages`). A stored message is
translated by finding the catalog template that it matches. Text without a template, such as a
server's message, stays as it is.

Database values, reports, budget days and filters are UTC, and so is Django's current time zone, so
results don't depend on the reader. Only times shown to a person use the zone that they chose, with
its name.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from functools import cache, lru_cache
from gettext import GNUTranslations
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from asgiref.local import Local
from django.conf import settings
from django.utils.translation import get_language, gettext

from bonobot.core.i18n.messages import TemplatePart, TranslatableMessage, split_template
from bonobot.core.problems import Problem

# Longer texts, and texts with more sentences, aren't our messages.
MAX_MESSAGE = 4_000
MOST_SENTENCES = 12
# Templates with fewer letters outside of placeholders would match anything.
FEWEST_LETTERS = 8
# Placeholders whose values are our own words, such as the kind of an object.
NOUNS = frozenset({"{noun}", "{kind}", "{unit}", "{period}", "{parameter}"})
ENDS = (". ", ".\n", "? ", "; ")


class TranslatedTemplate(NamedTuple):
    """A template and its translation."""

    parts: tuple[TemplatePart, ...]
    translated: str


def localize_text(text: object) -> str:
    """Return a problem or message in the reader's language; other text unchanged."""
    said = text.detail if isinstance(text, Problem) else text
    whole = said if isinstance(said, str) else str(said if said is not None else "")
    language = get_language() or settings.LANGUAGE_CODE
    return whole if language == settings.LANGUAGE_CODE else _localize(whole, language)


def localize_if_translatable(text: str) -> str:
    """Return a `TranslatableMessage` in the reader's language; other text unchanged.

    Plain strings aren't translated, because untrusted text may look like our messages.
    """
    return localize_text(text) if isinstance(text, TranslatableMessage) else text


def localize_problem(problem: Problem) -> str:
    """Return a problem's detail and remedy in the reader's language."""
    return f"{localize_text(problem)} {localize_text(problem.remedy)}".strip()


def _localize(text: str, language: str) -> str:
    if isinstance(text, TranslatableMessage):
        return _fill_translated_template(gettext(text.template), text.holes, language)
    return text if len(text) > MAX_MESSAGE else _read_back(text, language)


@lru_cache(maxsize=2_048)
def _read_back(text: str, language: str) -> str:
    """Translate a stored text, sentence by sentence."""
    said, rest = [], text
    for _ in range(MOST_SENTENCES):
        end, found = _translate_first_sentence(rest, language)
        said.append(found + rest[len(rest[:end].rstrip()) : end])
        rest = rest[end:]
        if not rest:
            break
    return "".join(said) + rest


def _translate_first_sentence(text: str, language: str) -> tuple[int, str]:
    """Return the end of the first sentence of a text, and its translation.

    Matches whose placeholder values contain several sentences (untrusted text) are tried last.
    """
    ends = _find_sentence_ends(text)
    for within in (False, True):
        for end in ends:
            found = _translate_sentence(text[:end].rstrip(), language, sentences=within)
            if found is not None:
                return end, found
    return ends[-1], text[: ends[-1]].rstrip()


def _find_sentence_ends(text: str) -> list[int]:
    """Return the possible ends of the first sentence of a text, the longest first."""
    found = {len(text)}
    for mark in ENDS:
        at = text.find(mark)
        while at >= 0 and len(found) <= MOST_SENTENCES:
            found.add(at + len(mark))
            at = text.find(mark, at + 1)
    return sorted(found, reverse=True)


def _translate_sentence(text: str, language: str, *, sentences: bool) -> str | None:
    """Return the translation of a message, or None.

    `allow_sentences` allows several sentences in placeholder values.
    """
    plain, templates = _read_translations(language)
    if found := plain.get(text):
        return found
    for template in (*templates[text.partition(" ")[0]], *templates[""]):
        holes = _match_template(template.parts, text)
        if holes is not None and (sentences or not any(map(_has_sentence_end, holes.values()))):
            return _fill_translated_template(template.translated, holes, language)
    return None


def _has_sentence_end(text: str) -> bool:
    return any(mark in text for mark in ENDS)


@lru_cache(maxsize=8)
def _read_translations(language: str) -> tuple[dict[str, str], dict[str, list[TranslatedTemplate]]]:
    """Return the fixed messages of a language's catalog, and its templates by first word."""
    plain, templates = {}, defaultdict[str, list[TranslatedTemplate]](list)
    for text, translated in _read_catalog(language):
        try:
            parts = tuple(split_template(text))
        except ValueError:
            parts = ()
        if not any(one.hole for one in parts):
            plain[text] = translated
        elif sum(letter.isalpha() for one in parts for letter in one.words) >= FEWEST_LETTERS:
            first, space, _rest = parts[0].words.partition(" ")
            templates[first if space else ""].append(TranslatedTemplate(parts, translated))
    for several in templates.values():
        several.sort(key=lambda one: -sum(len(part.words) for part in one.parts))
    return plain, templates


def _read_catalog(language: str) -> Iterator[tuple[str, str]]:
    for folder in settings.LOCALE_PATHS:
        path = folder / language / "LC_MESSAGES" / "django.mo"
        if path.exists():
            with path.open("rb") as file:
                found: dict[object, str] = GNUTranslations(file)._catalog  # type: ignore[attr-defined]
            yield from ((key, text) for key, text in found.items() if isinstance(key, str) and key)


def _match_template(parts: tuple[TemplatePart, ...], text: str) -> dict[str, str] | None:
    """Return the placeholder values if `text` matches a template, or else None.

    Without backtracking, so that it runs in linear time.
    """
    if not text.startswith(parts[0].words):
        return None
    found: dict[str, str] = {}
    at = len(parts[0].words)
    for before, after in zip(parts, (*parts[1:], TemplatePart("")), strict=True):
        if not before.hole:
            break
        last = after.hole == ""
        end = len(text) - len(after.words) if last else text.find(after.words, at)
        if end < at or not text.startswith(after.words, end):
            return None
        if found.setdefault(before.hole, text[at:end]) != text[at:end]:
            return None
        at = end + len(after.words)
    return found if at == len(text) else None


def _fill_translated_template(template: str, holes: Mapping[str, str], language: str) -> str:
    return "".join(
        one.words + _translate_value(one.hole, holes.get(one.hole, one.hole), language)
        for one in split_template(template)
    )


def _translate_value(hole: str, value: str, language: str) -> str:
    """Return a placeholder's value: our own phrases and sentences translated, names unchanged."""
    if isinstance(value, TranslatableMessage):
        return _localize(value, language)
    if hole in NOUNS:
        return _read_translations(language)[0].get(value, value)
    ours = " " in value and (value[0].islower() or value.endswith("."))
    return (ours and _translate_sentence(value, language, sentences=True)) or value


# The IANA database also has legacy names, and fixed offsets without daylight saving time.
AREAS = frozenset(
    (
        *("Africa", "America", "Antarctica", "Arctic", "Asia"),
        *("Atlantic", "Australia", "Europe", "Indian", "Pacific"),
    )
)
MAX_ZONE_NAME = 64  # characters of a name
_reader = Local()


@cache
def list_time_zones() -> frozenset[str]:
    """Return the time zones that a person can choose."""
    return frozenset(one for one in available_timezones() if one.partition("/")[0] in AREAS)


def read_in(name: str) -> None:
    """Format the times of this request in a zone; UTC if the name is blank or unknown."""
    _reader.zone = ZoneInfo(name) if name in list_time_zones() else UTC


def format_datetime(moment: datetime, *, seconds: bool = False) -> str:
    """Return a time in the reader's zone with its name: `2026-11-23 06:14 CET`."""
    zone: tzinfo = getattr(_reader, "zone", UTC)
    local = moment.astimezone(zone)
    name = local.tzname() or ""
    # Zones without an abbreviation are named by their offset.
    called = name if name.isalpha() else f"UTC{name}"
    return f"{local:%Y-%m-%d %H:%M:%S} {called}" if seconds else f"{local:%Y-%m-%d %H:%M} {called}"
