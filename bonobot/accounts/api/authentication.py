"""Bearer token authentication for DRF."""

from typing import Any

from django.contrib.auth.models import AnonymousUser
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.request import Request

from bonobot.accounts.models import Token
from bonobot.accounts.tokens.services import authenticate


class TokenUser(AnonymousUser):
    """The user side of a token request: signed in, but nobody in particular."""

    is_authenticated = True  # type: ignore[assignment]  # Django types the anonymous one as False


class TokenAuthentication(BaseAuthentication):
    """Sign in by a Bonobot token; other schemes are left to the next authenticator."""

    def authenticate(self, request: Request) -> tuple[Any, Token] | None:
        """Return (user, token), or None without a bearer header; raises `BadToken`."""
        scheme, _, text = get_authorization_header(request).decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            return None
        return TokenUser(), authenticate(text.strip(), request.META.get("REMOTE_ADDR", ""))

    def authenticate_header(self, request: Request) -> str:
        """Say how to sign in, on a 401."""
        return 'Bearer realm="bonobot"'
