"""Translatable sentences with parameters.

`say("There is no tool `{name}`.", name=name)` is the English sentence, a `str` like any other: it
is logged, sealed, stored and sent to programs as it stands. It remembers beside it what it was made
of, so that a screen can say it in its reader's language (`bonobot.core.i18n.localization`). Where
it was stored or sent meanwhile it is a plain `str`, and is read back from its words.
"""

from collections.abc import Iterator
from string import Formatter
from typing import Any, NamedTuple, Self


class TemplatePart(NamedTuple):
    """A part of a template: words, and the hole after them as it is written there (`{name!r}`)."""

    words: str
    hole: str = ""


class TranslatableMessage(str):
    """An English sentence that knows its template, and what stands in each hole of it."""

    __slots__ = ("holes", "template")

    template: str
    holes: dict[str, str]

    def __new__(cls, template: str, values: dict[str, Any]) -> Self:
        """Fill `values` in; conversions and formats are those of `str.format`."""
        saying = super().__new__(cls, template.format(**values))
        saying.template = template
        saying.holes = {
            one.hole: _fill_placeholder(one.hole, values)
            for one in split_template(template)
            if one.hole
        }
        return saying

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Leave the process as plain text."""
        return str, (str.__str__(self),)

    def __str__(self) -> str:
        """Return itself, so that what a reader may get to see in English stays translatable."""
        return self


def format_message(template: str, /, **values: Any) -> TranslatableMessage:
    """Return a sentence with named values in it; `template` is a constant, its translations' key.

    No secret may be among the values: sentences are shown, logged and stored.
    """
    return TranslatableMessage(template, values)


def split_template(template: str) -> Iterator[TemplatePart]:
    """Yield the parts of a template; raises `ValueError` where it is none."""
    for words, name, form, conversion in Formatter().parse(template):
        if name is None:
            yield TemplatePart(words)
        elif not name.isidentifier():
            raise ValueError(f"{name!r} is no name of a value")
        else:
            how = (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            yield TemplatePart(words, f"{{{name}{how}}}")


def _fill_placeholder(hole: str, values: dict[str, Any]) -> str:
    """Return what stands in a hole; a saying stays one, so that it is translated, too."""
    whole = values.get(hole[1:-1])
    return whole if isinstance(whole, TranslatableMessage) else hole.format(**values)
