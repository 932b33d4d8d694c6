"""Forms for second factors: each authenticator code is valid once, and cloned keys are refused.

Their labels and errors replace allauth's.

allauth remembers a used code for one step in the cache. With the tolerance, a code is valid for
three, and without Redis each process has a cache of its own. It ignores the sign counts of passkeys
and accepts a credential that another account has registered.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from allauth.core.internal.cryptokit import compare_user_code
from allauth.mfa.adapter import get_adapter
from allauth.mfa.base import forms
from allauth.mfa.models import Authenticator
from allauth.mfa.totp import forms as totp_forms
from allauth.mfa.totp.internal.auth import (
    format_hotp_value,
    hotp_value,
    yield_hotp_counters_from_time,
)
from allauth.mfa.webauthn import forms as webauthn_forms
from allauth.mfa.webauthn.internal.auth import parse_authentication_response
from django import forms as django_forms
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext_lazy as _

from bonobot.core.db.transactions import lock_rows

# Keys of allauth's data.
USED_STEP = "used_step"
SIGN_COUNT = "sign_count"


@contextmanager
def _refuse_removed_factor() -> Iterator[None]:
    """Refuse a factor that is removed or generated again while it is checked."""
    try:
        yield
    except Authenticator.DoesNotExist:
        raise get_adapter().validation_error("incorrect_code") from None


@contextmanager
def _describe_passkey_error() -> Iterator[None]:
    """Name the passkey in allauth's error, which is the same as for codes."""
    try:
        yield
    except ValidationError as error:
        if error.code != "incorrect_code":
            raise
        raise get_adapter().validation_error("invalid_passkey") from None


def _build_code_field(label: Any) -> django_forms.CharField:
    attributes = {"autocomplete": "one-time-code", "autofocus": True}
    return django_forms.CharField(label=label, widget=django_forms.TextInput(attributes))


class ActivateTotpForm(totp_forms.ActivateTOTPForm):
    """The first code of a new authenticator app."""

    code = _build_code_field(_("Code from the app"))


class SingleUseCode(django_forms.Form):
    """A form that refuses authenticator codes of a used time step, or of an earlier one."""

    authenticator: Authenticator
    code = _build_code_field(_("Code"))

    def clean_code(self) -> str:
        """Return the valid code; raises `ValidationError`."""
        form: Any = super()
        with _refuse_removed_factor():
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


class IncreasingSignCount:
    """A form that refuses a passkey whose sign count doesn't increase (WebAuthn, section 6.1.1)."""

    cleaned_data: dict[str, Any]

    def clean_credential(self) -> Authenticator:
        """Return the passkey of a valid assertion; raises `ValidationError`."""
        form: Any = super()
        with _describe_passkey_error(), _refuse_removed_factor():
            assertion = parse_authentication_response(self.cleaned_data["credential"])
            authenticator: Authenticator = form.clean_credential()
            if not _claim_sign_count(authenticator, assertion.response.authenticator_data.counter):
                raise get_adapter().validation_error("incorrect_code")
        return authenticator


class AuthenticateWebAuthnForm(IncreasingSignCount, webauthn_forms.AuthenticateWebAuthnForm):
    """The passkey at a sign-in."""

    @property
    def has_passkeys(self) -> bool:
        """Whether the person, who has entered the password, has a passkey (one query)."""
        passkeys = Authenticator.objects.filter(type=Authenticator.Type.WEBAUTHN)
        return bool(passkeys.filter(user=self.user).exists())


class ReauthenticateWebAuthnForm(IncreasingSignCount, webauthn_forms.ReauthenticateWebAuthnForm):
    """The passkey before a sensitive change."""


class AddWebAuthnForm(webauthn_forms.AddWebAuthnForm):
    """A new passkey; its credential may not belong to another account (WebAuthn, section 7.1)."""

    name = django_forms.CharField(label=_("Name"), required=False)

    def clean(self) -> dict[str, Any]:
        """Check the registration; raises `ValidationError`."""
        with _describe_passkey_error():
            cleaned_data: dict[str, Any] = super().clean()
        credential_id = cleaned_data.get("credential", {}).get("id")
        passkeys = Authenticator.objects.filter(type=Authenticator.Type.WEBAUTHN)
        if passkeys.filter(data__credential__id=credential_id).exists():
            raise get_adapter().validation_error("invalid_passkey")
        return cleaned_data


class RenamePasskeyForm(webauthn_forms.EditWebAuthnForm):
    """Another name of a passkey."""

    name = django_forms.CharField(label=_("Name"))


def _claim_sign_count(authenticator: Authenticator, sign_count: int) -> bool:
    """Store the sign count of an assertion; return whether it increased or isn't supported (0)."""
    with transaction.atomic():
        lock_rows(Authenticator.objects.filter(pk=authenticator.pk))
        authenticator.refresh_from_db(fields=["data"])
        stored_count = authenticator.data.get(SIGN_COUNT)
        if stored_count is None:
            stored_count = authenticator.wrap().authenticator_data.counter
        if (sign_count or stored_count) and sign_count <= stored_count:
            return False
        authenticator.data[SIGN_COUNT] = sign_count
        authenticator.save(update_fields=["data"])
    return True
