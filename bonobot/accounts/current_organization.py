"""Organizations a session may use; the current one; its principal.

The session says by which provider it began and for whom. It reaches that provider's organization
alone, as long as the provider is enabled: whoever runs the provider decides who its people are, and
so must be nobody elsewhere.

A token belongs to one organization. A person with several chooses by the header
`Bonobot-Organization` (a slug) or, in the admin, by the switcher that the session remembers.
"""

from typing import Any

from django.contrib.auth import logout
from django.db.models import Exists, OuterRef
from django.http import HttpRequest

from bonobot.accounts.models import Organization, OrganizationQuerySet, Provider, Token, User
from bonobot.accounts.principals import Principal, build_token_principal, build_user_principal
from bonobot.accounts.second_factor import check_second_factor, has_second_factor
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, NotFound
from bonobot.core.text.untrusted_text import make_visible

MARK = "single_sign_on"
# What a sign-in that is half-way depends on.
PROOF = "sign_in_proof"


class SingleSignOnRequired(Forbidden):
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


def list_reachable_organizations(request: Any) -> OrganizationQuerySet:
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


def list_usable_organizations(request: Any) -> OrganizationQuerySet:
    """Return those that the session reaches with nothing more being asked for."""
    user: Any = request.user
    rows, mark = list_reachable_organizations(request), mark_of(request)
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
        raise SingleSignOnRequired
    if not (mark and mark["factor"]):
        check_second_factor(user, organization)


HEADER = "Bonobot-Organization"
SESSION_KEY = "organization"
LONGEST_CLIENT = 200


def resolve_organization(request: HttpRequest) -> Organization:
    """Return the organization that a signed-in person works in.

    Raises `NotFound` for a name that isn't theirs and `Forbidden` when they belong to none.
    """
    user: Any = request.user
    mine = list_reachable_organizations(request)
    if slug := request.headers.get(HEADER):
        if found := mine.filter(slug=slug).first():
            return found
        raise _build_unknown_organization_error(slug)
    slug = request.session.get(SESSION_KEY)
    remembered = mine.filter(slug=slug).first() if slug else None
    # One that a password opens goes before one that has to be signed in to elsewhere.
    anywhere = user.is_superuser or mark_of(request) is not None
    chosen = remembered or (mine if anywhere else mine.order_by("single_sign_on", "name")).first()
    if chosen is None:
        raise Forbidden(
            "You belong to no organization yet.",
            rule="membership",
            remedy="Ask an owner of one for an invitation.",
        )
    return chosen


def _check_named(request: Any, token: Token) -> None:
    """Raise `NotFound` when the header names another organization than the token's."""
    slug = request.headers.get(HEADER)
    if slug and not Organization.objects.filter(pk=token.organization_id, slug=slug).exists():
        raise _build_unknown_organization_error(slug)


def resolve_principal(request: Any) -> Principal:
    """Return the principal of a Django or DRF request, remembering it on the request.

    Raises `SecondFactorNeeded` or `SingleSignOnNeeded` for a person where the organization asks
    for more than they came with.
    """
    cached = getattr(request, "bonobot_principal", None)
    if cached is None:
        token = getattr(request, "auth", None)
        if isinstance(token, Token):
            _check_named(request, token)
            cached = build_token_principal(token)
        else:
            user: User = request.user
            organization = resolve_organization(request)
            cached = build_user_principal(user, organization)
            check_sign_on(request, organization)
        request.bonobot_principal = cached
    return cached


def read_client_name(request: Any) -> str:
    """Return what the caller's program says that it is, as the audit keeps it."""
    return make_visible(request.headers.get("User-Agent", ""), LONGEST_CLIENT)


def _build_unknown_organization_error(slug: str) -> NotFound:
    return NotFound(
        format_message("There is no organization {slug!r} for you.", slug=slug),
        field=HEADER,
        remedy="Leave the header out, or name one of your organizations.",
    )
