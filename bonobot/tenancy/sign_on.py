"""Sign-on: what a session that began at an identity provider may, and who needs such a one.

The session says by which provider it began and for whom. It reaches that provider's organization
alone, as long as the provider is enabled: whoever runs the provider decides who its people are, and
so must be nobody elsewhere.
"""

from typing import Any

from django.contrib.auth import logout
from django.db.models import Exists, OuterRef
from django.http import HttpRequest

from bonobot.lib.problems import Forbidden
from bonobot.tenancy.models import Organization, OrganizationQuerySet, Provider, User
from bonobot.tenancy.second_factor import check_second_factor, has_second_factor

MARK = "single_sign_on"
# What a sign-in that is half-way depends on.
PROOF = "sign_in_proof"


class SingleSignOnNeeded(Forbidden):
    """The organization's people sign in by an identity provider, and this session did not."""

    code = "single_sign_on_required"

    def __init__(self) -> None:
        super().__init__(
            "This organization's people sign in by its identity provider.",
            rule="single_sign_on",
            remedy="Sign in to the admin by it.",
        )


def begin_session(request: HttpRequest, provider: Provider, user: User, leaving: str) -> None:
    """Forget who was signed in here, and note by which provider who comes now signs in.

    `leaving` is where their browser ends the session there, if it can.
    """
    if request.user.is_authenticated:
        logout(request)
    request.session.pop(PROOF, None)
    request.session[MARK] = {
        "user": str(user.pk),
        "provider": str(provider.pk),
        "organization": str(provider.organization_id),
        "factor": not provider.second_factor,
        "leaving": leaving,
    }


def mark_of(request: Any) -> dict[str, Any] | None:
    """Return how the session of whoever is signed in began, if it was at a provider."""
    found: dict[str, Any] | None = request.session.get(MARK)
    return found if found and found["user"] == str(request.user.pk) else None


def organizations_of(request: Any) -> OrganizationQuerySet:
    """Return the organizations that the session reaches."""
    user: Any = request.user
    rows: OrganizationQuerySet = Organization.objects.of_user(user)
    mark = mark_of(request)
    if mark is None:
        return rows
    if user.is_superuser:
        return rows.none()  # made one meanwhile: no provider decides on the platform
    trusted = Provider.objects.enabled().filter(
        pk=mark["provider"], organization=OuterRef("pk"), second_factor=not mark["factor"]
    )
    return rows.filter(Exists(trusted))


def usable_organizations(request: Any) -> OrganizationQuerySet:
    """Return those that the session reaches with nothing more being asked for."""
    user: Any = request.user
    rows, mark = organizations_of(request), mark_of(request)
    if mark is None and not user.is_superuser:
        rows = rows.filter(single_sign_on=False)
    if not (mark and mark["factor"]) and not has_second_factor(user):
        rows = rows.filter(second_factor=False)
    return rows


def check_sign_on(request: Any, organization: Organization) -> None:
    """Raise `SingleSignOnNeeded` or `SecondFactorNeeded` where the session began by too little."""
    user: Any = request.user
    mark = mark_of(request)
    if organization.single_sign_on and mark is None and not user.is_superuser:
        raise SingleSignOnNeeded
    if not (mark and mark["factor"]):
        check_second_factor(user, organization)
