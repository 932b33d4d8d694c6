"""Bearer token authentication for DRF."""

from typing import Any

from django.contrib.auth.models import AnonymousUser
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.request import Request

from bonobot.accounts.models import Token
from bonobot.accounts.tokens.services import authenticate_token


class TokenUser(AnonymousUser):
    """The user of a token request: authenticated, but no person."""

    is_authenticated = True  # type: ignore[assignment]  # Django types the anonymous one as False


class TokenAuthentication(BaseAuthentication):
    """Authenticate Bonobot tokens; leave other schemes to the next authenticator."""

    def authenticate(self, request: Request) -> tuple[Any, Token] | None:
        """Return (user, token), or None without a bearer header; raises `InvalidToken`."""
        scheme, _, text = get_authorization_header(request).decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            return None
        return TokenUser(), authenticate_token(text.strip(), request.META.get("REMOTE_ADDR", ""))

    def authenticate_header(self, request: Request) -> str:
        """Return the `WWW-Authenticate` header of a 401."""
        return 'Bearer realm="bonobot"'
