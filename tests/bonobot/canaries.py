"""Canaries: a secret of each kind, where secrets are kept, and how they are looked for."""

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
from mcp_servers.presets.instantiate_preset import build_server_spec
from mcp_servers.presets.services import PresetSpec, create_preset
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.bonobot.oauth_server.oauth_client import REDIRECT, Program

URL = "https://mcp.example.com/mcp"
KINDS = (
    *("bearer token", "API key", "header", "environment", "client secret", "refresh token"),
    *("model key", "webhook address", "webhook secret", "preset parameter", "password"),
)
Needles = Mapping[str, set[str]]


def needles(canaries: Mapping[str, str]) -> Needles:
    """Return all that must not be seen: each canary's forms, and its first eight characters."""
    return {
        kind: masking._build_encoded_forms(text) | {text[:8]} for kind, text in canaries.items()
    }


def leaks(text: str, sought: Needles) -> list[str]:
    """Return the kinds of canaries that a text holds."""
    return [kind for kind, forms in sought.items() if any(form in text for form in forms)]


def fresh() -> dict[str, str]:
    """Return a secret of each kind; their first eight characters occur nowhere else."""
    return {kind: f"{secrets.token_urlsafe(24)}+/=" for kind in KINDS}


def stock(acme: Organization, canaries: dict[str, str]) -> list[Server]:
    """Make servers, a model, a channel, a token and a person that hold the canaries."""
    boss = factories.build_administrator(acme)

    def server(name: str, auth: dict[str, str] | None = None, **config: Any) -> Server:
        asked = {"url": URL, **config}
        more = {"auth_config": auth} if auth else {}
        spec = ServerSpec(name=name, transport_type="http", endpoint_config=asked, **more)
        return create_server(boss, spec)

    key = generate_private_key(SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    oauth = {"type": "oauth2", "client_id": "me"}
    made = [
        server("bearer", {"type": "bearer_token", "token": canaries["bearer token"]}),
        server("keyed", {"type": "api_key", "header": "X-Key", "key": canaries["API key"]}),
        server("headed", headers={"X-Thing": canaries["header"]}),
        server("secretive", {**oauth, "client_secret": canaries["client secret"]}),
        server("signing", {**oauth, "private_key": pem}),
        create_server(
            boss,
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
        boss,
        PresetSpec(
            name="Filled",
            transport_type="http",
            endpoint_config={"url": URL, "headers": {"X-Thing": "${THING}"}},
            parameters=[{"name": "THING", "secret": True, "required": True}],
        ),
    )
    values = {"THING": canaries["preset parameter"]}
    made.append(create_server(boss, build_server_spec(boss, preset, values, name="filled")))
    OAuthGrant.objects.create(
        organization=acme,
        server=made[3],
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
    canaries |= let_in(acme)
    _row, token = create_token(boss, name="canary", role=Role.MEMBER)
    canaries["private key"] = "".join(pem.splitlines()[1:-1])
    canaries["our token"] = token.rpartition("_")[2] if token.count("_") == 2 else token[17:]
    canaries["pepper"] = next(iter(settings.BONOBOT_TOKEN_PEPPERS.values()))
    return made


LET_IN = {"answer": "allow", "role": "operator", "scopes": ["mcp:agents"]}


def let_in(acme: Organization) -> dict[str, str]:
    """Have a program let in; return the secrets of what it holds: each text's part behind its key.

    Beside them a code that waits to be fetched, and the secret of a program that has one.
    """
    person = User.objects.get(
        pk=factories.create_member(acme, Role.OPERATOR, f"olga-{acme.slug}").id
    )
    program, here = Program(person), {"resource": f"{settings.BONOBOT_URL}/mcp"}
    spent = program.code(LET_IN, scope="mcp:agents", **here)
    texts = program.exchange(spent, **here).json()
    waiting = program.code(LET_IN, scope="mcp:agents", **here)
    found = {
        "code": waiting,
        "spent code": spent,
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
    behind = {kind: text.split("_", 2)[2] for kind, text in found.items()}
    return behind | {"secret of a program": secret}


@contextmanager
def listening(seen: list[str]) -> Iterator[None]:
    """Collect the events of workers; some brokers keep none for those who come later."""
    with app.connection_for_read() as link:
        receiver = app.events.Receiver(link, handlers={"*": lambda event: seen.append(repr(event))})

        def hear() -> None:
            while not receiver.should_stop:
                with suppress(TimeoutError):
                    receiver.capture(limit=None, timeout=1, wakeup=False)

        thread = Thread(target=hear)
        thread.start()
        try:
            yield
        finally:
            receiver.should_stop = True
            thread.join(20)


def in_redis(store: Redis, key: bytes) -> str:
    """Return a key with all that is stored under it, whatever its kind."""
    reads: dict[bytes, Callable[[], Any]] = {
        b"string": lambda: store.get(key),
        b"list": lambda: store.lrange(key, 0, -1),
        b"set": lambda: store.smembers(key),
        b"hash": lambda: store.hgetall(key),
        b"zset": lambda: store.zrange(key, 0, -1),
        b"stream": lambda: store.xrange(key),
    }
    return f"{key!r} {reads[store.type(key)]()!r}"


# What is sent in members that hold secrets, and must not come back.
