"""Canaries: secrets of every kind are stored, and then looked for everywhere one could come out.

Addresses come from the tables of REST and the admin, verbs from the command line's, rows from the
database itself, so that what is added later is looked at too. What pages show to a GET request is
looked through in `test_admin_pages.py`.
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
    KINDS,
    LET_IN,
    authorize_client,
    build_needles,
    collect_events,
    create_canaries,
    find_leaks,
    read_redis,
    store_canaries,
)
from tests.bonobot.oauth_server.oauth_client import Program
from tests.screens import ADDRESSES, arguments, fill, only_answers
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def canaries() -> dict[str, str]:
    return create_canaries()


@pytest.fixture
def pool(acme: Organization, canaries: dict[str, str]) -> list[Server]:
    return store_canaries(acme, canaries)


def test_no_rest_response_contains_a_secret(acme, pool, canaries):
    sought = build_needles(canaries)
    known = test_api_matrix.everything(acme)
    found: list[tuple[str, list[str]]] = []
    token = create_token(factories.build_administrator(acme), name="owner", role=Role.OWNER)[1]
    client = Client(raise_request_exception=False, headers={"Authorization": f"Bearer {token}"})
    for route, method in test_api_matrix.OPERATIONS:
        servers = [str(one.pk) for one in pool] if "<str:server_id>" in route else [""]
        for pk in servers if method == "GET" else ():
            values = {**known, **({"server_id": pk} if pk else {})}
            path = f"/api/{test_api_matrix.filled(route, values)}"
            found.append((path, find_leaks(body(client.get(path)), sought)))
    found.append(("schema", find_leaks(json.dumps(rest.document()), sought)))
    assert len(found) > 100
    assert not [one for one in found if one[1]]


def test_no_command_file_or_row_contains_a_secret(acme, pool, canaries, tmp_path):
    sought = build_needles(canaries)
    file = tmp_path / "audit"
    asked = [verb.split() for verb, one in CALLS.items() if one.reads and not one.given]
    asked += [["mcp", verb, one.name] for verb in ("show", "tools", "history") for one in pool]
    asked += [["audit", "export", "--output", str(file)]]
    found: dict[str, list[str]] = {}
    for words in asked:
        out = io.StringIO()
        call_command(*words, "--json", stdout=out, stderr=out)
        found[" ".join(words)] = find_leaks(out.getvalue(), sought)
    found["export"] = find_leaks(file.read_text(), sought)
    found |= {f"table {name}": find_leaks(text, sought) for name, text in dumped()}
    for path in Path(settings.BONOBOT_VAR).rglob("*"):
        kept = "keys" in path.parts or "sqlite" in path.name  # rows were looked at above
        if path.is_file() and not kept:
            found[str(path)] = find_leaks(path.read_bytes().decode("latin-1"), sought)
    assert len(found) > 50
    assert not {place: kinds for place, kinds in found.items() if kinds}


def test_a_call_puts_no_secret_into_logs_rows_or_other_servers(acme, pool, canaries):
    sought = build_needles(canaries)
    config = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}
    administrator, helper = factories.build_administrator(acme), factories.create_agent(acme)
    spec = ServerSpec(name="workshop", transport_type="stdio", endpoint_config=config)
    server = factories.approve_server(acme, create_server(administrator, spec), helper)
    mine = {kind: text for kind, text in canaries.items() if kind in STORED}
    request = pipeline.CallRequest(
        principal=administrator,
        tool="mcp_workshop_echo",
        arguments={"text": json.dumps(mine)},
        via="rest",
        holder="server:canaries",
        agent_id=helper.pk,
    )
    with logged() as written:
        outcome = get_runtime().call(pipeline.make_call, request)
        try:
            raise RuntimeError(canaries["environment"])
        except RuntimeError:
            logging.getLogger("bonobot").exception("It broke off with %s", mine)
    environments = list(children())
    get_runtime().call(get_connection_pool().forget_server, server.pk)
    assert outcome.outcome == "ok"
    assert environments
    found = {
        f"child {number}": find_leaks(text, sought) for number, text in enumerate(environments)
    }
    found |= {"outcome": find_leaks(json.dumps(outcome.as_dict()), sought)}
    found |= {"log": find_leaks(written.getvalue(), sought)}
    found |= {f"table {name}": find_leaks(text, sought) for name, text in dumped()}
    assert "It broke off" in written.getvalue()
    assert not {place: kinds for place, kinds in found.items() if kinds}


def test_authorizing_a_client_puts_no_secret_into_logs_rows_or_pages(acme):
    with logged() as written:
        found = build_needles(authorize_client(acme))
        program = Program(User.objects.get(username="olga-acme"))
        here = {"resource": f"{settings.BONOBOT_URL}/mcp"}
        code = program.code(LET_IN, scope="mcp:agents", **here)
        texts = program.exchange(code, **here).json()
        again = program.refresh(texts["refresh_token"]).json()
        assert program.exchange(code, **here).status_code == 400  # which ends what it was for
        assert program.refresh(again["refresh_token"]).status_code == 400
        program.revoke(again["access_token"])
        logging.getLogger("bonobot").info("It was let in.")
    mine = [code, *(one[name] for one in (texts, again) for name in TEXTS)]
    sought = found | build_needles(
        {f"text {n}": one.split("_", 2)[2] for n, one in enumerate(mine)}
    )
    places = {f"table {name}": find_leaks(text, sought) for name, text in dumped()}
    places |= {"log": find_leaks(written.getvalue(), sought)}
    owner, person = (
        admin_client.sit(acme, None),
        admin_client.Desk(User.objects.get(username="olga-acme")),
    )
    pages = {name: owner.get(name) for name in ("programs", "tenancy_token_changelist")}
    pages["let_in"] = person.get("let_in")
    pages["audit"] = owner.get("ledger_auditrow_changelist")
    pages["REST"] = person.client.get("/api/authorized-clients").content.decode()
    places |= {name: find_leaks(page, sought) for name, page in pages.items()}
    assert "IDE" in pages["programs"]
    assert "It was let in." in written.getvalue()
    assert not {place: kinds for place, kinds in places.items() if kinds}


def test_no_response_to_a_write_contains_a_secret(acme, pool, canaries):
    """Neither what is stored, nor what was just sent in a member that holds secrets."""
    sought = build_needles(canaries | SENT)
    known = test_api_matrix.everything(acme)
    token = create_token(factories.build_administrator(acme), name="owner", role=Role.OWNER)[1]
    client = Client(raise_request_exception=False, headers={"Authorization": f"Bearer {token}"})
    found: list[tuple[str, list[str]]] = []
    for route, method in sorted(WRITES, key=lambda one: one[1] == "DELETE"):
        servers = [str(one.pk) for one in pool[:2]] if "<str:server_id>" in route else [""]
        for pk, sent in product(servers, bodies(route, method)):
            values = {**known, **({"server_id": pk} if pk else {})}
            path = f"/api/{test_api_matrix.filled(route, values)}"
            response = client.generic(method, path, json.dumps(sent), "application/json")
            assert response.status_code != 500, (method, path, body(response))
            found.append((f"{method} {path}", find_leaks(body(response), sought)))
            Organization.objects.update(halted_at=None)
    admin = admin_client.sit(acme, None)
    ids = fill(acme)
    with only_answers():
        for name, parameters in sorted(ADDRESSES, key=lambda one: "delete" in one[0]):
            address = reverse(f"admin:{name}", kwargs=arguments(name, parameters, ids))
            response = admin.client.post(address, SENT_FIELDS)
            found.append((f"POST {address}", find_leaks(body(response), sought)))
            Organization.objects.update(halted_at=None)
    assert len(found) > 150
    assert not [one for one in found if one[1]]


def test_every_write_with_a_body_has_an_example_to_try():
    """Without an example a new route would be looked at with an empty body only."""
    missing = [
        (route, method)
        for route, method in WRITES
        if operation(route, method).get("requestBody") and len(bodies(route, method)) == 1
    ]
    assert missing == []


def test_an_error_page_contains_no_secret(acme, pool, canaries, monkeypatch, settings, caplog):
    sought = build_needles({kind: canaries[kind] for kind in STORED})
    for secret in Secret.objects.all():
        secret.value.open()
    ModelEndpoint.objects.get(name="Keyed").api_key.open()
    canary = canaries["model key"]

    def broken(*_: object, **__: object) -> None:
        data = {"authorization": f"Bearer {canary}", "told": canary}
        raise RuntimeError(f"It broke off with {data}")

    def keep(**_: object) -> None:
        faults.append(sys.exc_info())

    faults: list[Any] = []
    got_request_exception.connect(keep)
    monkeypatch.setattr(AgentAdmin, "get_queryset", broken)
    admin = admin_client.sit(acme, None)
    admin.client.raise_request_exception = False
    address = reverse("admin:agents_agent_changelist")
    found = {}
    with logged() as written:
        for debug in (False, True):
            settings.DEBUG = debug
            response = admin.client.get(address)
            assert response.status_code == 500
            found[f"page, DEBUG {debug}"] = find_leaks(body(response), sought)
    assert "RuntimeError" in body(response), "it is Django's page with the traceback"
    reporter = get_exception_reporter_class(None)(None, *faults[-1])  # as for a mail
    for shape in (reporter.get_traceback_html, reporter.get_traceback_text):
        assert "It broke off" in shape()
        found[shape.__name__] = find_leaks(shape(), sought)
    assert "It broke off" in written.getvalue()
    found["log"] = find_leaks(written.getvalue(), sought)
    assert not {place: kinds for place, kinds in found.items() if kinds}


@pytest.mark.worker
def test_no_message_or_event_of_a_worker_contains_a_secret(acme, pool, canaries, worker):
    sought = build_needles(canaries)
    seen: list[str] = []
    sent: list[str] = []

    def told(server: Server) -> bool:
        return any("task-received" in one and str(server.pk) in one for one in seen)

    def asked_again() -> bool:
        discover_server.delay(str(pool[0].pk))
        return told(pool[0])

    def sending(sender: str, body: Any, headers: Any, **_: Any) -> None:
        sent.append(f"{sender} {body!r} {headers!r}")

    before_task_publish.connect(sending, weak=False)
    app.control.enable_events()
    try:
        with collect_events(seen):
            # Events come from when the worker has heard that they are wanted.
            eventually(asked_again, within=60, every=0.5, what="an event of the worker")
            for server in pool:
                discover_server.delay(str(server.pk))
            eventually(lambda: all(map(told, pool)), within=60, what="an event about each task")
    finally:
        before_task_publish.disconnect(sending)
    assert len(sent) >= len(pool)
    found = [one for one in (*sent, *seen) if find_leaks(one, sought)]
    assert found == []
    assert not find_leaks(worker.log(), sought)


@pytest.mark.redis
@pytest.mark.worker
def test_no_key_or_value_in_redis_contains_a_secret(acme, pool, canaries, worker):
    sought = build_needles(canaries)
    for server in pool:
        discover_server.delay(str(server.pk))
    admin = admin_client.sit(acme, None)
    admin.get("mcp_servers_server_changelist")
    store = Redis.from_url(settings.REDIS_URL)
    keys = list(store.scan_iter())
    assert keys
    found = [key for key in keys if find_leaks(read_redis(store, key), sought)]
    assert found == []


TEXTS = ("access_token", "refresh_token")
SENT = {"sent": f"{secrets.token_urlsafe(24)}+/="}
SECRET_MEMBERS = frozenset(
    {"token", "key", "api_key", "password", "secret", "client_secret", "Authorization", "value"}
)
SENT_FIELDS = dict.fromkeys(("key", "api_key", "password", "secret", "token"), SENT["sent"])
WRITES = [(route, method) for route, method in test_api_matrix.OPERATIONS if method != "GET"]


def operation(route: str, method: str) -> dict[str, Any]:
    """Return what the document says of an operation."""
    found = rest.document()["paths"]["/api/" + route.replace("<str:", "{").replace(">", "}")]
    return dict(found[method.lower()])


def bodies(route: str, method: str) -> list[Any]:
    """Return an empty body, and the document's examples with a canary wherever a secret goes."""
    content = operation(route, method).get("requestBody", {}).get("content", {})
    kinds = [kind for kind in content if kind == "application/json"]
    shown = [one["value"] for kind in kinds for one in content[kind].get("examples", {}).values()]
    return [{}, *(with_canaries(one) for one in shown)]


def with_canaries(value: Any) -> Any:
    """Return an example in which every member that holds a secret holds what was sent."""
    if isinstance(value, list):
        return [with_canaries(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: (
            dict.fromkeys(inner, SENT["sent"])
            if name in ("env", "headers", "values") and isinstance(inner, dict)
            else SENT["sent"]
            if name in SECRET_MEMBERS and isinstance(inner, str)
            else with_canaries(inner)
        )
        for name, inner in value.items()
    }


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
    return headers if response.streaming else headers + response.content.decode("utf-8", "replace")


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
