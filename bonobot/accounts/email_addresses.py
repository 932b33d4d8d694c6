"""allauth's rows of email addresses: one for the current address, one for a requested one.

The rows give each change a number that never returns. Links to confirm an address name the row of
the request, and password reset links depend on the row of the current address. So no link becomes
valid again when an old address is restored. `User.email` stays the address that is used.
"""

from allauth.account.models import EmailAddress
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction

from bonobot.accounts.models import User
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput


def parse_email_address(text: str) -> str:
    """Return an email address in lower case; raises `InvalidInput`."""
    address = text.strip().lower()
    try:
        validate_email(address)
    except ValidationError:
        raise InvalidInput(
            format_message("{address!r} isn't a valid email address.", address=address),
            field="email",
            remedy="Use an address such as anna@example.com.",
        ) from None
    return address


def get_address_number(user: User) -> int:
    """Return the number of the user's current address, 0 before the first change (a query)."""
    rows = EmailAddress.objects.filter(user=user, primary=True)
    return rows.values_list("pk", flat=True).first() or 0


def add_requested_address(user: User, address: str) -> int:
    """Store an unconfirmed address in place of an earlier one; return its number."""
    with transaction.atomic():
        rows = EmailAddress.objects.filter(user=user)
        rows.filter(primary=False).delete()
        rows.update(email=user.email)  # no longer the current one if it was changed elsewhere
        return EmailAddress.objects.create(user=user, email=address).pk


def find_requested_address(user: User, number: int) -> str:
    """Return the requested address with this number, "" if it is no longer requested."""
    rows = EmailAddress.objects.filter(user=user, pk=number, primary=False)
    return rows.values_list("email", flat=True).first() or ""


def delete_requested_addresses(user: User) -> None:
    """Invalidate the links to confirm an address."""
    EmailAddress.objects.filter(user=user, primary=False).delete()


def claim_requested_address(user: User, number: int) -> bool:
    """Delete a request; return whether it existed, so that one of two confirmations wins."""
    deleted, _counts = EmailAddress.objects.filter(user=user, pk=number, primary=False).delete()
    return bool(deleted)


def store_current_address(user: User) -> None:
    """Give the changed address of a user a new number; invalidates earlier links."""
    with transaction.atomic():
        EmailAddress.objects.filter(user=user).delete()
        EmailAddress.objects.create(user=user, email=user.email, primary=True)
