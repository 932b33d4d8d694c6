"""Canaries: secrets of every kind are stored, and then looked for everywhere one could come out.

Addresses come from the tables of REST and the admin, verbs from the command line's, rows from the
database itself, so that what is added later is looked at too (reference: R11 of the security work).
"""

import io
import json
import logging
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.urls import reverse

from agents import calls
from agents.models import ModelEndpoint
from bonobot.lib import masking
from bonobot.lib.logs import JSONFormatter, TextFormatter
from bonobot.lib.runtime import runtime
from bonobot.notices.models import Channel
from bonobot.tenancy.models import Organization, User
from bonobot.tenancy.roles import Role
from bonobot.tenancy.tokens import issue
from mcp_servers.configuration import ServerSpec
from mcp_servers.connections.pool import connections
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.presets.own import PresetSpec, add_preset
from mcp_servers.presets.using import spec_from
from mcp_servers.registration import add
from tests import desk, rest
from tests.agents import casting
from tests.agents.conftest import WORKSHOP
from tests.bonobot import test_admin, test_api_matrix
from tests.bonobot.cli.filled import CALLS

pytestmark = pytest.mark.django_db(transaction=True)

URL = "https://mcp.example.com/mcp"
KINDS = (
    *("bearer token", "API key", "header", "environment", "client secret", "refresh token"),
    *("model key", "webhook address", "webhook secret", "preset parameter", "password"),
)
Needles = Mapping[str, set[str]]


def needles(canaries: Mapping[str, str]) -> Needles:
    """Return all that must not be seen: each canary's forms, and its first eight characters."""
    return {kind: masking._forms(text) | {text[:8]} for kind, text in canaries.items()}


def leaks(text: str, sought: Needles) -> list[str]:
    """Return the kinds of canaries that a text holds."""
    return [kind for kind, forms in sought.items() if any(form in text for form in forms)]


@pytest.fixture
def acme() -> Organization:
    return casting.organization()


@pytest.fixture
def canaries() -> dict[str, str]:
    """A secret of each kind; their first eight characters occur nowhere else."""
    return {kind: f"{secrets.token_urlsafe(24)}+/=" for kind in KINDS}


@pytest.fixture
def pool(acme: Organization, canaries: dict[str, str]) -> list[Server]:
    """Servers, a model, a channel, a token and a person that hold the canaries."""
    boss = casting.administrator(acme)

    def server(name: str, auth: dict[str, str] | None = None, **config: Any) -> Server:
        asked = {"url": URL, **config}
        more = {"auth_config": auth} if auth else {}
        spec = ServerSpec(name=name, transport_type="http", endpoint_config=asked, **more)
        return add(boss, spec)

    key = generate_private_key(SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    oauth = {"type": "oauth2", "client_id": "me"}
    made = [
        server("bearer", {"type": "bearer_token", "token": canaries["bearer token"]}),
        server("keyed", {"type": "api_key", "header": "X-Key", "key": canaries["API key"]}),
        server("headed", headers={"X-Thing": canaries["header"]}),
        server("secretive", {**oauth, "client_secret": canaries["client secret"]}),
        server("signing", {**oauth, "private_key": pem}),
        add(
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
    preset = add_preset(
        boss,
        PresetSpec(
            name="Filled",
            transport_type="http",
            endpoint_config={"url": URL, "headers": {"X-Thing": "${THING}"}},
            parameters=[{"name": "THING", "secret": True, "required": True}],
        ),
    )
    values = {"THING": canaries["preset parameter"]}
    made.append(add(boss, spec_from(boss, preset, values, name="filled")))
    OAuthGrant.objects.create(
        organization=acme,
        server=made[3],
        subject=acme.pk,
        refresh_token=canaries["refresh token"],
    )
    ModelEndpoint.objects.create(
        organization=acme, name="Keyed", kind="openai", api_key=canaries["model key"]
    )
    Channel.objects.create(
        organization=acme,
        name="Hook",
        kind="webhook",
        url=f"https://hooks.example.com/{canaries['webhook address']}",
        secret=canaries["webhook secret"],
    )
    User.objects.create_user("canary", password=canaries["password"])
    _row, token = issue(boss, name="canary", role=Role.MEMBER)
    canaries["private key"] = "".join(pem.splitlines()[1:-1])
    canaries["our token"] = token.rpartition("_")[2] if token.count("_") == 2 else token[17:]
    canaries["pepper"] = next(iter(settings.BONOBOT_TOKEN_PEPPERS.values()))
    return made


def test_no_route_of_rest_and_no_page_shows_a_secret(acme, pool, canaries):
    sought = needles(canaries)
    ids = test_admin.fill(acme)
    known = test_api_matrix.everything(acme)
    found: list[tuple[str, list[str]]] = []
    token = issue(casting.administrator(acme), name="owner", role=Role.OWNER)[1]
    client = Client(raise_request_exception=False, headers={"Authorization": f"Bearer {token}"})
    for route, method in test_api_matrix.OPERATIONS:
        servers = [str(one.pk) for one in pool] if "<str:server_id>" in route else [""]
        for pk in servers if method == "GET" else ():
            values = {**known, **({"server_id": pk} if pk else {})}
            path = f"/api/{test_api_matrix.filled(route, values)}"
            found.append((path, leaks(body(client.get(path)), sought)))
    found.append(("schema", leaks(json.dumps(rest.document()), sought)))
    seat = desk.sit(acme, None)
    for name, parameters in test_admin.ADDRESSES:
        of_server = name.startswith("mcp_servers_server_") and "object_id" in parameters
        for one in pool if of_server else (None,):
            own = {**ids, "mcp_servers_server": one.pk} if one else ids
            kwargs = test_admin.arguments(name, parameters, own)
            address = reverse(f"admin:{name}", kwargs=kwargs)
            found.append((address, leaks(body(seat.client.get(address)), sought)))
    assert len(found) > 150
    assert not [one for one in found if one[1]]


def test_no_verb_no_file_and_no_row_shows_a_secret(acme, pool, canaries, tmp_path):
    sought = needles(canaries)
    file = tmp_path / "audit"
    asked = [verb.split() for verb, one in CALLS.items() if one.reads and not one.given]
    asked += [["mcp", verb, one.name] for verb in ("show", "tools", "history") for one in pool]
    asked += [["audit", "export", "--output", str(file)]]
    found: dict[str, list[str]] = {}
    for words in asked:
        out = io.StringIO()
        call_command(*words, "--json", stdout=out, stderr=out)
        found[" ".join(words)] = leaks(out.getvalue(), sought)
    found["export"] = leaks(file.read_text(), sought)
    found |= {f"table {name}": leaks(text, sought) for name, text in dumped()}
    for path in Path(settings.BONOBOT_VAR).rglob("*"):
        kept = "keys" in path.parts or "sqlite" in path.name  # rows were looked at above
        if path.is_file() and not kept:
            found[str(path)] = leaks(path.read_bytes().decode("latin-1"), sought)
    assert len(found) > 50
    assert not {place: kinds for place, kinds in found.items() if kinds}


def test_a_call_takes_no_secret_into_logs_rows_or_another_servers_process(acme, pool, canaries):
    sought = needles(canaries)
    config = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}
    boss, helper = casting.administrator(acme), casting.agent(acme)
    spec = ServerSpec(name="workshop", transport_type="stdio", endpoint_config=config)
    server = casting.ready(acme, add(boss, spec), helper)
    mine = {kind: text for kind, text in canaries.items() if kind in STORED}
    request = calls.Request(
        principal=boss,
        tool="mcp_workshop_echo",
        arguments={"text": json.dumps(mine)},
        via="rest",
        holder="server:canaries",
        agent_id=helper.pk,
    )
    with logged() as written:
        outcome = runtime().call(calls.call, request)
        try:
            raise RuntimeError(canaries["environment"])
        except RuntimeError:
            logging.getLogger("bonobot").exception("It broke off with %s", mine)
    environments = list(children())
    runtime().call(connections().forget, server.pk)
    assert outcome.outcome == "ok"
    assert environments
    found = {f"child {number}": leaks(text, sought) for number, text in enumerate(environments)}
    found |= {"outcome": leaks(json.dumps(outcome.as_dict()), sought)}
    found |= {"log": leaks(written.getvalue(), sought)}
    found |= {f"table {name}": leaks(text, sought) for name, text in dumped()}
    assert "It broke off" in written.getvalue()
    assert not {place: kinds for place, kinds in found.items() if kinds}


# What the organization keeps sealed; a person's password and the pepper are known to nobody.
STORED = frozenset(KINDS) - {"password", "webhook address"}


class logged:
    """Everything that is logged meanwhile at DEBUG, in both of our formats."""

    def __enter__(self) -> io.StringIO:
        self._text, self._root = io.StringIO(), logging.getLogger()
        self._before = self._root.level
        self._handlers = [logging.StreamHandler(self._text) for _ in range(2)]
        for handler, shape in zip(self._handlers, (JSONFormatter, TextFormatter), strict=True):
            handler.setFormatter(shape())
            self._root.addHandler(handler)
            logging.getLogger("bonobot").addHandler(handler)
        self._root.setLevel(logging.DEBUG)
        return self._text

    def __exit__(self, *error: object) -> None:
        self._root.setLevel(self._before)
        for handler in self._handlers:
            self._root.removeHandler(handler)
            logging.getLogger("bonobot").removeHandler(handler)


def body(response: Any) -> str:
    """Return what was answered; of a stream that doesn't end by itself, nothing."""
    headers = str(dict(response.headers))
    return headers if response.streaming else headers + response.content.decode()


def dumped() -> Iterator[tuple[str, str]]:
    """Yield every table of the database with the text of all its rows."""
    with connection.cursor() as cursor:
        for model in apps.get_models(include_auto_created=True):
            cursor.execute(str(model._base_manager.order_by().query))  # past what fields make of it
            yield model._meta.db_table, "\n".join(str(row) for row in cursor.fetchall())


def children() -> Iterator[str]:
    """Yield the environment of each process that this one started."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                yield (folder / "environ").read_bytes().decode("latin-1")
        except OSError:
            continue  # it ended while we looked
