"""Canaries of OAuth logins: a worker refreshes the tokens of a server, which appear nowhere."""

import logging
from operator import gt
from typing import Any

import pytest
from celery.signals import before_task_publish
from django.conf import settings
from redis import Redis

from bonobot.accounts.roles import Role
from mcp_servers.models import HealthCheck, Server
from mcp_servers.tasks import discover_server
from tests import factories
from tests.bonobot.canaries import build_needles, find_leaks, read_redis
from tests.bonobot.test_canaries import LogCapture, dump_tables
from tests.mcp_servers.oauth_client.conftest import (
    LOGIN,
    administrator,
    organization,
    protected,
    protected_origin,
    register,
)
from tests.mcp_servers.oauth_client.test_authorization_code import browser, signed_in
from tests.servers.oauth_protected_server import CLIENT_ID, CLIENT_SECRET
from tests.wait import eventually

__all__ = ["administrator", "organization", "protected", "protected_origin", "register"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.redis
@pytest.mark.worker
def test_a_refreshed_sign_in_isnt_in_any_log_row_message_or_key(
    organization, register, protected, start_worker, caplog
):
    """Codes, tokens, verifiers and the client secret: when issued, refreshed and refused."""
    # The browser of the person is `httpx`, which logs responses; the product doesn't use it here.
    caplog.set_level(logging.INFO, logger="httpcore")
    worker, messages = start_worker(BONOBOT_LOG_LEVEL="DEBUG"), []

    def record_message(sender: str, body: Any, headers: Any, **_: Any) -> None:
        messages.append(f"{sender} {body!r} {headers!r}")

    def count_requests_and_checks() -> tuple[int, int]:
        return len(protected.seen()["mcp_bearers"]), HealthCheck.objects.count()

    def discover_again(server: Server) -> None:
        """Discover to the end, so that the next discovery meets what is set for it."""
        requests, checks = count_requests_and_checks()
        discover_server.delay(str(server.pk))
        eventually(
            lambda: all(map(gt, count_requests_and_checks(), (requests, checks))),
            what="a discovery by the worker",
        )

    before_task_publish.connect(record_message, weak=False)
    try:
        with LogCapture() as log:
            entered = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
            server = register({**LOGIN, **entered})
            signed_in(browser(factories.create_member(organization, Role.OWNER)), server)
            discover_again(server)
            protected.set(forget=True)
            discover_again(server)  # refused at first, so the worker refreshes the token
            protected.set(echo=True)
            discover_again(server)
            protected.set(forget=True, refuse_grants="invalid_grant")
            discover_server.delay(str(server.pk))  # its refusal isn't stored as a check
            eventually(lambda: Server.objects.filter(status_code="needs_reauth").exists())
    finally:
        before_task_publish.disconnect(record_message)
    needles = build_needles(list_issued_secrets(protected.seen()))
    # A code and its verifier, and two refresh tokens.
    assert {"code 0", "code_verifier 0", "refresh_token 1", "refresh_token 2"} <= needles.keys()
    store = Redis.from_url(settings.REDIS_URL)
    leaks = {f"table {name}": find_leaks(text, needles) for name, text in dump_tables()}
    leaks |= {str(key): find_leaks(read_redis(store, key), needles) for key in store.scan_iter()}
    leaks |= {
        "worker": find_leaks(worker.log(), needles),
        "log": find_leaks(log.getvalue(), needles),
    }
    leaks |= {"messages": find_leaks("".join(messages), needles)}
    assert len(messages) == 4
    assert not {location: kinds for location, kinds in leaks.items() if kinds}


def list_issued_secrets(requests: dict[str, Any]) -> dict[str, str]:
    """Return the secrets that were sent to an authorization server and its protected server.

    Tokens have a prefix that isn't secret.
    """
    issued = {"client secret": CLIENT_SECRET}
    for number, request in enumerate(requests["token_requests"]):
        for name in ("code", "code_verifier", "refresh_token"):
            if name in request:
                issued[f"{name} {number}"] = request[name].removeprefix("refresh-")
    for number, request in enumerate(requests["mcp_bearers"]):
        if request:
            issued[f"access token {number}"] = request.removeprefix("access-")
    return issued
