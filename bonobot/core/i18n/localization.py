"""Our sentences in the reader's language; time zones.

Rows, logs and programs keep the English (`bonobot.core.i18n.messages`). A sentence that was stored
is read back from its words: a template of the catalogue whose words stand in it, one after the
other, made it, or could have. What is not found, such as what a server said, stays as it is.

Rows, reports, budgets' days and filters are UTC, and so is Django's current time zone: nothing that
is counted or asked for shifts with who looks. Only how a moment is written for a person follows
the zone that they chose, and names it.
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

# Longer texts, and more sentences in one, are strangers': nothing of ours says so much.
MAX_MESSAGE = 4_000
MOST_SENTENCES = 12
# Templates with fewer letters than these, outside of their holes, could have made anything.
FEWEST_LETTERS = 8
# What stands in these holes is a word of ours, such as what kind of thing something is.
NOUNS = frozenset({"{noun}", "{kind}", "{unit}", "{period}", "{parameter}"})
ENDS = (". ", ".\n", "? ", "; ")


class TranslatedTemplate(NamedTuple):
    """A sentence with holes, and the same in the reader's language."""

    parts: tuple[TemplatePart, ...]
    translated: str


def localize_text(text: object) -> str:
    """Return a problem or a sentence of ours in the reader's language, all else as it stands."""
    said = text.detail if isinstance(text, Problem) else text
    whole = said if isinstance(said, str) else str(said if said is not None else "")
    language = get_language() or settings.LANGUAGE_CODE
    return whole if language == settings.LANGUAGE_CODE else _localize(whole, language)


def localize_if_translatable(text: str) -> str:
    """Return a text of ours in the reader's language, and a stranger's as it stands.

    Only what still knows that it is a `Saying` is ours: a stranger may use our words.
    """
    return localize_text(text) if isinstance(text, TranslatableMessage) else text


def localize_problem(problem: Problem) -> str:
    """Return what happened and what to do next, in the reader's language."""
    return f"{localize_text(problem)} {localize_text(problem.remedy)}".strip()


def _localize(text: str, language: str) -> str:
    if isinstance(text, TranslatableMessage):
        return _fill_translated_template(gettext(text.template), text.holes, language)
    return text if len(text) > MAX_MESSAGE else _read_back(text, language)


@lru_cache(maxsize=2_048)
def _read_back(text: str, language: str) -> str:
    """Return a stored text, sentence by sentence."""
    said, rest = [], text
    for _ in range(MOST_SENTENCES):
        end, found = _translate_first_sentence(rest, language)
        said.append(found + rest[len(rest[:end].rstrip()) : end])
        rest = rest[end:]
        if not rest:
            break
    return "".join(said) + rest


def _translate_first_sentence(text: str, language: str) -> tuple[int, str]:
    """Return where the first sentence of a text ends, and what it is in a language.

    What stands in a hole may be a stranger's, of several sentences; that is looked for last.
    """
    ends = _find_sentence_ends(text)
    for within in (False, True):
        for end in ends:
            found = _translate_sentence(text[:end].rstrip(), language, sentences=within)
            if found is not None:
                return end, found
    return ends[-1], text[: ends[-1]].rstrip()


def _find_sentence_ends(text: str) -> list[int]:
    """Return where the first sentences of a text may end, the longest way first."""
    found = {len(text)}
    for mark in ENDS:
        at = text.find(mark)
        while at >= 0 and len(found) <= MOST_SENTENCES:
            found.add(at + len(mark))
            at = text.find(mark, at + 1)
    return sorted(found, reverse=True)


def _translate_sentence(text: str, language: str, *, sentences: bool) -> str | None:
    """Return a sentence of ours in a language, or None; `sentences` may be in its holes."""
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
    """Return the sentences of a language's catalogue, and its templates by their first word."""
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
    """Return what stands in the holes of a template that `text` was made of; None: it was not.

    It never goes back, so that it takes no longer than the text is long.
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
    """Return what stands in a hole: a name as it is, a phrase or sentence of ours translated."""
    if isinstance(value, TranslatableMessage):
        return _localize(value, language)
    if hole in NOUNS:
        return _read_translations(language)[0].get(value, value)
    ours = " " in value and (value[0].islower() or value.endswith("."))
    return (ours and _translate_sentence(value, language, sentences=True)) or value


# The IANA database has older names beside these, and offsets, which know no summer.
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
    """Return the names that a person can choose: places, by area."""
    return frozenset(one for one in available_timezones() if one.partition("/")[0] in AREAS)


def read_in(name: str) -> None:
    """Write the moments of this request by a zone from now on; no name, or an unknown one: UTC."""
    _reader.zone = ZoneInfo(name) if name in list_time_zones() else UTC


def format_datetime(moment: datetime, *, seconds: bool = False) -> str:
    """Return a moment by the reader's clock, with the zone's name: `2026-11-23 06:14 CET`."""
    zone: tzinfo = getattr(_reader, "zone", UTC)
    local = moment.astimezone(zone)
    name = local.tzname() or ""
    # Zones without letters of their own are named by their offset.
    called = name if name.isalpha() else f"UTC{name}"
    return f"{local:%Y-%m-%d %H:%M:%S} {called}" if seconds else f"{local:%Y-%m-%d %H:%M} {called}"
