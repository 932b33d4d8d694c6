"""Email people when the way they sign in changes, so that they notice a change by another person.

The emails are queued with the change. A change of the email address is announced
at the old and the new address.
"""

from django.utils.translation import gettext as _t
from django.utils.translation import gettext_noop

from bonobot.accounts.account_emails import queue_email
from bonobot.accounts.email_kinds import EmailContent
from bonobot.accounts.models import User
from bonobot.core.text.untrusted_text import make_visible

MAX_NAME_SHOWN = 100
SIGN_IN_CHANGED = "sign_in_changed"

# What happened, by the code of the change. `method` is the name of a passkey or a provider.
SENTENCES = {
    "password_changed": gettext_noop("The password of the account %(name)s was changed."),
    "email_added": gettext_noop("The account %(name)s now has an email address."),
    "email_changed": gettext_noop("The account %(name)s now has a different email address."),
    "email_removed": gettext_noop("The email address of the account %(name)s was removed."),
    "totp_added": gettext_noop("An authenticator app was added to the account %(name)s."),
    "totp_removed": gettext_noop("The authenticator app of the account %(name)s was removed."),
    "webauthn_added": gettext_noop("The passkey “%(method)s” was added to the account %(name)s."),
    "webauthn_removed": gettext_noop(
        "The passkey “%(method)s” of the account %(name)s was removed."
    ),
    "recovery_codes_added": gettext_noop("The account %(name)s has new recovery codes."),
    "recovery_codes_removed": gettext_noop(
        "The recovery codes of the account %(name)s were removed."
    ),
    "identity_linked": gettext_noop(
        "The identity provider “%(method)s” can now sign in to the account %(name)s."
    ),
    "identity_unlinked": gettext_noop(
        "The identity provider “%(method)s” can no longer sign in to the account %(name)s."
    ),
}


def announce_change(user: User, change: str, *, method: str = "", old_email: str = "") -> None:
    """Queue emails about a change, a code of `SENTENCES`, if mail can be sent."""
    for address in sorted({user.email, old_email} - {""}):
        queue_email(user, SIGN_IN_CHANGED, address=address, change=change, method=method)


def announce_email_change(user: User, old_email: str) -> None:
    """Queue emails to the old and the new address."""
    change = "email_changed" if user.email and old_email else "email_added"
    announce_change(user, change if user.email else "email_removed", old_email=old_email)


def build_change_email(user: User, change: str, method: str) -> EmailContent:
    """Build the email about a change."""
    values = {"name": user.get_username(), "method": make_visible(method, MAX_NAME_SHOWN)}
    return EmailContent(
        _t("Your sign-in to Bonobot was changed"),
        (
            _t(SENTENCES[change]) % values,
            _t("If this wasn't you, contact an administrator immediately."),
        ),
    )
