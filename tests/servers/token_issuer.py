"""An authorization server that publishes its metadata and keys over loopback, and signs tokens."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from bonobot.core.runtime import get_runtime
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest

SUBJECT = "alice"


class TokenIssuer:
    """Issues tokens; tests can change `keys`, `metadata` and `down` while it runs."""

    def __init__(self) -> None:
        self.private: dict[str, Any] = {}
        self.keys: list[dict[str, Any]] = []
        self.metadata: dict[str, Any] = {}
        self.down = False
        self.http = RawHttp(self._answer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    @property
    def reads(self) -> int:
        """Return how often the keys were fetched."""
        return sum(request.path == "/keys" for request in self.http.asked)

    def add_key(self, kid: str, algorithm: str = "RS256", **more: Any) -> None:
        """Create a key and publish its public part."""
        private = _generate_key(algorithm)
        self.private[kid] = private
        self.publish(kid, private.public_key(), algorithm, **more)

    def publish(self, kid: str, public: Any, algorithm: str = "RS256", **more: Any) -> None:
        """Publish a public key."""
        jwk = jwt.get_algorithm_by_name(algorithm).to_jwk(public, as_dict=True)
        self.keys.append({**jwk, "kid": kid, "use": "sig", **more})

    def rotate(self, kid: str) -> None:
        """Sign with another key from now on, and publish no other."""
        self.keys.clear()
        self.add_key(kid)

    def claims(self, audience: Any, **more: Any) -> dict[str, Any]:
        """Return valid claims; None removes one."""
        now = int(time.time())
        defaults = {
            "iss": self.url,
            "sub": SUBJECT,
            "aud": audience,
            "iat": now,
            "exp": now + 600,
            "client_id": "ide",
            "jti": "1",
            "scope": "mcp:tools mcp:agents",
        }
        return {name: value for name, value in (defaults | more).items() if value is not None}

    def token(
        self,
        audience: Any,
        *,
        kid: str | None = "one",
        key: Any = None,
        algorithm: str = "RS256",
        headers: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """Return a signed token."""
        header = {"typ": "at+jwt"} | ({"kid": kid} if kid else {}) | (headers or {})
        signing_key = key if key is not None else self.private[kid or "one"]
        return jwt.encode(self.claims(audience, **claims), signing_key, algorithm, headers=header)

    def _answer(self, request: RecordedRequest) -> bytes:
        if self.down:
            return raw_http_server.response(503)
        if request.path == "/.well-known/oauth-authorization-server":
            document = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"} | self.metadata
            return raw_http_server.response(200, json.dumps(document).encode())
        if request.path == "/keys":
            return raw_http_server.response(200, json.dumps({"keys": self.keys}).encode())
        return raw_http_server.response(404)


@contextmanager
def listening() -> Iterator[TokenIssuer]:
    """Run an issuer with one key on this process's event loop."""
    issuer = TokenIssuer()
    issuer.add_key("one")
    opened = issuer.http.listening()
    get_runtime().call(opened.__aenter__)
    try:
        yield issuer
    finally:
        get_runtime().call(opened.__aexit__, None, None, None)


def build_unsigned_token(
    header: dict[str, Any], claims: dict[str, Any], signature: bytes = b""
) -> str:
    """Return a token with any header, claims and signature."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def _generate_key(algorithm: str) -> Any:
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    if algorithm.startswith("ES"):
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)
