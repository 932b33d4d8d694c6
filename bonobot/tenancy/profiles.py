"""Profiles: what people say about themselves, and where they are signed in. Audited.

The account is the person's own, so no role is needed. An e-mail address is another matter: links
for new passwords go there, so a new one holds when a link that was mailed to it has been opened.
"""

from datetime import timedelta
from typing import Any

from allauth.usersessions.models import UserSession
from django.conf import settings
from django.core import signing
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.urls import reverse
from django.utils.translation import gettext as _t

from bonobot.ledger.changes import written_last
from bonobot.lib.problems import Conflict, Invalid, NotFound
from bonobot.lib.sayings import say
from bonobot.tenancy import letters
from bonobot.tenancy.attempts import RESET_ADDRESS, RESET_EMAIL, attempt
from bonobot.tenancy.members import save_user
from bonobot.tenancy.models import User
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.second_factor import end_sessions, record_own, require_power_over

OWN = ("first_name", "last_name", "language", "time_zone")
OTHERS = (*OWN, "email")
SALT = "profiles: e-mail"
SESSIONS_SHOWN = 50


def alter(user: User, **said: Any) -> None:
    """Change what a person says about themselves (`OWN`); raises `Invalid`."""
    if changed := _set(user, said, OWN):
        with written_last():  # what the request requires is checked before anything is written
            user.save(update_fields=changed)
            record_own("profile_changed", user, changed=changed)


def alter_for(principal: Principal, user: User, **said: Any) -> None:
    """Change another's profile, the address too; platform administrators. Raises `Invalid`."""
    if changed := _set(user, said, OTHERS):
        save_user(principal, user, changed, adding=False)


def ask_for_address(user: User, email: str, came_from: str) -> str:
    """Mail a link to a new address and return the address; nothing changes before it is opened.

    `came_from` is the network address that asks. Raises `Invalid`, `TooMany`, `Unavailable` and
    `Conflict` (code `mail_unset`).
    """
    address = _address(email)
    if address == user.email:
        raise Invalid("That is your address already.", field="email", remedy="Write another one.")
    if not letters.can_send():
        raise Conflict(
            "This installation sends no e-mail, so that a new address can't be proved.",
            code="mail_unset",
            field="email",
            remedy="Ask a platform administrator to change it.",
        )
    attempt(RESET_ADDRESS, came_from)
    attempt(RESET_EMAIL, address)
    text = signing.dumps({"user": str(user.pk), "from": user.email, "to": address}, salt=SALT)
    with letters.language_of(user):
        letters.send(
            address,
            _t("Your address on Bonobot"),
            (
                _t("Open this link to make this the address of %(name)s:")
                % {"name": user.get_username()},
                letters.address_of(reverse("admin:profile_proof", args=[text])),
                _t("It can be used once, within %(hours)s hours.")
                % {"hours": settings.BONOBOT_PASSWORD_RESET_H},
                _t("If you don't know what this is about, do nothing."),
            ),
        )
    return address


def proved(user: User, text: str) -> str:
    """Return the new address that a link proves for this person; raises `NotFound`."""
    try:
        term = timedelta(hours=settings.BONOBOT_PASSWORD_RESET_H)
        said = signing.loads(text, salt=SALT, max_age=term)
    except signing.BadSignature:
        said = {}
    if said.get("user") != str(user.pk) or said.get("from") != user.email:
        raise NotFound(
            "This link was used, has expired or belongs to another account.",
            code="link_ended",
            remedy="Sign in with the account that it is for, or ask for another link.",
        )
    return str(said["to"])


def take_address(user: User, text: str) -> str:
    """Give a person the address that a link proves, and return it; raises `NotFound`.

    The address before is told, so that nobody loses theirs without hearing of it.
    """
    before, user.email = user.email, proved(user, text)
    if not User.objects.filter(pk=user.pk, email=before).update(email=user.email):
        user.email = before
        return proved(user, "")
    record_own("email_changed", user)
    if before and letters.can_send():
        with letters.language_of(user):
            letters.send(
                before,
                _t("Your address on Bonobot"),
                (
                    _t("The account %(name)s has another address now.")
                    % {"name": user.get_username()},
                    _t("If that wasn't you, tell an administrator at once."),
                ),
            )
    return user.email


def sessions_of(user: User) -> list[UserSession]:
    """Return where a person is signed in, the newest first; those that ended are forgotten."""
    found = UserSession.objects.purge_and_list(user)
    return sorted(found, key=lambda one: one.created_at, reverse=True)


def sign_out_elsewhere(user: User, *, here: str) -> int:
    """End a person's sessions but this one (its key); return how many ended."""
    ended = sum(one.session_key != here for one in sessions_of(user))
    end_sessions(user, but=here)
    record_own("signed_out_elsewhere", user, sessions=ended)
    return ended


def sign_out(principal: Principal, user: User) -> int:
    """End all sessions of another person; return how many. Raises `Forbidden`."""
    require_power_over(principal, user)
    ended = len(sessions_of(user))
    end_sessions(user)
    record_own("signed_out", user, sessions=ended, by=principal.label)
    return ended


def _set(user: User, said: dict[str, Any], allowed: tuple[str, ...]) -> list[str]:
    """Set what is said and return the names of what differs; raises `Invalid`."""
    before = {name: getattr(user, name) for name in allowed}
    for name, value in said.items():
        if name not in allowed:
            raise Invalid(
                say("{name!r} can't be set here.", name=name),
                field=name,
                remedy=say("There are: {allowed}.", allowed=", ".join(allowed)),
            )
        given = _address(value) if name == "email" else value.strip()
        setattr(user, name, "" if (name, given) == ("time_zone", "UTC") else given)
    changed = [name for name, value in before.items() if getattr(user, name) != value]
    try:
        user.clean_fields(exclude={field.name for field in user._meta.fields} - set(changed))
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise Invalid(messages[0], field=field, remedy="Change this value.") from None
    return changed


def _address(email: str) -> str:
    address = email.strip().lower()
    try:
        validate_email(address)
    except ValidationError:
        raise Invalid(
            say("{address!r} is no e-mail address.", address=address),
            field="email",
            remedy="Write it like anna@example.com.",
        ) from None
    return address
