"""The organizations a session may use, the current organization, and its principal.

A session that began at an identity provider records the provider and user. It reaches only that
provider's organization, and only while the provider is enabled: the provider's operator decides
who its users are, so it must not give access to other organizations.

A token belongs to one organization. A user with several chooses with the header
`Bonobot-Organization` (a slug) or, in the admin, with the switcher, which is stored in the session.
"""

from typing import Any

from django.contrib.auth import logout
from django.db.models import Exists, OuterRef
from django.http import HttpRequest

from bonobot.accounts.models import Organization, OrganizationQuerySet, Provider, Token, User
from bonobot.accounts.principals import Principal, build_token_principal, build_user_principal
from bonobot.accounts.second_factor import check_second_factor, has_second_factor
from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, NotFound
from bonobot.core.text.untrusted_text import make_visible

SSO_SESSION_KEY = "single_sign_on"
# The session key for the password hash that an unfinished sign-in depends on.
SIGN_IN_PROOF_KEY = "sign_in_proof"
ORGANIZATION_HEADER = "Bonobot-Organization"
ORGANIZATION_SESSION_KEY = "organization"
MAX_CLIENT_LENGTH = 200


class SingleSignOnRequired(Forbidden):
    """The organization requires single sign-on, which this session didn't use."""

    code = "single_sign_on_required"

    def __init__(self) -> None:
        super().__init__(
            "Members of this organization must sign in with its identity provider.",
            rule="single_sign_on",
            remedy="Sign in to the admin site with the identity provider.",
        )


def start_sso_session(
    request: HttpRequest, provider: Provider, user: User, logout_url: str
) -> None:
    """Sign out the current user and record the provider that the new user signs in with.

    `logout_url` ends the session at the provider, if it supports that.
    """
    if request.user.is_authenticated:
        logout(request)
    request.session.pop(SIGN_IN_PROOF_KEY, None)
    request.session[SSO_SESSION_KEY] = {
        "user": str(user.pk),
        "provider": str(provider.pk),
        "organization": str(provider.organization_id),
        "factor": not provider.second_factor,
        "leaving": logout_url,
    }


def get_sso_session(request: Any) -> dict[str, Any] | None:
    """Return the sign-in record of a session that began at a provider, else None."""
    sso_session: dict[str, Any] | None = request.session.get(SSO_SESSION_KEY)
    return sso_session if sso_session and sso_session["user"] == str(request.user.pk) else None


def list_reachable_organizations(request: Any) -> OrganizationQuerySet:
    """Return the organizations that the session reaches."""
    user: Any = request.user
    rows: OrganizationQuerySet = Organization.objects.for_user(user)
    sso_session = get_sso_session(request)
    if sso_session is None:
        return rows
    if user.is_superuser:
        return rows.none()  # promoted meanwhile: providers can't sign in superusers
    trusted_providers = Provider.objects.enabled().filter(
        pk=sso_session["provider"],
        organization=OuterRef("pk"),
        second_factor=not sso_session["factor"],
    )
    return rows.filter(Exists(trusted_providers))


def list_usable_organizations(request: Any) -> OrganizationQuerySet:
    """Return those that the session can use without another sign-in step."""
    user: Any = request.user
    rows, sso_session = list_reachable_organizations(request), get_sso_session(request)
    if sso_session is None and not user.is_superuser:
        rows = rows.filter(single_sign_on=False)
    if not (sso_session and sso_session["factor"]) and not has_second_factor(user):
        rows = rows.filter(second_factor=False)
    return rows


def check_sign_in_requirements(request: Any, organization: Organization) -> None:
    """Raise `SingleSignOnRequired` or `SecondFactorRequired` if the session lacks either."""
    user: Any = request.user
    sso_session = get_sso_session(request)
    if organization.single_sign_on and sso_session is None and not user.is_superuser:
        raise SingleSignOnRequired
    if not (sso_session and sso_session["factor"]):
        check_second_factor(user, organization)


# The oldest one, of those that a password session can use if there are any.
_PREFERRED_ORGANIZATION = PreparedQuery(
    lambda: Organization.objects.for_member(
        QueryParameter("user", output_field=User._meta.pk)
    ).order_by("single_sign_on", "created_at")[:1]
)


def resolve_organization(request: HttpRequest) -> Organization:
    """Return the current organization of a signed-in user.

    Raises `NotFound` for an organization that isn't theirs and `Forbidden` if they have none.
    """
    user: Any = request.user
    reachable = list_reachable_organizations(request)
    if slug := request.headers.get(ORGANIZATION_HEADER):
        if organization := reachable.filter(slug=slug).first():
            return organization
        raise _build_unknown_organization_error(slug)
    slug = request.session.get(ORGANIZATION_SESSION_KEY)
    selected = reachable.filter(slug=slug).first() if slug else None
    # The oldest, so that a new one doesn't become the current one.
    if selected is None and (user.is_superuser or get_sso_session(request) is not None):
        selected = reachable.order_by("created_at").first()
    elif selected is None:
        selected = _PREFERRED_ORGANIZATION.fetch_first(user=user.pk)
    if selected is None:
        raise Forbidden(
            "You aren't a member of any organization yet.",
            rule="membership",
            remedy="Ask an organization owner for an invitation.",
        )
    return selected


def _check_organization_header(request: Any, token: Token) -> None:
    """Raise `NotFound` if the header names another organization than the token's."""
    slug = request.headers.get(ORGANIZATION_HEADER)
    if slug and not Organization.objects.filter(pk=token.organization_id, slug=slug).exists():
        raise _build_unknown_organization_error(slug)


def resolve_principal(request: Any) -> Principal:
    """Return the principal of a Django or DRF request and cache it on the request.

    Raises `SecondFactorRequired` or `SingleSignOnRequired` if the organization requires either and
    the session lacks it.
    """
    principal = getattr(request, "bonobot_principal", None)
    if principal is None:
        token = getattr(request, "auth", None)
        if isinstance(token, Token):
            _check_organization_header(request, token)
            principal = build_token_principal(token)
        else:
            user: User = request.user
            organization = resolve_organization(request)
            principal = build_user_principal(user, organization)
            check_sign_in_requirements(request, organization)
        request.bonobot_principal = principal
    return principal


def read_client_name(request: Any) -> str:
    """Return the User-Agent of a request, cleaned for the audit log."""
    return make_visible(request.headers.get("User-Agent", ""), MAX_CLIENT_LENGTH)


def _build_unknown_organization_error(slug: str) -> NotFound:
    return NotFound(
        format_message("Organization {slug!r} doesn't exist, or you aren't a member.", slug=slug),
        field=ORGANIZATION_HEADER,
        remedy="Omit the header, or use one of your organizations.",
    )
