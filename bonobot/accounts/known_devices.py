"""Known devices: browsers in which somebody has signed in to an account with its password.

They have their own allowance of attempts, so that attempts from elsewhere can't lock the account's
owner out. A signed cookie names the account; a new password makes it invalid.
"""

import secrets
from typing import Any

from django.conf import settings
from django.core import signing
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from bonobot.accounts.models import User

COOKIE_SALT = "bonobot.known-device"
COOKIE_MAX_AGE_S = 180 * 24 * 3600


def remember_device(request: HttpRequest, response: HttpResponseBase, user: User) -> None:
    """Set the device cookie after a user proved their password in this browser."""
    device = find_device(request, user.get_username()) or secrets.token_urlsafe(16)
    value = signing.dumps([str(user.pk), _compute_password_stamp(user), device], salt=COOKIE_SALT)
    response.set_cookie(
        settings.BONOBOT_DEVICE_COOKIE,
        value,
        max_age=COOKIE_MAX_AGE_S,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )


def find_device(request: HttpRequest, username: str) -> str:
    """Return the device id if the browser is a known device of the account, else ""."""
    try:
        value: Any = signing.loads(
            request.COOKIES.get(settings.BONOBOT_DEVICE_COOKIE, ""),
            salt=COOKIE_SALT,
            max_age=COOKIE_MAX_AGE_S,
        )
        user_id, stamp, device = value
    except (signing.BadSignature, ValueError, TypeError):
        return ""
    user = User.objects.filter(pk=user_id, is_active=True).first()
    is_owner = user and user.get_username().lower() == username.strip().lower()
    return (
        str(device)
        if is_owner and secrets.compare_digest(stamp, _compute_password_stamp(user))
        else ""
    )


def _compute_password_stamp(user: User) -> str:
    return str(user.get_session_auth_hash())[:16]
