"""Create and change users, organizations, memberships.

Users belong to the whole platform, so only platform administrators create them directly. Owners
invite people to their organization (`invitations`).
"""

from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from bonobot.accounts.account_emails import announce_email_change
from bonobot.accounts.email_addresses import store_current_address
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action, Role
from bonobot.accounts.sso.services import require_tested_sign_in
from bonobot.core.db.transactions import lock_row
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, InvalidInput, NotFound
from bonobot.ledger.audit.admin_changes import describe_row, record_change


def add_member(principal: Principal, username: str, role: Role) -> Membership:
    """Give an account a role in the principal's organization; raises `NotFound`, `Conflict`.

    Platform administrators only: anyone else could use it to find out which usernames exist.
    """
    principal.require(Action.MANAGE_MEMBERS)
    _require_platform_admin(principal)
    user = User.objects.filter(username=username.strip(), is_active=True).first()
    if user is None:
        raise NotFound(
            format_message("The user {username!r} doesn't exist.", username=username),
            field="username",
            remedy="Enter the user's sign-in name, or invite them by email.",
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


def save_organization(principal: Principal, organization: Organization, *, adding: bool) -> None:
    """Create an organization (platform administrators) or update one's own; raises `InvalidInput`.

    Folders on the hosts are named after slugs and ids of organizations. A slug therefore can't
    change (`slug_fixed`) or look like an id (`slug_not_allowed`): either could give an organization
    access to the files of another.
    """
    if adding:
        _require_platform_admin(principal)
    else:
        principal.require(Action.MANAGE_ORGANIZATION)
    try:
        organization.full_clean()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise InvalidInput(messages[0], field=field, remedy="Change this value.") from None
    _check_slug(organization, adding=adding)
    already_enforced = Organization.objects.filter(pk=organization.pk, single_sign_on=True)
    if organization.single_sign_on and not already_enforced.exists():
        require_tested_sign_in(organization)
    action = "organization_created" if adding else "organization_updated"
    with record_change(
        actor=principal.actor,
        action=action,
        **describe_row("organization", organization),
        details={
            "slug": organization.slug,
            "four_eyes": organization.four_eyes,
            "approval_hours": organization.approval_hours,
            "calls_per_minute": organization.calls_per_minute,
            "second_factor": organization.second_factor,
            "single_sign_on": organization.single_sign_on,
            "audit_days": organization.audit_days,
            "registry": organization.registry,
        },
    ):
        organization.save()


def _check_slug(organization: Organization, *, adding: bool) -> None:
    if adding and _is_identifier(organization.slug):
        raise InvalidInput(
            format_message("The slug {slug!r} looks like an identifier.", slug=organization.slug),
            code="slug_not_allowed",
            field="slug",
            remedy="Choose a slug that consists of words.",
        )
    if adding:
        return
    current_slug = Organization.objects.values_list("slug", flat=True).get(pk=organization.pk)
    if organization.slug != current_slug:
        raise InvalidInput(
            format_message(
                "The slug {slug!r} of this organization can't be changed.", slug=current_slug
            ),
            code="slug_fixed",
            field="slug",
            remedy="Change the name instead.",
        )


def _is_identifier(slug: str) -> bool:
    try:
        UUID(slug)
    except ValueError:
        return False
    return True


def save_user(principal: Principal, user: User, changed_names: list[str], *, adding: bool) -> None:
    """Create or update a user; a disabled user can't sign in."""
    _require_platform_admin(principal)
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


def _require_platform_admin(principal: Principal) -> None:
    if not principal.platform_admin:
        raise Forbidden(
            "Only a platform administrator can do this.",
            rule="platform_admin",
            remedy="Contact a platform administrator.",
        )


def has_other_owner(member: Membership) -> bool:
    owners = Membership.objects.filter(organization=member.organization_id, role=Role.OWNER)
    return bool(owners.exclude(pk=member.pk).exists())


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
