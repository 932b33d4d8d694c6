"""How we prove who we are at a token endpoint: a secret, a signed assertion, or not at all."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from mcp_servers.oauth.asking import basic
from mcp_servers.oauth.metadata import Authority

ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
LIFETIME_S = 120
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
SMALLEST_RSA = 2048


@dataclass(frozen=True)
class Client:
    """Who we are at one authorization server; printing it shows no secret."""

    id: str
    secret: str = field(default="", repr=False)
    private_key: str = field(default="", repr=False)
    key_id: str = ""
    method: str = ""


def proof(client: Client, authority: Authority) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the headers and form members that authenticate `client` there."""
    if client.private_key:
        assertion = _assertion(client, authority.issuer or authority.token_endpoint)
        named = {"client_id": client.id, "client_assertion_type": ASSERTION}
        return {}, named | {"client_assertion": assertion}
    if not client.secret:
        return {}, {"client_id": client.id}
    method = client.method or _method(authority)
    if method == "client_secret_post":
        return {}, {"client_id": client.id, "client_secret": client.secret}
    return basic(client.id, client.secret), {}


def algorithm(pem: str) -> str:
    """Return the algorithm that a private key signs with; raises `Invalid` (`bad_private_key`)."""
    try:
        key = load_pem_private_key(pem.encode("utf-8"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _bad_key("The private key can't be read.") from None
    if isinstance(key, RSAPrivateKey):
        if key.key_size < SMALLEST_RSA:
            raise _bad_key(say("The RSA key has only {key_size} bits.", key_size=key.key_size))
        return "RS256"
    if isinstance(key, EllipticCurvePrivateKey) and key.curve.name in CURVES:
        return CURVES[key.curve.name]
    raise _bad_key("The private key is of a kind that OAuth servers don't take.")


def _assertion(client: Client, audience: str) -> str:
    now = int(time.time())
    claims: dict[str, Any] = {
        "iss": client.id,
        "sub": client.id,
        "aud": audience,
        "iat": now,
        "exp": now + LIFETIME_S,
        "jti": str(uuid4()),
    }
    headers = {"kid": client.key_id} if client.key_id else None
    return jwt.encode(
        claims, client.private_key, algorithm=algorithm(client.private_key), headers=headers
    )


def _method(authority: Authority) -> str:
    posts = "client_secret_post" in authority.methods
    return (
        "client_secret_post"
        if posts and "client_secret_basic" not in authority.methods
        else "client_secret_basic"
    )


def _bad_key(detail: str) -> Invalid:
    return Invalid(
        detail,
        code="bad_private_key",
        field="auth_config.private_key",
        remedy="Paste an unencrypted PEM key: RSA of 2048 bits or more, or EC P-256/384/521.",
    )
