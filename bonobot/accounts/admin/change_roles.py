"""The bulk action "Change role…" of the list of members: its confirmation, and the changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from bonobot.accounts.admin_base.responses import change_each, render_screen
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.members import has_owner_besides, update_member_role
from bonobot.accounts.models import Membership
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import ROLE_CHOICES, Role
from bonobot.core.i18n.localization import format_number
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

# In one request: each change has its own transaction and audit entry.
MAX_MEMBERS = 1_000
OWN_ROLE = _("This is you. Change your own role on your member page.")
LAST_OWNER = _("This would leave the organization without an owner.")


@dataclass(frozen=True)
class RoleChanges:
    """The selected members whose role changes, who have it already, and who can't get it (why)."""

    changed: list[Membership]
    unchanged: list[Membership]
    refused: list[tuple[Membership, Any]]


def plan_role_changes(
    principal: Principal, members: Sequence[Membership], role: Role
) -> RoleChanges:
    """Return what changing these members' role does; the principal's own role stays."""
    unchanged = [member for member in members if member.role == role]
    others = [member for member in members if member.role != role]
    refused: list[tuple[Membership, Any]] = [
        (member, OWN_ROLE) for member in others if str(member.user_id) == principal.id
    ]
    changed = [member for member in others if str(member.user_id) != principal.id]
    owners = [member for member in changed if member.role == Role.OWNER]
    if owners and not has_owner_besides(owners):
        changed.remove(owners[-1])
        refused.append((owners[-1], LAST_OWNER))
    return RoleChanges(changed, unchanged, refused)


def confirm_or_change_roles(
    admin: Any, request: HttpRequest, members: Sequence[Membership]
) -> HttpResponseBase | None:
    """Show who gets the posted role; change the roles if the button of this role was pressed."""
    if len(members) > MAX_MEMBERS:
        raise InvalidInput(
            format_message("{n} members are too many for one request.", n=len(members)),
            field="_selected_action",
            remedy=format_message("Select up to {limit} members.", limit=MAX_MEMBERS),
        )
    posted_role = request.POST.get("role", "")
    role = Role(posted_role) if posted_role in {*Role} else None
    changes = plan_role_changes(resolve_principal(request), members, role) if role else None
    if role and changes and request.POST.get("confirmed") == role:
        _change_roles(request, changes, role)
        return None
    return render_screen(
        request,
        "members/change_roles.html",
        title=_t("Change role"),
        opts=admin.opts,
        members=members,
        role=role,
        role_label=dict(ROLE_CHOICES)[role] if role else "",
        choices=ROLE_CHOICES,
        changes=changes,
    )


def _change_roles(request: HttpRequest, changes: RoleChanges, role: Role) -> None:
    principal = resolve_principal(request)
    count = change_each(
        request, changes.changed, lambda member: update_member_role(principal, member, role)
    )
    if count:
        text = ngettext(
            "The role of %(n)s member was changed.",
            "The roles of %(n)s members were changed.",
            count,
        )
        messages.success(request, text % {"n": format_number(count)})
    if skipped := len(changes.refused) + len(changes.changed) - count:
        text = ngettext(
            "%(n)s member keeps the current role.",
            "%(n)s members keep their current role.",
            skipped,
        )
        messages.warning(request, text % {"n": format_number(skipped)})
