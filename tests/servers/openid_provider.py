"""An OpenID provider in a process of its own on the loopback, with a sign-in page.

`python -m tests.servers.openid_provider` prints its port. The subject is the one entered on the
sign-in page; `POST /say` overrides parts of the next identity token, so that tests can forge each.
"""

import asyncio
import base64
import json
import secrets
import socket
import sys
import time
from hashlib import sha256
from html import escape
from typing import Any
from urllib.parse import parse_qs, urlencode

import jwt
import uvicorn
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT, SECRET = "bonobot", "made-up-secret"


class OpenIDProvider:
    """The provider's state: its keys, issued codes, and the overrides that a test has set."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.key, self.other_key = (rsa.generate_private_key(65537, 2048) for _ in range(2))
        self.codes: dict[str, dict[str, str]] = {}
        self.overrides: dict[str, Any] = {}
        self.credentials: list[str] = []  # of all clients that requested tokens

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request (ASGI)."""
        body = b""
        while scope["type"] == "http":
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        query = _parse_query(scope.get("query_string", b""))
        status, headers, content = self.answer(scope["path"], query, body, dict(scope["headers"]))
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": content})

    def answer(
        self, path: str, query: dict[str, str], body: bytes, headers: dict[bytes, bytes]
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and content."""
        if path == "/.well-known/openid-configuration":
            return _json(self.metadata())
        if path == "/keys":
            public = jwt.get_algorithm_by_name("RS256").to_jwk(self.key.public_key(), as_dict=True)
            return _json({"keys": [public | {"kid": "one", "use": "sig"}]})
        if path == "/say":
            self.overrides = json.loads(body)
            return _json({})
        if path == "/authorize":
            return _render_page(query)
        if path == "/let-in":
            return self.approve_login(_parse_query(body))
        if path == "/token":
            return self.token(_parse_query(body), headers.get(b"authorization", b"").decode())
        if path == "/credentials":
            return _json(self.credentials)
        if path == "/leave":
            return self.sign_out(query)
        if path == "/userinfo":
            return _json(self.overrides.get("userinfo", {}))
        return _json({}, 404)

    def metadata(self) -> dict[str, Any]:
        """Return the discovery document."""
        document = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "end_session_endpoint": f"{self.url}/leave",
            "jwks_uri": f"{self.url}/keys",
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
        }
        return document | self.overrides.get("metadata", {})

    def approve_login(self, form: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Send the browser back with a code, as the page's button does."""
        code = secrets.token_urlsafe(16)
        self.codes[code] = form
        parameters = {"code": code, "state": form["state"]} | self.overrides.get("answer", {})
        return 302, {"location": f"{form['redirect_uri']}?{urlencode(parameters)}"}, b""

    def token(self, form: dict[str, str], credentials: str) -> tuple[int, dict[str, str], bytes]:
        """Exchange a code once, after checking the client's credentials and the code verifier."""
        self.credentials.append(credentials)
        authorization = self.codes.pop(form.get("code", ""), None)
        client = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if authorization is None or credentials != f"Basic {client}":
            return _json({"error": "invalid_client"}, 401)
        digest = sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (challenge, form["redirect_uri"]) != (
            authorization["code_challenge"],
            authorization["redirect_uri"],
        ):
            return _json({"error": "invalid_grant"}, 400)
        return _json(
            {
                "access_token": "a",
                "token_type": "Bearer",
                "id_token": self.sign_id_token(authorization),
            }
        )

    def sign_out(self, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Return the subject that is signed out, from the ID token hint."""
        claims = jwt.decode(
            query["id_token_hint"], self.key.public_key(), ["RS256"], audience=query["client_id"]
        )
        return _json({"signed out": claims["sub"]})

    def sign_id_token(self, authorization: dict[str, str]) -> str:
        """Return the identity token with the test's overrides applied (null removes a claim)."""
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": authorization["subject"],
            "iat": now,
            "exp": now + 300,
            "nonce": authorization["nonce"],
            "email": authorization["subject"],
            "email_verified": True,
            "name": "Anna Ahrens",
        }
        claims |= self.overrides.get("claims", {})
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"kid": "one"} | self.overrides.get("header", {})
        if header.get("alg") == "none":
            parts = (json.dumps(header).encode(), json.dumps(claims).encode(), b"")
            return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
        if header.get("alg") == "HS256":
            return jwt.encode(claims, SECRET.ljust(32, "x"), "HS256", headers=header)
        key = self.other_key if self.overrides.get("stranger") else self.key
        return jwt.encode(claims, key, "RS256", headers=header)


def _render_page(query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    """Return the sign-in page."""
    hidden = "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'
        for name, value in query.items()
    )
    page = (
        '<!doctype html><html lang="en"><title>Provider</title><form method="post" '
        f'action="/let-in">{hidden}<label>Who <input name="subject"></label>'
        "<button>Let me in</button></form>"
    )
    return 200, {"content-type": "text/html; charset=utf-8"}, page.encode()


def _json(value: Any, status: int = 200) -> tuple[int, dict[str, str], bytes]:
    return status, {"content-type": "application/json"}, json.dumps(value).encode()


def _parse_query(text: bytes) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(text.decode()).items()}


def main() -> None:
    """Listen on a free loopback port and print it."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        sys.stdout.write(f"port {port}\n")
        sys.stdout.flush()
        app = OpenIDProvider(f"http://127.0.0.1:{port}")
        config = uvicorn.Config(app, lifespan="off", log_level="warning")
        asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))


if __name__ == "__main__":
    main()
