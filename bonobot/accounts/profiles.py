"""Update profiles and email addresses, and end sessions.

Users need no role to edit their own account. A new email address takes effect only after the link
mailed to it was opened, because password reset links go there.
"""

from datetime import timedelta
from typing import Any

from allauth.usersessions.models import UserSession
from django.conf import settings
from django.core import signing
from django.core.exceptions import ValidationError
from django.db import transaction
from django.urls import reverse

from bonobot.accounts import account_emails, email_addresses
from bonobot.accounts.account_emails import announce_email_change
from bonobot.accounts.attempt_limits import RESET_ADDRESS, RESET_EMAIL, charge_attempt
from bonobot.accounts.members import save_user
from bonobot.accounts.models import User
from bonobot.accounts.principals import Principal
from bonobot.accounts.second_factor import end_sessions, record_own_change, require_account_control
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput, NotFound
from bonobot.ledger.audit.admin_changes import record_changes_at_end

OWN_FIELDS = ("first_name", "last_name", "language", "time_zone")
MANAGED_FIELDS = (*OWN_FIELDS, "email")
EMAIL_LINK_SALT = "profiles: e-mail"
LINK_BINDING = ("user", "from", "password")
MAX_SESSIONS_SHOWN = 50


def update_own_profile(user: User, **values: Any) -> None:
    """Update a user's own profile (`OWN_FIELDS`); raises `InvalidInput`."""
    if changed_names := _set_profile_fields(user, values, OWN_FIELDS):
        with record_changes_at_end():  # checks the preconditions of the request before writing
            user.save(update_fields=changed_names)
            record_own_change("profile_updated", user, changed=changed_names)


def update_profile(principal: Principal, user: User, **values: Any) -> None:
    """Update another user's profile and email as an administrator; raises `InvalidInput`."""
    if changed_names := _set_profile_fields(user, values, MANAGED_FIELDS):
        save_user(principal, user, changed_names, adding=False)


def request_email_change(user: User, email: str, client_address: str) -> str:
    """Mail a confirmation link to a new address and return the address; changes nothing yet.

    Raises `InvalidInput`, `TooManyAttempts`, `ServiceUnavailable` and `Conflict` (code
    `email_not_configured`).
    """
    address = email_addresses.parse_email_address(email)
    if address == user.email:
        raise InvalidInput(
            "This is already your email address.", field="email", remedy="Enter a different one."
        )
    if not account_emails.can_send():
        raise Conflict(
            "This installation doesn't send email, so a new email address can't be verified.",
            code="email_not_configured",
            field="email",
            remedy="Ask a platform administrator to change it.",
        )
    charge_attempt(RESET_ADDRESS, client_address)
    charge_attempt(RESET_EMAIL, address)
    number = email_addresses.add_requested_address(user, address)
    link_token = signing.dumps(_build_link_binding(user) | {"row": number}, salt=EMAIL_LINK_SALT)
    link = account_emails.build_absolute_url(
        reverse("admin:profile_confirm_email", args=[link_token])
    )
    with account_emails.override_language(user):
        content = account_emails.write_address_confirmation_email(user, link)
        account_emails.send_email(address, content.subject, content.paragraphs)
    return address


def verify_email_link(user: User, link_token: str) -> str:
    """Return the new address that a link confirms for this user; raises `NotFound`."""
    return _read_email_link(user, link_token)[1]


def _read_email_link(user: User, link_token: str) -> tuple[int, str]:
    """Return the number and the address of the request of a link; raises `NotFound`."""
    try:
        max_age = timedelta(hours=settings.BONOBOT_PASSWORD_RESET_H)
        payload = signing.loads(link_token, salt=EMAIL_LINK_SALT, max_age=max_age)
    except signing.BadSignature:
        payload = {}
    is_bound = {name: payload.get(name) for name in LINK_BINDING} == _build_link_binding(user)
    number = int(payload.get("row", 0)) if is_bound else 0
    address = email_addresses.find_requested_address(user, number)
    if not address:
        raise _build_link_error()
    return number, address


def _build_link_error() -> NotFound:
    return NotFound(
        "This link has been used, has expired, or belongs to another account.",
        code="link_invalid",
        remedy="Sign in with the account that the link belongs to, or request a new link.",
    )


def _build_link_binding(user: User) -> dict[str, str]:
    """Return what a link is bound to: a new email address or password invalidates it."""
    password_stamp = str(user.get_session_auth_hash())[:16]
    return dict(zip(LINK_BINDING, (str(user.pk), user.email, password_stamp), strict=True))


def confirm_email_change(user: User, link_token: str) -> str:
    """Set the address that a link confirms and return it; raises `NotFound`.

    The old and the new address are notified of the change.
    """
    number, new_email = _read_email_link(user, link_token)
    old_email = user.email
    with transaction.atomic():
        is_open = email_addresses.claim_requested_address(user, number)
        rows = User.objects.filter(pk=user.pk, email=old_email)
        if not is_open or not rows.update(email=new_email):
            raise _build_link_error()
        user.email = new_email
        email_addresses.store_current_address(user)
        record_own_change("email_changed", user)
        announce_email_change(user, old_email)
    return user.email


def list_sessions(user: User) -> list[UserSession]:
    """Return a user's sessions, newest first; deletes those that ended."""
    sessions = UserSession.objects.purge_and_list(user)
    return sorted(sessions, key=lambda session: session.created_at, reverse=True)


def sign_out_other_sessions(user: User, *, current_session_key: str) -> int:
    """End a user's sessions except the one with this key; return how many ended."""
    ended_count = sum(session.session_key != current_session_key for session in list_sessions(user))
    end_sessions(user, except_key=current_session_key)
    record_own_change("other_sessions_signed_out", user, sessions=ended_count)
    return ended_count


def sign_out_everywhere(principal: Principal, user: User) -> int:
    """End all sessions of another user; return how many. Raises `Forbidden`."""
    require_account_control(principal, user)
    ended_count = len(list_sessions(user))
    end_sessions(user)
    record_own_change("signed_out", user, sessions=ended_count, by=principal.label)
    return ended_count


def _set_profile_fields(
    user: User, values: dict[str, Any], allowed_names: tuple[str, ...]
) -> list[str]:
    """Set fields on the user and return the names of those that changed; raises `InvalidInput`."""
    before = {name: getattr(user, name) for name in allowed_names}
    for name, value in values.items():
        if name not in allowed_names:
            raise InvalidInput(
                format_message("{name!r} can't be set here.", name=name),
                field=name,
                remedy=format_message(
                    "Supported fields: {fields}.", fields=", ".join(allowed_names)
                ),
            )
        cleaned = email_addresses.parse_email_address(value) if name == "email" else value.strip()
        setattr(user, name, "" if (name, cleaned) == ("time_zone", "UTC") else cleaned)
    changed_names = [name for name, value in before.items() if getattr(user, name) != value]
    try:
        user.clean_fields(exclude={field.name for field in user._meta.fields} - set(changed_names))
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise InvalidInput(messages[0], field=field, remedy="Change this value.") from None
    return changed_names
