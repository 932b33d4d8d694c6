"""Translating: our English sentences in the language of whoever reads them on a screen.

Rows, logs and programs keep the English (`bonobot.lib.sayings`). A sentence that was stored is read
back from its words: a template of the catalogue whose words stand in it, one after the other, made
it, or could have. What is not found, such as what a server said, stays as it is.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from gettext import GNUTranslations
from typing import NamedTuple

from django.conf import settings
from django.utils.translation import get_language, gettext

from bonobot.lib.problems import Problem
from bonobot.lib.sayings import Piece, Saying, pieces

# Longer texts, and more sentences in one, are strangers': nothing of ours says so much.
LONGEST = 4_000
MOST_SENTENCES = 12
# Templates with fewer letters than these, outside of their holes, could have made anything.
FEWEST_LETTERS = 8
# What stands in these holes is a word of ours, such as what kind of thing something is.
NOUNS = frozenset({"{noun}", "{kind}", "{unit}", "{period}", "{parameter}"})
ENDS = (". ", ".\n", "? ", "; ")


class Template(NamedTuple):
    """A sentence with holes, and the same in the reader's language."""

    parts: tuple[Piece, ...]
    translated: str


def localized(text: object) -> str:
    """Return a problem or a sentence of ours in the reader's language, all else as it stands."""
    said = text.detail if isinstance(text, Problem) else text
    whole = said if isinstance(said, str) else str(said if said is not None else "")
    language = get_language() or settings.LANGUAGE_CODE
    return whole if language == settings.LANGUAGE_CODE else _said(whole, language)


def ours(text: str) -> str:
    """Return a text of ours in the reader's language, and a stranger's as it stands.

    Only what still knows that it is a `Saying` is ours: a stranger may use our words.
    """
    return localized(text) if isinstance(text, Saying) else text


def whole(problem: Problem) -> str:
    """Return what happened and what to do next, in the reader's language."""
    return f"{localized(problem)} {localized(problem.remedy)}".strip()


def _said(text: str, language: str) -> str:
    if isinstance(text, Saying):
        return _in_template(gettext(text.template), text.holes, language)
    return text if len(text) > LONGEST else _read_back(text, language)


@lru_cache(maxsize=2_048)
def _read_back(text: str, language: str) -> str:
    """Return a stored text, sentence by sentence."""
    said, rest = [], text
    for _ in range(MOST_SENTENCES):
        end, found = _first(rest, language)
        said.append(found + rest[len(rest[:end].rstrip()) : end])
        rest = rest[end:]
        if not rest:
            break
    return "".join(said) + rest


def _first(text: str, language: str) -> tuple[int, str]:
    """Return where the first sentence of a text ends, and what it is in a language.

    What stands in a hole may be a stranger's, of several sentences; that is looked for last.
    """
    ends = _ends(text)
    for within in (False, True):
        for end in ends:
            found = _sentence(text[:end].rstrip(), language, sentences=within)
            if found is not None:
                return end, found
    return ends[-1], text[: ends[-1]].rstrip()


def _ends(text: str) -> list[int]:
    """Return where the first sentences of a text may end, the longest way first."""
    found = {len(text)}
    for mark in ENDS:
        at = text.find(mark)
        while at >= 0 and len(found) <= MOST_SENTENCES:
            found.add(at + len(mark))
            at = text.find(mark, at + 1)
    return sorted(found, reverse=True)


def _sentence(text: str, language: str, *, sentences: bool) -> str | None:
    """Return a sentence of ours in a language, or None; `sentences` may be in its holes."""
    plain, templates = _known(language)
    if found := plain.get(text):
        return found
    for template in (*templates[text.partition(" ")[0]], *templates[""]):
        holes = _holes(template.parts, text)
        if holes is not None and (sentences or not any(map(_ends_within, holes.values()))):
            return _in_template(template.translated, holes, language)
    return None


def _ends_within(text: str) -> bool:
    return any(mark in text for mark in ENDS)


@lru_cache(maxsize=8)
def _known(language: str) -> tuple[dict[str, str], dict[str, list[Template]]]:
    """Return the sentences of a language's catalogue, and its templates by their first word."""
    plain, templates = {}, defaultdict[str, list[Template]](list)
    for text, translated in _catalogue(language):
        try:
            parts = tuple(pieces(text))
        except ValueError:
            parts = ()
        if not any(one.hole for one in parts):
            plain[text] = translated
        elif sum(letter.isalpha() for one in parts for letter in one.words) >= FEWEST_LETTERS:
            first, space, _rest = parts[0].words.partition(" ")
            templates[first if space else ""].append(Template(parts, translated))
    for several in templates.values():
        several.sort(key=lambda one: -sum(len(part.words) for part in one.parts))
    return plain, templates


def _catalogue(language: str) -> Iterator[tuple[str, str]]:
    for folder in settings.LOCALE_PATHS:
        path = folder / language / "LC_MESSAGES" / "django.mo"
        if path.exists():
            with path.open("rb") as file:
                found: dict[object, str] = GNUTranslations(file)._catalog  # type: ignore[attr-defined]
            yield from ((key, text) for key, text in found.items() if isinstance(key, str) and key)


def _holes(parts: tuple[Piece, ...], text: str) -> dict[str, str] | None:
    """Return what stands in the holes of a template that `text` was made of; None: it was not.

    It never goes back, so that it takes no longer than the text is long.
    """
    if not text.startswith(parts[0].words):
        return None
    found: dict[str, str] = {}
    at = len(parts[0].words)
    for before, after in zip(parts, (*parts[1:], Piece("")), strict=True):
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


def _in_template(template: str, holes: Mapping[str, str], language: str) -> str:
    return "".join(
        one.words + _nested(one.hole, holes.get(one.hole, one.hole), language)
        for one in pieces(template)
    )


def _nested(hole: str, value: str, language: str) -> str:
    """Return what stands in a hole: a name as it is, a phrase or sentence of ours translated."""
    if isinstance(value, Saying):
        return _said(value, language)
    if hole in NOUNS:
        return _known(language)[0].get(value, value)
    ours = " " in value and (value[0].islower() or value.endswith("."))
    return (ours and _sentence(value, language, sentences=True)) or value
