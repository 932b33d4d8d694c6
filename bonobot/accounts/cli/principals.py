"""The principal of the command line: a platform administrator in one organization."""

from bonobot.accounts.models.organizations import Organization
from bonobot.accounts.principals import Principal, build_cli_principal
from bonobot.core.problems import InvalidInput, NotFound

MAX_SLUGS_SHOWN = 20


def build_command_principal(organization_slug: str | None) -> Principal:
    """Return the principal in an organization; None means the only one.

    Raises `NotFound` for an unknown slug, and `InvalidInput` if one of several must be named.
    """
    return build_cli_principal(_get_organization(organization_slug))


def _get_organization(slug: str | None) -> Organization:
    if slug:
        if organization := Organization.objects.filter(slug=slug).first():
            return organization
        raise NotFound(
            f"The organization {slug!r} doesn't exist.",
            field="--org",
            remedy=f"Use one of: {_format_slugs()}.",
        )
    organizations = list(Organization.objects.order_by("slug")[:2])
    if len(organizations) == 1:
        return organizations[0]
    if organizations:
        raise InvalidInput(
            "There are several organizations.",
            field="--org",
            remedy=f"Add --org SLUG, with one of: {_format_slugs()}.",
        )
    raise NotFound(
        "No organization exists yet.", field="--org", remedy="Run `bonobot up` to create one."
    )


def _format_slugs() -> str:
    """Return the first slugs of all organizations."""
    slugs = Organization.objects.order_by("slug").values_list("slug", flat=True)
    return ", ".join(slugs[:MAX_SLUGS_SHOWN])
