"""Forms for codes of a second factor, which accept each authenticator code once.

allauth remembers a used code for one step in the cache. With the tolerance, a code is valid for
three, and without Redis each process has a cache of its own.
"""

from typing import Any

from allauth.core.internal.cryptokit import compare_user_code
from allauth.mfa.adapter import get_adapter
from allauth.mfa.base import forms
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import (
    format_hotp_value,
    hotp_value,
    yield_hotp_counters_from_time,
)
from django.db import transaction

from bonobot.core.db.transactions import lock_rows

USED_STEP = "used_step"  # key of allauth's data


class SingleUseCode:
    """A form that refuses authenticator codes of a used time step, or of an earlier one."""

    authenticator: Authenticator

    def clean_code(self) -> str:
        """Return the valid code; raises `ValidationError`."""
        form: Any = super()
        code = str(form.clean_code())
        if self.authenticator.type == Authenticator.Type.TOTP and not _claim_step(
            self.authenticator, code
        ):
            raise get_adapter().validation_error("incorrect_code")
        return code


class AuthenticateForm(SingleUseCode, forms.AuthenticateForm):
    """The code at a sign-in."""


class ReauthenticateForm(SingleUseCode, forms.ReauthenticateForm):
    """The code before a sensitive change."""


def _claim_step(authenticator: Authenticator, code: str) -> bool:
    """Store the time step of a code; return whether it is later than the stored one."""
    with transaction.atomic():
        lock_rows(Authenticator.objects.filter(pk=authenticator.pk))
        authenticator.refresh_from_db(fields=["data"])
        step = _find_step(authenticator, code)
        if step is None or step <= authenticator.data.get(USED_STEP, -1):
            return False
        authenticator.data[USED_STEP] = step
        authenticator.save(update_fields=["data"])
    return True


def _find_step(authenticator: Authenticator, code: str) -> int | None:
    secret = get_adapter().decrypt(authenticator.data["secret"])
    for step in yield_hotp_counters_from_time():
        if compare_user_code(actual=code, expected=format_hotp_value(hotp_value(secret, step))):
            return int(step)
    return None
