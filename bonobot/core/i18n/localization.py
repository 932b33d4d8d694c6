"""Localize messages, numbers, and days for the reader; for times, see `time_zones`.

The database, logs and programs use English (`bonobot.core.i18n.messages`). A stored message is
translated by finding the catalog template that it matches. Text without a template, such as a
server's message, stays as it is.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import lru_cache
from gettext import GNUTranslations
from typing import Any, NamedTuple

from django.conf import settings
from django.utils.formats import date_format, get_format
from django.utils.functional import Promise
from django.utils.text import capfirst
from django.utils.translation import get_language, gettext

from bonobot.core.i18n.messages import TemplatePart, TranslatableMessage, split_template
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_visible

# Longer texts, and texts with more sentences, aren't our messages.
MAX_MESSAGE = 4_000
MAX_SENTENCES = 12
# Templates with fewer letters outside of placeholders would match anything.
MIN_LETTERS = 8
# Placeholders whose values are our own words, such as the kind of an object, or lists of them.
NOUN_PLACEHOLDERS = frozenset(
    {
        *("{noun}", "{kind}", "{unit}", "{period}", "{parameter}"),
        *("{role}", "{who_may}", "{seen}", "{adds}"),
    }
)
NUMBER_PLACEHOLDER = re.compile(r"\{\w+:,?(\.\d+f)?\}")
MAX_NAME_LENGTH = 60
SENTENCE_ENDS = (". ", ".\n", "? ", "; ")


class TranslatedTemplate(NamedTuple):
    """A template and its translation."""

    parts: tuple[TemplatePart, ...]
    translation: str


def localize_text(text: object) -> str:
    """Return a problem or message in the reader's language; other text unchanged."""
    message = text.detail if isinstance(text, Problem) else text
    source_text = (
        message if isinstance(message, str) else str(message if message is not None else "")
    )
    language = get_language() or settings.LANGUAGE_CODE
    return source_text if language == settings.LANGUAGE_CODE else _localize(source_text, language)


def localize_if_translatable(text: str) -> str:
    """Return a `TranslatableMessage` in the reader's language; other text unchanged.

    Plain strings aren't translated, because untrusted text may look like our messages.
    """
    return localize_text(text) if isinstance(text, TranslatableMessage) else text


def localize_names(names: str) -> str:
    """Return a list of our own words, such as roles, in the reader's language."""
    language = get_language() or settings.LANGUAGE_CODE
    if language == settings.LANGUAGE_CODE:
        return names
    translations = _load_translations(language)[0]
    return ", ".join(translations.get(name, name) for name in names.split(", "))


def localize_problem(problem: Problem) -> str:
    """Return a problem's detail and remedy in the reader's language."""
    return f"{localize_text(problem)} {localize_text(problem.remedy)}".strip()


def _localize(text: str, language: str) -> str:
    if isinstance(text, TranslatableMessage):
        return _fill_translated_template(gettext(text.template), text.placeholder_values, language)
    return text if len(text) > MAX_MESSAGE else _translate_stored_text(text, language)


@lru_cache(maxsize=2_048)
def _translate_stored_text(text: str, language: str) -> str:
    sentences, remaining = [], text
    for _ in range(MAX_SENTENCES):
        end, translation = _translate_first_sentence(remaining, language)
        sentences.append(translation + remaining[len(remaining[:end].rstrip()) : end])
        remaining = remaining[end:]
        if not remaining:
            break
    return "".join(sentences) + remaining


def _translate_first_sentence(text: str, language: str) -> tuple[int, str]:
    """Return the end of the first sentence of a text, and its translation.

    Matches whose placeholder values contain several sentences (untrusted text) are tried last.
    """
    ends = _find_sentence_ends(text)
    for allow_sentences in (False, True):
        for end in ends:
            translation = _translate_sentence(
                text[:end].rstrip(), language, allow_sentences=allow_sentences
            )
            if translation is not None:
                return end, translation
    return ends[-1], text[: ends[-1]].rstrip()


def _find_sentence_ends(text: str) -> list[int]:
    """Return the possible ends of the first sentence of a text, the longest first."""
    ends = {len(text)}
    for mark in SENTENCE_ENDS:
        position = text.find(mark)
        while position >= 0 and len(ends) <= MAX_SENTENCES:
            ends.add(position + len(mark))
            position = text.find(mark, position + 1)
    return sorted(ends, reverse=True)


def _translate_sentence(text: str, language: str, *, allow_sentences: bool) -> str | None:
    """Return the translation of a message, or None.

    `allow_sentences` allows several sentences in placeholder values.
    """
    fixed_messages, templates = _load_translations(language)
    if translation := fixed_messages.get(text):
        return translation
    for template in (*templates[text.partition(" ")[0]], *templates[""]):
        values = _match_template(template.parts, text)
        if values is not None and (
            allow_sentences or not any(map(_has_sentence_end, values.values()))
        ):
            return _fill_translated_template(template.translation, values, language)
    return None


def _has_sentence_end(text: str) -> bool:
    return any(mark in text for mark in SENTENCE_ENDS)


@lru_cache(maxsize=8)
def _load_translations(language: str) -> tuple[dict[str, str], dict[str, list[TranslatedTemplate]]]:
    """Return the fixed messages of a language's catalog, and its templates by first word."""
    fixed_messages, templates = {}, defaultdict[str, list[TranslatedTemplate]](list)
    for text, translated in _read_catalog(language):
        try:
            parts = tuple(split_template(text))
        except ValueError:
            parts = ()
        if not any(item.placeholder for item in parts):
            fixed_messages[text] = translated
        elif sum(letter.isalpha() for item in parts for letter in item.text) >= MIN_LETTERS:
            first_word, space, _rest = parts[0].text.partition(" ")
            templates[first_word if space else ""].append(TranslatedTemplate(parts, translated))
    for candidates in templates.values():
        # Templates that begin with a placeholder match the rest of any sentence: try them last.
        candidates.sort(
            key=lambda item: (not item.parts[0].text, -sum(len(part.text) for part in item.parts))
        )
    return fixed_messages, templates


def _read_catalog(language: str) -> Iterator[tuple[str, str]]:
    for folder in settings.LOCALE_PATHS:
        path = folder / language / "LC_MESSAGES" / "django.mo"
        if path.exists():
            with path.open("rb") as file:
                catalog: dict[object, str] = GNUTranslations(file)._catalog  # type: ignore[attr-defined]
            yield from (
                (key, text) for key, text in catalog.items() if isinstance(key, str) and key
            )


def _match_template(parts: tuple[TemplatePart, ...], text: str) -> dict[str, str] | None:
    """Return the placeholder values if `text` matches a template, or else None.

    Without backtracking, so that it runs in linear time.
    """
    if not text.startswith(parts[0].text):
        return None
    values: dict[str, str] = {}
    position = len(parts[0].text)
    for part, next_part in zip(parts, (*parts[1:], TemplatePart("")), strict=True):
        if not part.placeholder:
            break
        is_last = next_part.placeholder == ""
        end = len(text) - len(next_part.text) if is_last else text.find(next_part.text, position)
        if end < position or not text.startswith(next_part.text, end):
            return None
        if values.setdefault(part.placeholder, text[position:end]) != text[position:end]:
            return None
        position = end + len(next_part.text)
    return values if position == len(text) else None


def _fill_translated_template(template: str, values: Mapping[str, str], language: str) -> str:
    return "".join(
        part.text
        + _translate_value(
            part.placeholder, values.get(part.placeholder, part.placeholder), language
        )
        for part in split_template(template)
    )


def _translate_value(placeholder: str, value: str, language: str) -> str:
    """Return a placeholder's value: our own phrases and sentences translated, names unchanged."""
    if isinstance(value, TranslatableMessage):
        return _localize(value, language)
    if placeholder in NOUN_PLACEHOLDERS:
        return localize_names(value)
    if NUMBER_PLACEHOLDER.fullmatch(placeholder):
        return _localize_separators(value)
    may_be_message = " " in value and (value[0].islower() or value.endswith("."))
    return (may_be_message and _translate_sentence(value, language, allow_sentences=True)) or value


def format_number(number: float, specification: str = ",") -> str:
    """Return a number with the separators of the reader's language.

    `specification` is Python's: thousands separators by default, `,.2f` for two decimals.
    """
    text = format(number, specification)
    if (get_language() or settings.LANGUAGE_CODE) == settings.LANGUAGE_CODE:
        return text
    return _localize_separators(text)


def _localize_separators(number: str) -> str:
    """Return an English number with the separators of the reader's language."""
    separators = {",": get_format("THOUSAND_SEPARATOR"), ".": get_format("DECIMAL_SEPARATOR")}
    return number.translate(str.maketrans(separators))


def format_dollars(dollars: float, specification: str = ",.2f") -> str:
    """Return an amount of dollars in the reader's language: `$0.50`, or `0,50 $` in German."""
    return gettext("$%(amount)s") % {"amount": format_number(dollars, specification)}


def format_percent(percent: float, specification: str = ",.1f") -> str:
    """Return a percentage in the reader's language: `12.5%`, or `12,5 %` in German."""
    return gettext("%(number)s%%") % {"number": format_number(percent, specification)}


def format_day(day: date) -> str:
    """Return a day of the current year as charts label it: `Nov 23`, or `23. Nov` in German."""
    return date_format(day, gettext("M j"))


def join_names(names: Iterable[str], maximum: int, count: int | None = None) -> str:
    """Return the first distinct names, and how many more there are (of `count`, if given)."""
    distinct = list(dict.fromkeys(make_visible(name, MAX_NAME_LENGTH) for name in names))
    shown_names = ", ".join(distinct[:maximum])
    more = (count or len(distinct)) - maximum
    return (
        gettext("%(names)s, and %(n)s more") % {"names": shown_names, "n": format_number(more)}
        if more > 0
        else shown_names
    )


def capitalize_words(text: Any) -> str:
    """Return words of the product with a capital; names of objects stay as they are."""
    return capfirst(str(text)) if isinstance(text, Promise) else str(text)
