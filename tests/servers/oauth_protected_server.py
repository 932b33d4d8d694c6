"""An OAuth authorization server and an MCP server that it protects, on one loopback port.

`oauth_protected_server.py` prints `PORT <number>` once it listens. `POST /control` with a JSON
object of `Settings` changes its behavior while it runs; `GET /control` returns the requests it has
seen. `DELETE /control` resets the settings and forgets everything, so that tests can share the
process. The MCP server speaks the modern era and has one tool, `whoami`.
"""

import asyncio
import base64
import hashlib
import secrets
import socket
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus, urlencode

import jwt
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT_ID, CLIENT_SECRET = "bonobot-client", "s3cret-of-the-client"
VERSION = "io.modelcontextprotocol/protocolVersion"


@dataclass
class Settings:
    """Behavior that a test can change."""

    lifetime_s: int = 3600
    token_pause_s: float = 0.0
    methods: list[str] = field(default_factory=lambda: ["client_secret_basic"])
    public_key: str = ""
    issuer: str = ""
    resource: str = ""
    pkce: bool = True
    iss_named: bool = False
    iss_sent: str = ""
    client_documents: bool = False
    registration: bool = True
    needed_scope: str = ""
    never_enough: bool = False
    scope_told: bool = True
    lifetime_told: bool = True
    token_says: str = ""
    echo: bool = False
    scopes_supported: list[str] = field(default_factory=list)
    refuse_grants: str = ""
    down: bool = False
    revocation: bool = True
    revocation_status: int = 200
    managed_at: str = ""
    resource_metadata: str = ""
    resource_metadata_served: bool = True
    metadata_served: bool = True
    authorization_servers: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    dpop: bool = False  # challenges name it, and a proof binds a token to its key
    dpop_nonce: str = ""  # which proofs must contain


@dataclass
class RequestLog:
    """Requests that the server has seen, and tokens it has issued."""

    token_requests: list[dict[str, str]] = field(default_factory=list)
    authorizations: list[dict[str, str]] = field(default_factory=list)
    registrations: list[dict[str, Any]] = field(default_factory=list)
    revocations: list[dict[str, str]] = field(default_factory=list)
    unregistered: list[str] = field(default_factory=list)
    mcp_bearers: list[str] = field(default_factory=list)
    proofs: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 0
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)
    refresh_tokens: dict[str, str] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)


settings, seen = Settings(), RequestLog()

# Invalid responses of a token endpoint.
INVALID_RESPONSES: dict[str, Response] = {
    "a page": Response("<html>sign in</html>", media_type="text/html"),
    "a list": JSONResponse(["access_token"]),
    "nothing": Response(""),
    "a cut text": Response('{"access_token": "x', media_type="application/json"),
    "a number": JSONResponse({"access_token": 5, "token_type": "Bearer"}),
    "a line too many": JSONResponse({"access_token": "x\r\nX-Evil: 1", "token_type": "Bearer"}),
    "a bound token": JSONResponse({"access_token": "x", "token_type": "DPoP"}),
    "too much": JSONResponse({"access_token": "x", "filler": "x" * 300_000}),
    "go elsewhere": RedirectResponse("http://127.0.0.1:9/token", status_code=307),
    "an unknown error": JSONResponse({"error": "<b>odd</b>"}, status_code=400),
}


def origin(request: Request) -> str:
    return f"http://{request.headers['host']}"


async def resource_metadata(request: Request) -> Response:
    """RFC 9728; servers of 2025-03-26 don't have it."""
    if not settings.resource_metadata_served:
        return Response(status_code=404)
    base_url = origin(request)
    return JSONResponse(
        {
            "resource": settings.resource or f"{base_url}/mcp",
            "authorization_servers": settings.authorization_servers or [base_url],
            "scopes_supported": settings.scopes_supported,
        }
    )


async def authorization_server_metadata(request: Request) -> Response:
    """RFC 8414; optional for servers of 2025-03-26."""
    if not settings.metadata_served:
        return Response(status_code=404)
    base_url = origin(request)
    document: dict[str, Any] = {
        "issuer": settings.issuer or base_url,
        "authorization_endpoint": f"{base_url}/authorize",
        "token_endpoint": f"{base_url}/token",
        "token_endpoint_auth_methods_supported": settings.methods,
        "authorization_response_iss_parameter_supported": settings.iss_named,
        "client_id_metadata_document_supported": settings.client_documents,
    }
    if settings.pkce:
        document["code_challenge_methods_supported"] = ["S256"]
    if settings.revocation:
        document["revocation_endpoint"] = f"{base_url}/revoke"
    if settings.registration:
        document["registration_endpoint"] = f"{base_url}/register"
    return JSONResponse(document | settings.extra)


async def register(request: Request) -> Response:
    """RFC 7591."""
    metadata = await request.json()
    seen.registrations.append(metadata)
    managed = {
        "registration_client_uri": settings.managed_at or f"{origin(request)}/register/1",
        "registration_access_token": "manages-1",
    }
    return JSONResponse({**metadata, "client_id": "registered-1", **managed}, status_code=201)


async def unregister(request: Request) -> Response:
    """RFC 7592."""
    seen.unregistered.append(request.headers.get("authorization", ""))
    return Response(status_code=204)


async def revoke(request: Request) -> Response:
    """RFC 7009."""
    form = {key: str(value) for key, value in (await request.form()).items()}
    seen.revocations.append({**form, "authorization": request.headers.get("authorization", "")})
    seen.refresh_tokens.pop(form["token"], None)
    seen.tokens.pop(form["token"], None)
    return Response(status_code=settings.revocation_status)


async def authorize(request: Request) -> Response:
    """Authorize immediately and redirect back."""
    parameters = dict(request.query_params)
    seen.authorizations.append(parameters)
    code = secrets.token_urlsafe(16)
    seen.codes[code] = parameters
    redirect_parameters = {"code": code, "state": parameters["state"]}
    if settings.iss_sent:
        redirect_parameters["iss"] = settings.iss_sent
    elif settings.iss_named:
        redirect_parameters["iss"] = origin(request)
    return RedirectResponse(f"{parameters['redirect_uri']}?{urlencode(redirect_parameters)}")


async def token(request: Request) -> Response:
    """Issue tokens for client credentials, codes and refresh tokens."""
    form = {key: str(value) for key, value in (await request.form()).items()}
    seen.token_requests.append({**form, "authorization": request.headers.get("authorization", "")})
    await asyncio.sleep(settings.token_pause_s)
    if settings.down:
        return Response("away", status_code=503)
    form["jkt"] = read_proof(request) if "dpop" in request.headers else ""
    if form["jkt"] and seen.proofs[-1].get("nonce", "") != settings.dpop_nonce:
        return JSONResponse({"error": "use_dpop_nonce"}, 400, {"DPoP-Nonce": settings.dpop_nonce})
    if settings.token_says:
        return INVALID_RESPONSES[settings.token_says]
    if settings.refuse_grants:
        return JSONResponse({"error": settings.refuse_grants}, status_code=400)
    kind = form["grant_type"]
    if kind == "client_credentials" and not _known_client(request, form):
        return JSONResponse({"error": "invalid_client"}, status_code=401)
    if kind in ("client_credentials", "urn:ietf:params:oauth:grant-type:jwt-bearer"):
        return _build_token_response(form, rotated=False)
    if kind == "authorization_code":
        authorization = seen.codes.pop(form["code"], None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if authorization is None or authorization["code_challenge"] != challenge:
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        return _build_token_response(
            {**form, "scope": authorization.get("scope", "")}, rotated=True
        )
    if seen.refresh_tokens.pop(form["refresh_token"] + form["jkt"], None) is None:
        return JSONResponse({"error": "invalid_grant"}, status_code=400)
    return _build_token_response(form, rotated=True)


def read_proof(request: Request, token: str = "") -> str:
    """Verify the DPoP proof of a request; return its key as the thumbprint of the token."""
    proof = request.headers["dpop"]
    header = jwt.get_unverified_header(proof)
    claims = jwt.decode(proof, jwt.PyJWK(header["jwk"]), algorithms=["ES256"])
    digest = base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=")
    assert header["typ"] == "dpop+jwt"
    assert "d" not in header["jwk"]
    assert (claims["htm"], claims["htu"]) == (request.method, str(request.url))
    assert abs(claims["iat"] - time.time()) < 60
    assert claims.get("ath", "") == (digest.decode() if token else "")
    seen.proofs.append({**claims, "thumbprint": header["jwk"]["x"]})
    return str(header["jwk"]["x"])


async def mcp(request: Request) -> Response:
    """Serve MCP to callers with a token for this resource."""
    base_url = origin(request)
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    seen.mcp_bearers.append(bearer)
    token = seen.tokens.get(bearer)
    metadata_url = (
        settings.resource_metadata or f"{base_url}/.well-known/oauth-protected-resource/mcp"
    )
    if (
        token is None
        or token["expires_at"] <= time.time()
        or token["resource"] != f"{base_url}/mcp"
        or (scheme == "DPoP") != bool(token["jkt"])
        or (token["jkt"] and read_proof(request, bearer) != token["jkt"])
    ):
        challenge = f'{"DPoP" if settings.dpop else "Bearer"} error="invalid_token"'
        if settings.resource_metadata_served:
            challenge += f', resource_metadata="{metadata_url}"'
        return Response(status_code=401, headers={"WWW-Authenticate": challenge})
    if token["jkt"] and seen.proofs[-1].get("nonce", "") != settings.dpop_nonce:
        challenge = 'DPoP error="use_dpop_nonce"'
        headers = {"WWW-Authenticate": challenge, "DPoP-Nonce": settings.dpop_nonce}
        return Response(status_code=401, headers=headers)
    needed = settings.needed_scope
    if needed and (settings.never_enough or needed not in token["scope"].split()):
        challenge = f'Bearer error="insufficient_scope", scope="{needed}"'
        return Response(status_code=403, headers={"WWW-Authenticate": challenge})
    message = await request.json()
    if settings.echo:
        error = {"code": -32603, "message": f"bad token {bearer}", "data": bearer}
        return JSONResponse({"jsonrpc": "2.0", "id": message.get("id"), "error": error})
    return JSONResponse(
        {"jsonrpc": "2.0", "id": message.get("id"), "result": _result(message, bearer)}
    )


async def control(request: Request) -> Response:
    """Change or reset the settings, or return the requests; `forget` revokes access tokens."""
    global settings, seen
    if request.method == "DELETE":
        settings, seen = Settings(), RequestLog()
    if request.method == "POST":
        for name, value in (await request.json()).items():
            if name == "forget":
                seen.tokens.clear()
            else:
                setattr(settings, name, value)
    return JSONResponse(
        {
            "token_requests": seen.token_requests,
            "authorizations": seen.authorizations,
            "registrations": seen.registrations,
            "revocations": seen.revocations,
            "unregistered": seen.unregistered,
            "mcp_bearers": seen.mcp_bearers,
            "proofs": seen.proofs,
            "calls": seen.calls,
        }
    )


def _known_client(request: Request, form: dict[str, str]) -> bool:
    if assertion := form.get("client_assertion"):
        claims = jwt.decode(
            assertion,
            settings.public_key,
            algorithms=["RS256", "ES256"],
            audience=origin(request),
            issuer=CLIENT_ID,
        )
        return bool(claims["sub"] == CLIENT_ID and claims["exp"] > time.time())
    if "client_secret" in form:
        pair = form["client_id"], form["client_secret"]
        return "client_secret_post" in settings.methods and pair == (CLIENT_ID, CLIENT_SECRET)
    scheme, _, packed = request.headers.get("authorization", "").partition(" ")
    if scheme != "Basic" or "client_secret_basic" not in settings.methods:
        return False
    name, _, secret = base64.b64decode(packed).decode().partition(":")
    return (unquote_plus(name), unquote_plus(secret)) == (CLIENT_ID, CLIENT_SECRET)


def _build_token_response(form: dict[str, str], *, rotated: bool) -> Response:
    access = f"access-{secrets.token_urlsafe(24)}"
    seen.tokens[access] = {
        "expires_at": time.time() + settings.lifetime_s,
        "resource": form.get("resource", ""),
        "scope": form.get("scope", ""),
        "jkt": form["jkt"],
    }
    body: dict[str, Any] = {
        "access_token": access,
        "token_type": "DPoP" if form["jkt"] else "Bearer",
        **({"expires_in": settings.lifetime_s} if settings.lifetime_told else {}),
        **({"scope": form.get("scope", "")} if settings.scope_told else {}),
    }
    if rotated:
        body["refresh_token"] = f"refresh-{secrets.token_urlsafe(24)}"
        seen.refresh_tokens[body["refresh_token"] + form["jkt"]] = access
    return JSONResponse(body)


def _result(message: dict[str, Any], bearer: str) -> dict[str, Any]:
    method = message.get("method")
    cached = {"resultType": "complete", "ttlMs": 1000, "cacheScope": "private"}
    if method == "server/discover":
        return {
            **cached,
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}},
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "protected", "version": "1"}},
        }
    if method == "tools/list":
        schema = {"type": "object", "properties": {}}
        return {**cached, "tools": [{"name": "whoami", "inputSchema": schema}]}
    if method == "tools/call":
        seen.calls += 1
        text = hashlib.sha256(bearer.encode()).hexdigest()
        return {"resultType": "complete", "content": [{"type": "text", "text": text}]}
    return {"resultType": "complete"}


routes = [
    Route("/.well-known/oauth-protected-resource/mcp", resource_metadata),
    Route("/.well-known/oauth-authorization-server", authorization_server_metadata),
    Route("/register", register, methods=["POST"]),
    Route("/register/1", unregister, methods=["DELETE"]),
    Route("/revoke", revoke, methods=["POST"]),
    Route("/authorize", authorize),
    Route("/token", token, methods=["POST"]),
    Route("/mcp", mcp, methods=["POST"]),
    Route("/control", control, methods=["DELETE", "GET", "POST"]),
]


async def serve() -> None:
    """Serve until the process is ended."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    print(f"PORT {listening.getsockname()[1]}", flush=True)  # noqa: T201 - what callers wait for
    await uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="warning")).serve(
        [listening]
    )


if __name__ == "__main__":
    asyncio.run(serve())
