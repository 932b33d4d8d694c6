"""Translatable messages with parameters.

`format_message("There is no tool `{name}`.", name=name)` returns the English message as a `str`,
which is logged, stored and sent to programs as it is. It also keeps its template and values, so
that a screen can show it in the reader's language (`bonobot.core.i18n.localization`). After it was
stored or sent it is a plain `str`, which is matched against the templates.
"""

from collections.abc import Iterator
from string import Formatter
from typing import Any, NamedTuple, Self


class TemplatePart(NamedTuple):
    """A part of a template: text, and the placeholder after it as written (`{name!r}`)."""

    words: str
    hole: str = ""


class TranslatableMessage(str):
    """An English message that keeps its template and the values of its placeholders."""

    __slots__ = ("holes", "template")

    template: str
    holes: dict[str, str]

    def __new__(cls, template: str, values: dict[str, Any]) -> Self:
        """Format the template like `str.format`."""
        saying = super().__new__(cls, template.format(**values))
        saying.template = template
        saying.holes = {
            one.hole: _fill_placeholder(one.hole, values)
            for one in split_template(template)
            if one.hole
        }
        return saying

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickle as a plain `str`."""
        return str, (str.__str__(self),)

    def __str__(self) -> str:
        """Return itself, so that it stays translatable."""
        return self


def format_message(template: str, /, **values: Any) -> TranslatableMessage:
    """Return a message with named values; `template` is a constant and the key of translations.

    Values must not be secrets: messages are shown, logged and stored.
    """
    return TranslatableMessage(template, values)


def split_template(template: str) -> Iterator[TemplatePart]:
    """Yield the parts of a template; raises `ValueError` if it is invalid."""
    for words, name, form, conversion in Formatter().parse(template):
        if name is None:
            yield TemplatePart(words)
        elif not name.isidentifier():
            raise ValueError(f"{name!r} is no name of a value")
        else:
            how = (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            yield TemplatePart(words, f"{{{name}{how}}}")


def _fill_placeholder(hole: str, values: dict[str, Any]) -> str:
    """Return a placeholder's value; a `TranslatableMessage` stays one, to be translated too."""
    whole = values.get(hole[1:-1])
    return whole if isinstance(whole, TranslatableMessage) else hole.format(**values)
