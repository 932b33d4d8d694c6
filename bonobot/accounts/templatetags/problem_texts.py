"""Template tags for messages that quote long output of a program, and for edit conflicts."""

from typing import Any

from django import template

from bonobot.core.db.object_version import VersionConflict
from bonobot.core.i18n.localization import localize_text
from bonobot.core.text.long_messages import split_long_message

MAX_SHOWN = 8_000  # characters

register = template.Library()


@register.inclusion_tag("admin/parts/problem_text.html")
def problem_text(text: Any, *, is_strong: bool = True) -> dict[str, Any]:
    """Show one of Bonobot's messages; the output that a long one quotes is collapsed."""
    message = localize_text(text)[:MAX_SHOWN]
    return {"text": message, "long": split_long_message(message), "is_strong": is_strong}


@register.filter
def is_only_conflict(form: Any, request: Any) -> bool:
    """Return whether a form has no error but an edit conflict, which a message describes."""
    if not getattr(request, "form_conflict", None) or not hasattr(form, "errors"):
        return False
    codes = {error.code for errors in form.errors.as_data().values() for error in errors}
    return codes == {VersionConflict.code}
