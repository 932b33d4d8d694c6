"""Which organization a request works in, and the principal that results.

A token belongs to one organization. A person with several chooses by the header
`Bonobot-Organization` (a slug) or, in the admin, by the switcher that the session remembers.
"""

from typing import Any

from django.http import HttpRequest

from bonobot.lib.problems import Forbidden, NotFound
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from bonobot.tenancy.models import Organization, Token, User
from bonobot.tenancy.principals import Principal, principal_for_token, principal_for_user
from bonobot.tenancy.sign_on import check_sign_on, mark_of, organizations_of

HEADER = "Bonobot-Organization"
SESSION_KEY = "organization"
LONGEST_CLIENT = 200


def organization_of(request: HttpRequest) -> Organization:
    """Return the organization that a signed-in person works in.

    Raises `NotFound` for a name that isn't theirs and `Forbidden` when they belong to none.
    """
    user: Any = request.user
    mine = organizations_of(request)
    if slug := request.headers.get(HEADER):
        if found := mine.filter(slug=slug).first():
            return found
        raise _unknown(slug)
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
        raise _unknown(slug)


def principal_of(request: Any) -> Principal:
    """Return the principal of a Django or DRF request, remembering it on the request.

    Raises `SecondFactorNeeded` or `SingleSignOnNeeded` for a person where the organization asks
    for more than they came with.
    """
    cached = getattr(request, "bonobot_principal", None)
    if cached is None:
        token = getattr(request, "auth", None)
        if isinstance(token, Token):
            _check_named(request, token)
            cached = principal_for_token(token)
        else:
            user: User = request.user
            organization = organization_of(request)
            cached = principal_for_user(user, organization)
            check_sign_on(request, organization)
        request.bonobot_principal = cached
    return cached


def client_of(request: Any) -> str:
    """Return what the caller's program says that it is, as the audit keeps it."""
    return visible(request.headers.get("User-Agent", ""), LONGEST_CLIENT)


def _unknown(slug: str) -> NotFound:
    return NotFound(
        say("There is no organization {slug!r} for you.", slug=slug),
        field=HEADER,
        remedy="Leave the header out, or name one of your organizations.",
    )
