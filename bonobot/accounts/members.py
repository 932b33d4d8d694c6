"""Create and change members and users.

Users belong to the whole platform, so only platform administrators create them directly. Owners
invite people to their organization (`invitations`).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from django.db import IntegrityError, transaction

from bonobot.accounts.account_emails import announce_email_change
from bonobot.accounts.email_addresses import store_current_address
from bonobot.accounts.models import Membership, User
from bonobot.accounts.principals import Principal, require_platform_admin
from bonobot.accounts.roles import Action, Role
from bonobot.core.db.transactions import lock_row
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, NotFound
from bonobot.ledger.audit.admin_changes import describe_row, record_change


def add_member(principal: Principal, username: str, role: Role) -> Membership:
    """Give an account a role in the principal's organization; raises `NotFound`, `Conflict`.

    Platform administrators only: anyone else could use it to find out which usernames exist.
    """
    principal.require(Action.MANAGE_MEMBERS)
    require_platform_admin(principal)
    user = User.objects.filter(username=username.strip(), is_active=True).first()
    if user is None:
        raise NotFound(
            format_message("The user {username!r} doesn't exist.", username=username),
            field="username",
            remedy="Enter the user's username, or invite them by email.",
            status=400,
        )
    member = Membership(organization_id=principal.organization_id, user=user, role=role)
    with _record_change(principal, member, "member_added", role=role):
        try:
            with transaction.atomic():
                member.save()
        except IntegrityError:
            raise Conflict(
                format_message("{user} is already a member.", user=user),
                field="username",
                remedy="Change the role of the existing membership instead.",
            ) from None
    return member


def update_member_role(principal: Principal, member: Membership, role: Role) -> None:
    """Change a member's role; the last owner can't be demoted (code `last_owner`)."""
    principal.require(Action.MANAGE_MEMBERS)
    with _record_change(principal, member, "member_updated", role=role):
        lock_row(member.organization)
        member.role = role
        member.save()
        _require_remaining_owner(member)


def remove_member(principal: Principal, member: Membership) -> None:
    """Delete a membership; the last owner can't leave (code `last_owner`)."""
    principal.require(Action.MANAGE_MEMBERS)
    with _record_change(principal, member, "member_removed", role=member.role):
        lock_row(member.organization)
        member.delete()
        _require_remaining_owner(member)


def save_user(principal: Principal, user: User, changed_names: list[str], *, adding: bool) -> None:
    """Create or update a user; a disabled user can't sign in."""
    require_platform_admin(principal)
    if str(user.pk) == principal.id and not (user.is_active and user.is_superuser):
        raise Conflict(
            "You can't remove your own access.",
            code="own_account",
            field="is_active" if not user.is_active else "is_superuser",
            remedy="Contact another platform administrator.",
        )
    with record_change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action="user_created" if adding else "user_updated",
        resource_type="user",
        resource_id=str(user.pk),
        resource_name=user.get_username(),
        details={"changed": changed_names},
    ):
        old_email = User.objects.values_list("email", flat=True).filter(pk=user.pk).first()
        user.save()
        if old_email is not None and old_email != user.email:
            store_current_address(user)
            announce_email_change(user, old_email)


def has_owner_besides(members: Sequence[Membership]) -> bool:
    """Return whether the organization of these members has an owner who isn't one of them."""
    owners = Membership.objects.filter(organization=members[0].organization_id, role=Role.OWNER)
    return bool(owners.exclude(pk__in=[member.pk for member in members]).exists())


def _require_remaining_owner(member: Membership) -> None:
    """Raise `Conflict` (and roll back) if the organization has no owner left."""
    owners = Membership.objects.filter(organization=member.organization_id, role=Role.OWNER)
    if not owners.exists():
        raise Conflict(
            "This would leave the organization without an owner.",
            code="last_owner",
            field="role",
            remedy="Make another member an owner first.",
        )


def _record_change(
    principal: Principal, member: Membership, action: str, **details: Any
) -> AbstractContextManager[Any]:
    return record_change(
        **describe_row("membership", member, member.user.get_username()),
        actor=principal.actor,
        action=action,
        details=details,
    )
