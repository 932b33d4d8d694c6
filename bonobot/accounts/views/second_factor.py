"""allauth's pages that write back what they read, each in a transaction that locks the factors.

Otherwise, viewing the recovery codes for the first time makes a code valid again that is used in
the meantime, and renaming a passkey restores its old sign count.
"""

from collections.abc import Callable
from functools import wraps

from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes import views as recovery_codes
from allauth.mfa.webauthn import views as webauthn
from django.db import transaction
from django.http import HttpRequest, HttpResponseBase

from bonobot.accounts.admin_base.responses import View
from bonobot.core.db.transactions import lock_rows


def _lock_factors(view: Callable[..., HttpResponseBase]) -> View:
    @wraps(view)
    @transaction.atomic
    def locked_view(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        lock_rows(Authenticator.objects.filter(user=request.user.pk))
        return view(request, *args, **kwargs)

    return locked_view


view_recovery_codes = _lock_factors(recovery_codes.view_recovery_codes)
download_recovery_codes = _lock_factors(recovery_codes.download_recovery_codes)
rename_passkey = _lock_factors(webauthn.edit_webauthn)
