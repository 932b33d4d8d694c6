"""What a page says about a refused save: who changed which fields of a form, and to what.

The notes are at the top of the form; `form-conflicts.js` moves each below its field.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t

from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.templatetags.display import error_code
from bonobot.core.db.object_version import VersionConflict
from bonobot.core.text.masked_values import MASK
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.actor_names import get_actor_name
from bonobot.ledger.audit.action_titles import format_action
from bonobot.ledger.audit.search import query_object_changes
from bonobot.ledger.models import AuditRow

if TYPE_CHECKING:
    from bonobot.accounts.admin_base.form_versions import Control

LAST_CHANGE_FIELD = "last_change"  # of a page that confirms a deletion
MAX_CHANGES_SHOWN, MAX_VALUE_LENGTH = 12, 80
MAX_NOTE_LENGTH = 300


@dataclass
class Difference:
    """A control whose value differs from the one read; `user_values` are set if they changed it.

    `is_kept` tells whether the form shows the user's values, not the saved ones.
    """

    control: "Control"
    name: str
    form_key: str
    user_values: list[str] | None = None
    is_kept: bool = False

    @property
    def is_secret(self) -> bool:
        """Return whether no value of the control may be shown."""
        return self.control.kind == "secret"

    @property
    def label(self) -> str:
        """The label of the control."""
        name = _t("last change") if self.name == LAST_CHANGE_FIELD else self.name
        return make_visible(self.control.label or name, MAX_VALUE_LENGTH)


@dataclass
class FormConflict:
    """What a page can show about a refused save: who changed which controls in the meantime.

    A page that shows it sets `is_shown`; on others it is a message.
    """

    editor: str
    differences: Sequence[Difference]
    is_shown: bool = False

    @property
    def names(self) -> frozenset[str]:
        return frozenset(difference.name for difference in self.differences)

    @property
    def changes(self) -> str:
        """The values that were saved, and those that the user entered."""
        shown_differences = self.differences[:MAX_CHANGES_SHOWN]
        return "; ".join(_describe_difference(difference) for difference in shown_differences)


def render_field_conflicts(editor: str, differences: Sequence[Difference]) -> SafeString:
    """Return a note for each field of a form that was changed in the meantime.

    If the user changed it as well, the note has both values, and a button that uses the one that
    the form doesn't show. Secrets are masked, and have no button.
    """
    notes = []
    for difference in differences:
        if not difference.name or difference.name == LAST_CHANGE_FIELD:
            continue
        saved, own = difference.control.values, difference.user_values
        has_choice = own is not None and not difference.is_secret
        # As many values as the form has inputs: others can't be put there.
        if own is not None and difference.control.kind in ("text", "lines", "secret"):
            has_choice = has_choice and len(own) == len(saved)
        notes.append(
            {
                "name": difference.name,
                "label": difference.label,
                "text": MASK if difference.is_secret else _join_values(saved, MAX_NOTE_LENGTH),
                "is_secret": difference.is_secret,
                "has_choice": has_choice,
                "is_kept": difference.is_kept,
                "saved": json.dumps(saved) if has_choice else "",
                "own": json.dumps(own) if has_choice and not difference.is_kept else "",
            }
        )
    context = {"editor": editor, "notes": notes}
    return render_to_string("admin/parts/form_conflicts.html", context) if notes else SafeString()


def describe_conflict(conflict: FormConflict, keeps_changes: bool) -> SafeString:
    """Return a message about a refused save, with a small link to the code's documentation."""
    editor, changes = conflict.editor, conflict.changes or _t("the page")
    if editor:
        text = _t(
            "Not saved. %(who)s changed this page in the meantime. Current values: %(changes)s."
        )
    else:
        text = _t("Not saved. This page was changed in the meantime. Current values: %(changes)s.")
    if keeps_changes:
        remedy = _t("Your other changes are still in the form. Review them, then save again.")
    else:
        remedy = _t("The form shows the current values. Change them if necessary, then save.")
    sentences = f"{text % {'who': editor, 'changes': changes}} {remedy}"
    return format_html("{} {}", sentences, error_code(VersionConflict.code))


def _describe_difference(difference: Difference) -> str:
    if difference.is_secret:
        return f"{difference.label}: {MASK}"
    current = _join_values(difference.control.values, MAX_VALUE_LENGTH)
    if difference.user_values is None:
        return f"{difference.label}: {current}"
    return _t("%(label)s: %(now)s (you entered: %(yours)s)") % {
        "label": difference.label,
        "now": current,
        "yours": _join_values(difference.user_values, MAX_VALUE_LENGTH),
    }


def _join_values(values: Sequence[str], limit: int) -> str:
    return make_visible(", ".join(values), limit) or "–"


def find_last_editor(request: HttpRequest) -> str:
    """Return who last changed the object shown, blank if the audit log doesn't say."""
    row = getattr(request, "shown_object", None)
    entry = _find_last_change(request, str(row.pk)) if row is not None else None
    return _format_editor(entry) if entry else ""


def describe_last_change(request: HttpRequest, object_id: str) -> str:
    """Return the last change of an object and who made it, blank if there is none."""
    entry = _find_last_change(request, object_id)
    if entry is None:
        return ""
    return f"{format_action(entry.action)} ({_format_editor(entry)}, #{entry.seq})"


def _format_editor(entry: AuditRow) -> str:
    name = get_actor_name(entry.actor_kind, entry.actor_id, entry.actor_label)
    return make_visible(name, MAX_VALUE_LENGTH)


def _find_last_change(request: HttpRequest, object_id: str) -> AuditRow | None:
    organization_id = resolve_principal(request).organization_id
    return query_object_changes(organization_id, [object_id]).first()
