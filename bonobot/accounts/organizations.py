"""Create and update organizations."""

from uuid import UUID

from django.core.exceptions import ValidationError

from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal, require_platform_admin
from bonobot.accounts.roles import Action
from bonobot.accounts.sso.identity_providers import require_tested_sign_in
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.ledger.audit.admin_changes import describe_row, record_change


def save_organization(principal: Principal, organization: Organization, *, adding: bool) -> None:
    """Create an organization (platform administrators) or update one's own; raises `InvalidInput`.

    Folders on the hosts are named after slugs and ids of organizations. A slug therefore can't
    change (`slug_fixed`) or look like an id (`slug_not_allowed`): either could give an organization
    access to the files of another.
    """
    if adding:
        require_platform_admin(principal)
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
