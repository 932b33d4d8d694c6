"""The message after a deletion, with a button that restores the object."""

from django.contrib import messages
from django.http import HttpRequest
from django.middleware.csrf import get_token
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t

from bonobot.accounts.models import Deletion


def add_deleted_message(request: HttpRequest, name: str, deletion: Deletion | None) -> None:
    """Say that an object was deleted; offer to undo it if it can be restored."""
    text = _t("%(name)s was deleted.") % {"name": name}
    messages.success(request, text if deletion is None else _add_button(request, text, deletion))


def _add_button(request: HttpRequest, text: str, deletion: Deletion) -> SafeString:
    return format_html(
        '{} <form class="bb-inline-form" method="post" action="{}">'
        '<input type="hidden" name="csrfmiddlewaretoken" value="{}">'
        '<button class="bb-link-button" type="submit">{}</button></form>',
        text,
        reverse("admin:tenancy_deletion_restore", args=[deletion.pk]),
        get_token(request),
        _t("Undo"),
    )
