"""Canaries: secrets of every kind are stored, and then searched for in everything that is output.

Paths come from the tables of REST and the admin, verbs from those of the command line, rows from
the database, so that additions are covered. GET requests to pages of the admin are covered by
`test_admin_pages.py`.
"""

import io
import json
import logging
import os
import secrets
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from celery.signals import before_task_publish
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.core.signals import got_request_exception
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.views.debug import get_exception_reporter_class
from redis import Redis

from agents.admin.agents import AgentAdmin
from agents.calls import pipeline
from agents.models import ModelEndpoint
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.celery import app
from bonobot.core.runtime import get_runtime
from bonobot.core.telemetry.logging import JSONFormatter, TextFormatter
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Secret, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from mcp_servers.tasks import discover_server
from tests import admin_client, factories, rest
from tests.agents.cli.example_organization import CALLS
from tests.agents.conftest import WORKSHOP
from tests.bonobot import test_api_matrix
from tests.bonobot.canaries import (
    CONSENT,
    KINDS,
    authorize_client,
    build_needles,
    collect_events,
    create_canaries,
    find_leaks,
    read_redis,
    store_canaries,
)
from tests.bonobot.oauth_server.oauth_client import OAuthClient
from tests.screens import ADDRESSES, build_arguments, create_objects, render_without_signals
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def canaries() -> dict[str, str]:
    return create_canaries()


@pytest.fixture
def secret_servers(acme: Organization, canaries: dict[str, str]) -> list[Server]:
    return store_canaries(acme, canaries)


def test_no_rest_response_contains_a_secret(acme, secret_servers, canaries):
    needles = build_needles(canaries)
    ids = test_api_matrix.create_everything(acme)
    leaks: list[tuple[str, list[str]]] = []
    token = create_token(factories.build_administrator(acme), name="owner", role=Role.OWNER)[1]
    client = Client(raise_request_exception=False, headers={"Authorization": f"Bearer {token}"})
    for route, method in test_api_matrix.OPERATIONS:
        servers = (
            [str(entry.pk) for entry in secret_servers] if "<str:server_id>" in route else [""]
        )
        for pk in servers if method == "GET" else ():
            values = {**ids, **({"server_id": pk} if pk else {})}
            path = f"/api/{test_api_matrix.fill_path(route, values)}"
            leaks.append((path, find_leaks(read_body(client.get(path)), needles)))
    leaks.append(("schema", find_leaks(json.dumps(rest.build_document()), needles)))
    assert len(leaks) > 100
    assert not [entry for entry in leaks if entry[1]]


def test_no_command_file_or_row_contains_a_secret(acme, secret_servers, canaries, tmp_path):
    needles = build_needles(canaries)
    file = tmp_path / "audit"
    commands = [verb.split() for verb, call in CALLS.items() if call.reads and not call.args]
    commands += [
        ["mcp", verb, call.name] for verb in ("show", "tools", "history") for call in secret_servers
    ]
    commands += [["audit", "export", "--output", str(file)]]
    leaks: dict[str, list[str]] = {}
    for words in commands:
        out = io.StringIO()
        call_command(*words, "--json", stdout=out, stderr=out)
        leaks[" ".join(words)] = find_leaks(out.getvalue(), needles)
    leaks["export"] = find_leaks(file.read_text(), needles)
    leaks |= {f"table {name}": find_leaks(text, needles) for name, text in dump_tables()}
    for path in Path(settings.BONOBOT_VAR).rglob("*"):
        is_excluded = "keys" in path.parts or "sqlite" in path.name  # rows are covered above
        if path.is_file() and not is_excluded:
            leaks[str(path)] = find_leaks(path.read_bytes().decode("latin-1"), needles)
    assert len(leaks) > 50
    assert not {location: kinds for location, kinds in leaks.items() if kinds}


def test_a_call_puts_no_secret_into_logs_rows_or_other_servers(acme, secret_servers, canaries):
    needles = build_needles(canaries)
    config = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}
    administrator, helper = factories.build_administrator(acme), factories.create_agent(acme)
    spec = ServerSpec(name="workshop", transport_type="stdio", endpoint_config=config)
    server = factories.approve_server(acme, create_server(administrator, spec), helper)
    own_secrets = {kind: text for kind, text in canaries.items() if kind in STORED}
    request = pipeline.CallRequest(
        principal=administrator,
        tool="mcp_workshop_echo",
        arguments={"text": json.dumps(own_secrets)},
        via="rest",
        holder="server:canaries",
        agent_id=helper.pk,
    )
    with LogCapture() as log:
        outcome = get_runtime().call(pipeline.make_call, request)
        try:
            raise RuntimeError(canaries["environment"])
        except RuntimeError:
            logging.getLogger("bonobot").exception("It broke off with %s", own_secrets)
    environments = list(list_child_environments())
    get_runtime().call(get_connection_pool().forget_server, server.pk)
    assert outcome.outcome == "ok"
    assert environments
    leaks = {
        f"child {number}": find_leaks(text, needles) for number, text in enumerate(environments)
    }
    leaks |= {"outcome": find_leaks(json.dumps(outcome.as_dict()), needles)}
    leaks |= {"log": find_leaks(log.getvalue(), needles)}
    leaks |= {f"table {name}": find_leaks(text, needles) for name, text in dump_tables()}
    assert "It broke off" in log.getvalue()
    assert not {location: kinds for location, kinds in leaks.items() if kinds}


def test_authorizing_a_client_puts_no_secret_into_logs_rows_or_pages(acme):
    with LogCapture() as log:
        client_needles = build_needles(authorize_client(acme))
        oauth_client = OAuthClient(User.objects.get(username="olga-acme"))
        resource = {"resource": f"{settings.BONOBOT_URL}/mcp"}
        code = oauth_client.code(CONSENT, scope="mcp:agents", **resource)
        texts = oauth_client.exchange(code, **resource).json()
        refreshed = oauth_client.refresh(texts["refresh_token"]).json()
        assert oauth_client.exchange(code, **resource).status_code == 400  # revokes the grant
        assert oauth_client.refresh(refreshed["refresh_token"]).status_code == 400
        oauth_client.revoke(refreshed["access_token"])
        logging.getLogger("bonobot").info("It was let in.")
    own_secrets = [code, *(value[name] for value in (texts, refreshed) for name in TEXTS)]
    needles = client_needles | build_needles(
        {f"text {n}": value.split("_", 2)[2] for n, value in enumerate(own_secrets)}
    )
    leaks = {f"table {name}": find_leaks(text, needles) for name, text in dump_tables()}
    leaks |= {"log": find_leaks(log.getvalue(), needles)}
    owner, person = (
        admin_client.sign_in(acme, None),
        admin_client.AdminClient(User.objects.get(username="olga-acme")),
    )
    pages = {name: owner.get(name) for name in ("oauth_clients", "tenancy_token_changelist")}
    pages["authorized_clients"] = person.get("authorized_clients")
    pages["audit"] = owner.get("ledger_auditrow_changelist")
    pages["REST"] = person.client.get("/api/authorized-clients").content.decode()
    leaks |= {name: find_leaks(page, needles) for name, page in pages.items()}
    assert "IDE" in pages["oauth_clients"]
    assert "It was let in." in log.getvalue()
    assert not {location: kinds for location, kinds in leaks.items() if kinds}


@pytest.mark.whole
def test_no_response_to_a_write_contains_a_secret(acme, secret_servers, canaries):
    """Neither a stored secret nor one that was sent in a secret field."""
    needles = build_needles(canaries | SENT_SECRET)
    path_ids = test_api_matrix.create_everything(acme)
    token = create_token(factories.build_administrator(acme), name="owner", role=Role.OWNER)[1]
    client = Client(raise_request_exception=False, headers={"Authorization": f"Bearer {token}"})
    leaks: list[tuple[str, list[str]]] = []
    for route, method in sorted(WRITES, key=lambda entry: entry[1] == "DELETE"):
        servers = (
            [str(entry.pk) for entry in secret_servers[:2]] if "<str:server_id>" in route else [""]
        )
        for pk, payload in product(servers, list_bodies(route, method)):
            values = {**path_ids, **({"server_id": pk} if pk else {})}
            path = f"/api/{test_api_matrix.fill_path(route, values)}"
            response = client.generic(method, path, json.dumps(payload), "application/json")
            assert response.status_code != 500, (method, path, read_body(response))
            leaks.append((f"{method} {path}", find_leaks(read_body(response), needles)))
            Organization.objects.update(halted_at=None)
    admin = admin_client.sign_in(acme, None)
    ids = create_objects(acme)
    with render_without_signals():
        for name, parameters in sorted(ADDRESSES, key=lambda entry: "delete" in entry[0]):
            address = reverse(f"admin:{name}", kwargs=build_arguments(name, parameters, ids))
            response = admin.client.post(address, SENT_FIELDS)
            leaks.append((f"POST {address}", find_leaks(read_body(response), needles)))
            Organization.objects.update(halted_at=None)
    assert len(leaks) > 150
    assert not [entry for entry in leaks if entry[1]]


def test_every_write_with_a_body_has_an_example_to_try():
    """Without an example a new route would be tested with an empty body only."""
    missing = [
        (route, method)
        for route, method in WRITES
        if get_operation(route, method).get("requestBody") and len(list_bodies(route, method)) == 1
    ]
    assert missing == []


def test_an_error_page_contains_no_secret(
    acme, secret_servers, canaries, monkeypatch, settings, caplog
):
    needles = build_needles({kind: canaries[kind] for kind in STORED})
    for secret in Secret.objects.all():
        secret.value.open()
    ModelEndpoint.objects.get(name="Keyed").api_key.open()
    canary = canaries["model key"]

    def fail(*_: object, **__: object) -> None:
        data = {"authorization": f"Bearer {canary}", "told": canary}
        raise RuntimeError(f"It broke off with {data}")

    def record_error(**_: object) -> None:
        errors.append(sys.exc_info())

    errors: list[Any] = []
    got_request_exception.connect(record_error)
    monkeypatch.setattr(AgentAdmin, "get_queryset", fail)
    admin = admin_client.sign_in(acme, None)
    admin.client.raise_request_exception = False
    address = reverse("admin:agents_agent_changelist")
    leaks = {}
    with LogCapture() as log:
        for debug in (False, True):
            settings.DEBUG = debug
            response = admin.client.get(address)
            assert response.status_code == 500
            leaks[f"page, DEBUG {debug}"] = find_leaks(read_body(response), needles)
    assert "RuntimeError" in read_body(response), "not Django's page with the traceback"
    reporter = get_exception_reporter_class(None)(None, *errors[-1])  # as in an email
    for render in (reporter.get_traceback_html, reporter.get_traceback_text):
        assert "It broke off" in render()
        leaks[render.__name__] = find_leaks(render(), needles)
    assert "It broke off" in log.getvalue()
    leaks["log"] = find_leaks(log.getvalue(), needles)
    assert not {location: kinds for location, kinds in leaks.items() if kinds}


@pytest.mark.worker
@pytest.mark.whole
def test_no_message_or_event_of_a_worker_contains_a_secret(acme, secret_servers, canaries, worker):
    needles = build_needles(canaries)
    events: list[str] = []
    messages: list[str] = []

    def has_received(server: Server) -> bool:
        return any("task-received" in event and str(server.pk) in event for event in events)

    def enqueue_again() -> bool:
        discover_server.delay(str(secret_servers[0].pk))
        return has_received(secret_servers[0])

    def record_message(sender: str, body: Any, headers: Any, **_: Any) -> None:
        messages.append(f"{sender} {body!r} {headers!r}")

    before_task_publish.connect(record_message, weak=False)
    app.control.enable_events()
    try:
        with collect_events(events):
            # Events are sent once the worker received the command that enables them.
            eventually(enqueue_again, within=60, every=0.5, what="an event of the worker")
            for server in secret_servers:
                discover_server.delay(str(server.pk))
            eventually(
                lambda: all(map(has_received, secret_servers)),
                within=60,
                what="an event about each task",
            )
    finally:
        before_task_publish.disconnect(record_message)
    assert len(messages) >= len(secret_servers)
    leaks = [text for text in (*messages, *events) if find_leaks(text, needles)]
    assert leaks == []
    assert not find_leaks(worker.log(), needles)


@pytest.mark.redis
@pytest.mark.worker
def test_no_key_or_value_in_redis_contains_a_secret(acme, secret_servers, canaries, worker):
    needles = build_needles(canaries)
    for server in secret_servers:
        discover_server.delay(str(server.pk))
    admin = admin_client.sign_in(acme, None)
    admin.get("mcp_servers_server_changelist")
    store = Redis.from_url(settings.REDIS_URL)
    keys = list(store.scan_iter())
    assert keys
    leaks = [key for key in keys if find_leaks(read_redis(store, key), needles)]
    assert leaks == []


TEXTS = ("access_token", "refresh_token")
# The value of secret fields of requests; no response may contain it.
SENT_SECRET = {"sent": f"{secrets.token_urlsafe(24)}+/="}
SECRET_MEMBERS = frozenset(
    {"token", "key", "api_key", "password", "secret", "client_secret", "Authorization", "value"}
)
SENT_FIELDS = dict.fromkeys(("key", "api_key", "password", "secret", "token"), SENT_SECRET["sent"])
WRITES = [(route, method) for route, method in test_api_matrix.OPERATIONS if method != "GET"]


def get_operation(route: str, method: str) -> dict[str, Any]:
    """Return an operation of the OpenAPI document."""
    operations = rest.build_document()["paths"][
        "/api/" + route.replace("<str:", "{").replace(">", "}")
    ]
    return dict(operations[method.lower()])


def list_bodies(route: str, method: str) -> list[Any]:
    """Return an empty body, and the documented examples with a canary in every secret field."""
    content = get_operation(route, method).get("requestBody", {}).get("content", {})
    kinds = [kind for kind in content if kind == "application/json"]
    examples = [
        example["value"] for kind in kinds for example in content[kind].get("examples", {}).values()
    ]
    return [{}, *(insert_canaries(example) for example in examples)]


def insert_canaries(value: Any) -> Any:
    """Return an example with the sent canary in every secret field."""
    if isinstance(value, list):
        return [insert_canaries(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: (
            dict.fromkeys(inner, SENT_SECRET["sent"])
            if name in ("env", "headers", "values") and isinstance(inner, dict)
            else SENT_SECRET["sent"]
            if name in SECRET_MEMBERS and isinstance(inner, str)
            else insert_canaries(inner)
        )
        for name, inner in value.items()
    }


# Secrets that are stored encrypted for the organization.
STORED = frozenset(KINDS) - {"password", "webhook address"}


class LogCapture:
    """Captures everything that is logged at DEBUG, in both formats."""

    def __enter__(self) -> io.StringIO:
        self._text, self._root = io.StringIO(), logging.getLogger()
        self._before = self._root.level
        self._handlers = [logging.StreamHandler(self._text) for _ in range(2)]
        for handler, render in zip(self._handlers, (JSONFormatter, TextFormatter), strict=True):
            handler.setFormatter(render())
            self._root.addHandler(handler)
            logging.getLogger("bonobot").addHandler(handler)
        self._root.setLevel(logging.DEBUG)
        return self._text

    def __exit__(self, *error: object) -> None:
        self._root.setLevel(self._before)
        for handler in self._handlers:
            self._root.removeHandler(handler)
            logging.getLogger("bonobot").removeHandler(handler)


def read_body(response: Any) -> str:
    """Return the headers and the body of a response; of a stream only the headers."""
    headers = str(dict(response.headers))
    return headers if response.streaming else headers + response.content.decode("utf-8", "replace")


def dump_tables() -> Iterator[tuple[str, str]]:
    """Yield every table of the database with all its rows as text."""
    with connection.cursor() as cursor:
        for model in apps.get_models(include_auto_created=True):
            cursor.execute(
                str(model._base_manager.order_by().query)
            )  # raw values, not those of the fields
            yield model._meta.db_table, "\n".join(str(row) for row in cursor.fetchall())


def list_child_environments() -> Iterator[str]:
    """Yield the environment of each child process."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                yield (folder / "environ").read_bytes().decode("latin-1")
        except OSError:
            continue  # it ended meanwhile
