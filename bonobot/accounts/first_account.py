"""Create the first account of an installation with a link that only its host can read.

`bonobot up` prints the link. Without it, anyone who reaches a new installation first could become
its platform administrator.
"""

from django.core import signing
from django.core.exceptions import ValidationError
from django.db import transaction
from django.urls import reverse
from django.utils.text import slugify

from bonobot.accounts.members import add_member
from bonobot.accounts.models import Organization, User
from bonobot.accounts.organizations import save_organization
from bonobot.accounts.principals import build_user_principal
from bonobot.accounts.roles import Role
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound

LINK_SALT = "bonobot.first-account"
LINK_MAX_AGE_S = 24 * 3600
MAX_SLUG_LENGTH = 64
DEFAULT_SLUG = "organization"  # for names without characters that a slug can have


def is_account_missing() -> bool:
    """Return whether there is no active account to sign in with (one query)."""
    return not User.objects.filter(is_active=True).exists()


def build_first_account_path() -> str:
    """Return the path of a link that creates the first account, valid for `LINK_MAX_AGE_S`."""
    return reverse("account_first_link", args=[signing.dumps("", salt=LINK_SALT)])


def require_valid_link(text: str) -> None:
    """Raise `NotFound` unless the end of a link is valid and there is no account yet."""
    try:
        signing.loads(text, salt=LINK_SALT, max_age=LINK_MAX_AGE_S)
        is_valid = is_account_missing()
    except signing.BadSignature:
        is_valid = False
    if not is_valid:
        raise NotFound(
            format_message("This link isn't valid: it has expired, or an account exists."),
            code="link_expired",
            remedy=format_message("Sign in, or restart `bonobot up` for a new link."),
        )


def create_first_account(
    text: str, organization_name: str, *, username: str, email: str, password: str
) -> User:
    """Create the platform administrator and the organization that they own.

    `text` is the end of a link; raises `NotFound`, `InvalidInput`.
    """
    with transaction.atomic():
        require_valid_link(text)
        user: User = User(username=username, email=email, is_staff=True, is_superuser=True)
        user.set_password(password)
        try:
            user.full_clean()
        except ValidationError as error:
            field, messages = next(iter(error.message_dict.items()))
            raise InvalidInput(messages[0], field=field, remedy="Change this value.") from None
        user.save()
        create_organization_with_owner(user, organization_name)
    return user


def create_organization_with_owner(user: User, name: str) -> Organization:
    """Create an organization owned by `user`, a platform administrator; raises `InvalidInput`."""
    organization = Organization(name=name, slug=slugify(name)[:MAX_SLUG_LENGTH] or DEFAULT_SLUG)
    principal = build_user_principal(user, organization)
    with transaction.atomic():
        save_organization(principal, organization, adding=True)
        add_member(principal, user.get_username(), Role.OWNER)
    return organization
