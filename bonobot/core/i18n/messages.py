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

    text: str
    placeholder: str = ""


class TranslatableMessage(str):
    """An English message that keeps its template and the values of its placeholders."""

    __slots__ = ("placeholder_values", "template")

    template: str
    placeholder_values: dict[str, str]

    def __new__(cls, template: str, values: dict[str, Any]) -> Self:
        """Format the template like `str.format`."""
        message = super().__new__(cls, template.format(**values))
        message.template = template
        message.placeholder_values = {
            part.placeholder: _format_placeholder(part.placeholder, values)
            for part in split_template(template)
            if part.placeholder
        }
        return message

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
    for text, field_name, format_spec, conversion in Formatter().parse(template):
        if field_name is None:
            yield TemplatePart(text)
        elif not field_name.isidentifier():
            raise ValueError(f"{field_name!r} isn't a valid placeholder name")
        else:
            suffix = (f"!{conversion}" if conversion else "") + (
                f":{format_spec}" if format_spec else ""
            )
            yield TemplatePart(text, f"{{{field_name}{suffix}}}")


def _format_placeholder(placeholder: str, values: dict[str, Any]) -> str:
    """Return a placeholder's value; a `TranslatableMessage` stays one, to be translated too."""
    value = values.get(placeholder[1:-1])
    return value if isinstance(value, TranslatableMessage) else placeholder.format(**values)


def format_count(count: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun, such as "1 tool" or "2,000 tools"; the default adds an s."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"
