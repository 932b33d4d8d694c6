"""DPoP (RFC 9449): keys that access tokens are bound to, and proofs for requests."""

import base64
import hashlib
import time
from collections.abc import Collection
from typing import Any
from uuid import uuid4

import httpx2
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mcp_servers.oauth_client.types import OAuthAccount, OAuthProblem

DPOP_ALGORITHM = "ES256"
DPOP_ALGORITHMS_FIELD = "dpop_signing_alg_values_supported"


def uses_dpop(account: OAuthAccount, algorithms: Collection[str], *, requested: bool) -> bool:
    """Return whether to bind tokens to a key; raises `OAuthProblem` (`dpop_unsupported`).

    `algorithms` are those that the authorization server supports.
    """
    supported = DPOP_ALGORITHM in algorithms
    if account.dpop == "required" and not supported:
        raise OAuthProblem(
            "The authorization server doesn't declare support for DPoP with ES256.",
            code="dpop_unsupported",
            remedy="Set `dpop` to `auto`, or contact the administrator of the authorization "
            "server.",
        )
    return supported and (requested or account.dpop == "required") and account.dpop != "off"


def generate_dpop_key() -> str:
    """Return a new private key (PEM) to bind tokens to."""
    return (
        ec.generate_private_key(ec.SECP256R1())
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        .decode()
    )


def sign_dpop_proof(
    pem: str, method: str, url: httpx2.URL, *, token: str = "", nonce: str = ""
) -> str:
    """Return a proof for one request (RFC 9449 4.2); with the access token, if it is sent."""
    import jwt

    key: Any = serialization.load_pem_private_key(pem.encode(), password=None)
    claims: dict[str, Any] = {
        "jti": str(uuid4()),
        "htm": method,
        "htu": str(url.copy_with(query=None, fragment=None)),
        "iat": int(time.time()),
    }
    if token:
        digest = hashlib.sha256(token.encode("ascii")).digest()
        claims["ath"] = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    if nonce:
        claims["nonce"] = nonce
    jwk = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    headers = {"typ": "dpop+jwt", "jwk": jwk}
    return jwt.encode(claims, key, algorithm=DPOP_ALGORITHM, headers=headers)
