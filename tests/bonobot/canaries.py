"""Canaries: a secret of each kind, stored everywhere, and functions that find leaks."""

import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from django.conf import settings
from oauth2_provider.models import Application
from redis import Redis

from agents.models import ModelEndpoint
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.celery import app
from bonobot.core.text import masking
from bonobot.notifications.models import NotificationChannel
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.presets.services import PresetSpec, build_server_spec, create_preset
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.bonobot.oauth_server.oauth_client import REDIRECT, OAuthClient

URL = "https://mcp.example.com/mcp"
KINDS = (
    *("bearer token", "API key", "header", "environment", "client secret", "refresh token"),
    *("model key", "webhook address", "webhook secret", "preset parameter", "password"),
)
Needles = Mapping[str, set[str]]


def build_needles(canaries: Mapping[str, str]) -> Needles:
    """Return all forms of each canary, and its first eight characters."""
    return {
        kind: masking._build_encoded_forms(text) | {text[:8]} for kind, text in canaries.items()
    }


def find_leaks(text: str, needles: Needles) -> list[str]:
    """Return the kinds of canaries that a text contains."""
    return [kind for kind, forms in needles.items() if any(form in text for form in forms)]


def create_canaries() -> dict[str, str]:
    """Generate a secret of each kind; their first eight characters are unique."""
    return {kind: f"{secrets.token_urlsafe(24)}+/=" for kind in KINDS}


def store_canaries(acme: Organization, canaries: dict[str, str]) -> list[Server]:
    """Create servers, a model, a channel, a token and a person with the canaries."""
    administrator = factories.build_administrator(acme)

    def server(name: str, auth: dict[str, str] | None = None, **config: Any) -> Server:
        endpoint = {"url": URL, **config}
        optional = {"auth_config": auth} if auth else {}
        spec = ServerSpec(name=name, transport_type="http", endpoint_config=endpoint, **optional)
        return create_server(administrator, spec)

    key = generate_private_key(SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    oauth = {"type": "oauth2", "client_id": "me"}
    servers = [
        server("bearer", {"type": "bearer_token", "token": canaries["bearer token"]}),
        server("keyed", {"type": "api_key", "header": "X-Key", "key": canaries["API key"]}),
        server("headed", headers={"X-Thing": canaries["header"]}),
        server("secretive", {**oauth, "client_secret": canaries["client secret"]}),
        server("signing", {**oauth, "private_key": pem}),
        create_server(
            administrator,
            ServerSpec(
                name="stored",
                transport_type="stdio",
                endpoint_config={
                    "command": sys.executable,
                    "args": ["-m", "mcp_server_time"],
                    "env": {"THING": canaries["environment"]},
                },
            ),
        ),
    ]
    preset = create_preset(
        administrator,
        PresetSpec(
            name="Filled",
            transport_type="http",
            endpoint_config={"url": URL, "headers": {"X-Thing": "${THING}"}},
            parameters=[{"name": "THING", "secret": True, "required": True}],
        ),
    )
    values = {"THING": canaries["preset parameter"]}
    servers.append(
        create_server(
            administrator, build_server_spec(administrator, preset, values, name="filled")
        )
    )
    OAuthGrant.objects.create(
        organization=acme,
        server=servers[3],
        subject=acme.pk,
        refresh_token=canaries["refresh token"],
    )
    ModelEndpoint.objects.create(
        organization=acme, name="Keyed", kind="openai", api_key=canaries["model key"]
    )
    NotificationChannel.objects.create(
        organization=acme,
        name="Hook",
        kind="webhook",
        url=f"https://hooks.example.com/{canaries['webhook address']}",
        secret=canaries["webhook secret"],
    )
    User.objects.create_user("canary", password=canaries["password"])
    canaries |= authorize_client(acme)
    _row, token = create_token(administrator, name="canary", role=Role.MEMBER)
    canaries["private key"] = "".join(pem.splitlines()[1:-1])
    canaries["our token"] = token.rpartition("_")[2] if token.count("_") == 2 else token[17:]
    canaries["pepper"] = next(iter(settings.BONOBOT_TOKEN_PEPPERS.values()))
    return servers


CONSENT = {"answer": "allow", "role": "operator", "scopes": ["mcp:agents"]}


def authorize_client(acme: Organization) -> dict[str, str]:
    """Authorize a client; return its secrets: the part of each value after its key."""
    user = User.objects.get(pk=factories.create_member(acme, Role.OPERATOR, f"olga-{acme.slug}").id)
    client, resource = OAuthClient(user), {"resource": f"{settings.BONOBOT_URL}/mcp"}
    used_code = client.code(CONSENT, scope="mcp:agents", **resource)
    texts = client.exchange(used_code, **resource).json()
    unused_code = client.code(CONSENT, scope="mcp:agents", **resource)
    credentials = {
        "code": unused_code,
        "spent code": used_code,
        "access token": texts["access_token"],
        "refresh token of a program": texts["refresh_token"],
    }
    secret = f"{secrets.token_urlsafe(24)}+/="
    Application.objects.create(
        name="Confidential",
        client_id="confidential",
        client_type=Application.CLIENT_CONFIDENTIAL,
        authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        redirect_uris=REDIRECT,
        client_secret=secret,
    )
    parts = {kind: text.split("_", 2)[2] for kind, text in credentials.items()}
    return parts | {"secret of a program": secret}


@contextmanager
def collect_events(events: list[str]) -> Iterator[None]:
    """Collect the events of workers; some brokers don't keep past events."""
    with app.connection_for_read() as link:
        receiver = app.events.Receiver(
            link, handlers={"*": lambda event: events.append(repr(event))}
        )

        def capture() -> None:
            while not receiver.should_stop:
                with suppress(TimeoutError):
                    receiver.capture(limit=None, timeout=1, wakeup=False)

        thread = Thread(target=capture)
        thread.start()
        try:
            yield
        finally:
            receiver.should_stop = True
            thread.join(20)


def read_redis(store: Redis, key: bytes) -> str:
    """Return a key and its value of any type."""
    reads: dict[bytes, Callable[[], Any]] = {
        b"string": lambda: store.get(key),
        b"list": lambda: store.lrange(key, 0, -1),
        b"set": lambda: store.smembers(key),
        b"hash": lambda: store.hgetall(key),
        b"zset": lambda: store.zrange(key, 0, -1),
        b"stream": lambda: store.xrange(key),
    }
    return f"{key!r} {reads[store.type(key)]()!r}"
