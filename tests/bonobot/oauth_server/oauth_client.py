"""A program that is let in: what it sends, and what its person answers, without a browser."""

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
HERE = f"{settings.BONOBOT_URL}{AGENT}"
AUTHORIZE, TOKEN, REVOKE, REGISTER = (
    f"/oauth/{name}" for name in ("authorize", "token", "revoke", "register")
)
ALLOW = {"answer": "allow", "role": "member", "scopes": ["mcp:tools"]}
VERIFIER = "v" * 43
CHALLENGE = urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()


class Program:
    """A public client of ours, and the browser of its person."""

    def __init__(self, person: User | None = None, **said: Any) -> None:
        self.client = Client(enforce_csrf_checks=False)
        self.browser = Client()
        if person is not None:
            self.browser.force_login(person)
        self.registered = self.register(**said)
        self.id = str(self.registered.json().get("client_id", ""))
        self.state = secrets.token_hex(8)

    def register(self, **said: Any) -> Any:
        """Register; the answer as it came."""
        body = {"client_name": "IDE", "redirect_uris": [REDIRECT]} | said
        return self.client.post(REGISTER, json.dumps(body), content_type="application/json")

    def address(self, **changed: Any) -> str:
        """Return the address that the person is sent to; None takes a parameter away."""
        asked = {
            "response_type": "code",
            "client_id": self.id,
            "redirect_uri": REDIRECT,
            "scope": "mcp:tools",
            "state": self.state,
            "code_challenge": CHALLENGE,
            "code_challenge_method": "S256",
            "resource": HERE,
        } | changed
        kept = {name: value for name, value in asked.items() if value is not None}
        return f"{AUTHORIZE}?{urlencode(kept, doseq=True)}"

    def asked(self, **changed: Any) -> Any:
        """Return the page that asks the person."""
        return self.browser.get(self.address(**changed))

    def answered(self, answer: Mapping[str, Any] = ALLOW, **changed: Any) -> Any:
        """Return what comes of the person's answer."""
        return self.browser.post(self.address(**changed), answer)

    def sent_back(self, answer: Mapping[str, Any] = ALLOW, **changed: Any) -> dict[str, str]:
        """Return what the program learns when its person is sent back."""
        response = self.answered(answer, **changed)
        assert response.status_code == 303, response.content.decode()
        return dict(parse_qsl(urlsplit(response["Location"]).query))

    def code(self, answer: Mapping[str, Any] = ALLOW, **changed: Any) -> str:
        """Be let in and return the code."""
        return self.sent_back(answer, **changed)["code"]

    def exchange(self, code: str, /, **changed: Any) -> Any:
        """Send a code for tokens; the answer as it came."""
        data = {
            "grant_type": "authorization_code",
            "code": code,
            "client_id": self.id,
            "redirect_uri": REDIRECT,
            "code_verifier": VERIFIER,
            "resource": HERE,
        } | changed
        return self.client.post(TOKEN, {k: v for k, v in data.items() if v is not None})

    def refresh(self, refresh_token: str, /, **changed: Any) -> Any:
        """Send a refresh token for new tokens; the answer as it came."""
        data = {
            "grant_type": "refresh_token",
            "refresh_token": refresh_token,
            "client_id": self.id,
        } | changed
        return self.client.post(TOKEN, data)

    def let_in(self, answer: Mapping[str, Any] = ALLOW, **changed: Any) -> dict[str, Any]:
        """Be let in and return the tokens."""
        response = self.exchange(
            self.code(answer, **changed), resource=changed.get("resource", HERE)
        )
        assert response.status_code == 200, response.content
        found: dict[str, Any] = response.json()
        return found

    def revoke(self, text: str, **changed: Any) -> Any:
        """Give a text back."""
        return self.client.post(REVOKE, {"token": text, "client_id": self.id} | changed)


def error(response: Any) -> str:
    """Return the code of a refusal by one of the addresses for programs."""
    assert response.status_code in (400, 401), (response.status_code, response.content)
    return str(response.json()["error"])
