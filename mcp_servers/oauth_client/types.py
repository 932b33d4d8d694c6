"""OAuth accounts, scopes and errors."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from uuid import UUID

from bonobot.core.problems import Problem

Grant = Literal["client_credentials", "authorization_code", "jwt_bearer"]
# `jwt_bearer`: a JWT of the platform that Bonobot runs on is exchanged for a token (RFC 7523).
GRANT_TYPES = ("client_credentials", "authorization_code", "jwt_bearer")
PER_CHOICES = ("organization", "user")
# Tokens bound to a key (RFC 9449); `auto`: if the server and its authorization server offer it.
DPOP_CHOICES = ("auto", "required", "off")


@dataclass(frozen=True, kw_only=True)
class OAuthAccount:
    """How Bonobot signs in to a server.

    `subject` is the owner of the tokens: the organization's id, a person's, or None if each person
    signs in separately and no person is involved. `repr` shows no secrets.
    """

    server_id: UUID
    organization_id: UUID
    server_name: str
    url: str
    allow_private: bool = False
    subject: UUID | None = None
    grant: str = "client_credentials"
    per: str = "organization"
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    private_key: str = field(default="", repr=False)
    key_id: str = ""
    scopes: tuple[str, ...] = ()
    token_url: str = ""
    issuer: str = ""
    workload_token: str = ""
    dpop: str = DPOP_CHOICES[0]

    @property
    def by_person(self) -> bool:
        """Return whether each person signs in separately."""
        return self.interactive and self.per == "user"

    @property
    def interactive(self) -> bool:
        """Return whether a person has to sign in with a browser."""
        return self.grant == "authorization_code"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the decrypted secrets, to mask them in text."""
        return tuple(secret for secret in (self.client_secret, self.private_key) if secret)

    @cached_property
    def binding(self) -> str:
        """Return the digest of everything that tokens depend on."""
        parts = [
            *(self.url, self.grant, self.per, self.client_id, self.client_secret),
            *(self.private_key, self.key_id, list(self.scopes), self.token_url, self.issuer),
            # Only if set, so that tokens from before these fields existed stay valid.
            *([self.workload_token] if self.workload_token else ()),
            *([{"dpop": self.dpop}] if self.dpop != DPOP_CHOICES[0] else ()),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def parse_scopes(value: Any) -> tuple[str, ...]:
    """Return scopes from a list, or from a string with spaces or commas."""
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    if isinstance(value, Iterable):
        return tuple(str(scope) for scope in value)
    return ()


def join_scopes(*scope_lists: Iterable[str]) -> str:
    """Return the union of scopes, separated by spaces, in order of appearance."""
    return " ".join(dict.fromkeys(scope for scopes in scope_lists for scope in scopes))


class OAuthProblem(Problem):
    """Signing in did not work.

    Codes: `oauth_metadata_invalid`, `issuer_mismatch`, `issuer_changed`, `resource_mismatch`,
    `oauth_insecure`, `pkce_unsupported`, `dpop_unsupported`, `client_unknown`, `token_rejected`,
    `workload_token_unusable`, `authorization_server_unreachable`; those of egress are passed
    through.
    """

    code = "oauth_failed"
    status = 502
    title = "Sign-in failed"


class LoginNeeded(OAuthProblem):
    """A person has to sign in: there is no grant, or it was revoked."""

    code = "needs_reauth"


class AuthorizationServerUnavailable(OAuthProblem):
    """The authorization server is unavailable; the same request may succeed later."""

    code = "authorization_server_unreachable"
    status = 503
