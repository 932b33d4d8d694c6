"""A template tag for messages that may quote long output of a program."""

from typing import Any

from django import template

from bonobot.core.i18n.localization import localize_text
from bonobot.core.text.long_messages import split_long_message

MAX_SHOWN = 8_000  # characters

register = template.Library()


@register.inclusion_tag("admin/parts/problem_text.html")
def problem_text(text: Any) -> dict[str, Any]:
    """Show one of Bonobot's messages; the output that a long one quotes is collapsed."""
    message = localize_text(text)[:MAX_SHOWN]
    return {"text": message, "long": split_long_message(message)}
