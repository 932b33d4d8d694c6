"""An OAuth client and the browser of the person who authorizes it."""

import hashlib
import json
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from django.conf import settings
from django.test import Client

from bonobot.accounts.models import User

REDIRECT = "http://127.0.0.1:4711/callback"
AGENT = "/mcp/agents/helper"
RESOURCE = f"{settings.BONOBOT_URL}{AGENT}"
AUTHORIZE, TOKEN, REVOKE, REGISTER = (
    f"/oauth/{name}" for name in ("authorize", "token", "revoke", "register")
)
ALLOW = {"answer": "allow", "role": "member", "scopes": ["mcp:tools"]}
VERIFIER = "v" * 43
CHALLENGE = urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()


class OAuthClient:
    """A public client, and the browser of its person."""

    def __init__(self, person: User | None = None, **metadata: Any) -> None:
        self.client = Client(enforce_csrf_checks=False)
        self.browser = Client()
        if person is not None:
            self.browser.force_login(person)
        self.registered = self.register(**metadata)
        self.id = str(self.registered.json().get("client_id", ""))
        self.state = secrets.token_hex(8)

    def register(self, **metadata: Any) -> Any:
        """Register the client and return the response."""
        body = {"client_name": "IDE", "redirect_uris": [REDIRECT]} | metadata
        return self.client.post(REGISTER, json.dumps(body), content_type="application/json")

    def build_authorize_url(self, **overrides: Any) -> str:
        """Return the URL that the person is redirected to; None removes a parameter."""
        values = {
            "response_type": "code",
            "client_id": self.id,
            "redirect_uri": REDIRECT,
            "scope": "mcp:tools",
            "state": self.state,
            "code_challenge": CHALLENGE,
            "code_challenge_method": "S256",
            "resource": RESOURCE,
        } | overrides
        parameters = {name: value for name, value in values.items() if value is not None}
        return f"{AUTHORIZE}?{urlencode(parameters, doseq=True)}"

    def open_consent(self, **overrides: Any) -> Any:
        """Return the consent page."""
        return self.browser.get(self.build_authorize_url(**overrides))

    def submit_consent(self, answer: Mapping[str, Any] = ALLOW, **overrides: Any) -> Any:
        """Submit the consent form and return the response."""
        return self.browser.post(self.build_authorize_url(**overrides), answer)

    def read_redirect(self, answer: Mapping[str, Any] = ALLOW, **overrides: Any) -> dict[str, str]:
        """Submit the consent form and return the parameters of the redirect to the client."""
        response = self.submit_consent(answer, **overrides)
        assert response.status_code == 303, response.content.decode()
        return dict(parse_qsl(urlsplit(response["Location"]).query))

    def code(self, answer: Mapping[str, Any] = ALLOW, **overrides: Any) -> str:
        """Authorize the client and return the code."""
        return self.read_redirect(answer, **overrides)["code"]

    def exchange(self, code: str, /, **overrides: Any) -> Any:
        """Exchange a code for tokens and return the response."""
        data = {
            "grant_type": "authorization_code",
            "code": code,
            "client_id": self.id,
            "redirect_uri": REDIRECT,
            "code_verifier": VERIFIER,
            "resource": RESOURCE,
        } | overrides
        return self.client.post(TOKEN, {k: v for k, v in data.items() if v is not None})

    def refresh(self, refresh_token: str, /, **overrides: Any) -> Any:
        """Exchange a refresh token for new tokens and return the response."""
        data = {
            "grant_type": "refresh_token",
            "refresh_token": refresh_token,
            "client_id": self.id,
        } | overrides
        return self.client.post(TOKEN, data)

    def authorize(self, answer: Mapping[str, Any] = ALLOW, **overrides: Any) -> dict[str, Any]:
        """Authorize the client and return its tokens."""
        response = self.exchange(
            self.code(answer, **overrides), resource=overrides.get("resource", RESOURCE)
        )
        assert response.status_code == 200, response.content
        tokens: dict[str, Any] = response.json()
        return tokens

    def revoke(self, token: str, **overrides: Any) -> Any:
        """Revoke a token."""
        return self.client.post(REVOKE, {"token": token, "client_id": self.id} | overrides)


def error(response: Any) -> str:
    """Return the error code of an endpoint for clients."""
    assert response.status_code in (400, 401), (response.status_code, response.content)
    return str(response.json()["error"])
