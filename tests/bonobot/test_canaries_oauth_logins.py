"""Canaries of logins: what opens a server is renewed by a real worker, and seen nowhere else."""

import logging
from typing import Any

import pytest
from celery.signals import before_task_publish
from django.conf import settings
from redis import Redis

from bonobot.accounts.roles import Role
from mcp_servers.models import Server
from mcp_servers.tasks import discover_server
from tests import factories
from tests.bonobot.canaries import build_needles, find_leaks, read_redis
from tests.bonobot.test_canaries import dumped, logged
from tests.mcp_servers.oauth_client.conftest import (
    LOGIN,
    boss,
    organization,
    protected,
    protected_origin,
    register,
)
from tests.mcp_servers.oauth_client.test_authorization_code import browser, signed_in
from tests.servers.oauth_protected_server import CLIENT_ID, CLIENT_SECRET
from tests.wait import eventually

__all__ = ["boss", "organization", "protected", "protected_origin", "register"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.redis
@pytest.mark.worker
def test_a_refreshed_sign_in_isnt_in_any_log_row_message_or_key(
    organization, register, protected, start_worker, caplog
):
    """Codes, tokens, verifiers and the client's secret: where they are given, renewed, refused."""
    # What the person's browser is answered; here it is `httpx`, and the product signs in by none.
    caplog.set_level(logging.INFO, logger="httpcore")
    worker, sent = start_worker(BONOBOT_LOG_LEVEL="DEBUG"), []

    def sending(sender: str, body: Any, headers: Any, **_: Any) -> None:
        sent.append(f"{sender} {body!r} {headers!r}")

    def read_again(server: Server) -> None:
        asked = len(protected.seen()["mcp_bearers"])
        discover_server.delay(str(server.pk))
        eventually(lambda: len(protected.seen()["mcp_bearers"]) > asked, what="the worker's turn")

    before_task_publish.connect(sending, weak=False)
    try:
        with logged() as written:
            entered = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
            server = register({**LOGIN, **entered})
            signed_in(browser(factories.create_member(organization, Role.OWNER)), server)
            read_again(server)
            protected.set(forget=True)
            read_again(server)  # which is refused at first, so it renews
            protected.set(echo=True)
            read_again(server)
            protected.set(forget=True, refuse_grants="invalid_grant")
            read_again(server)
            eventually(lambda: Server.objects.filter(status_code="needs_reauth").exists())
    finally:
        before_task_publish.disconnect(sending)
    sought = build_needles(given_at(protected.seen()))
    # A code and its verifier, two renewals with one, and what was sent with each token.
    assert {"code 0", "code_verifier 0", "refresh_token 1", "refresh_token 2"} <= sought.keys()
    store = Redis.from_url(settings.REDIS_URL)
    places = {f"table {name}": find_leaks(text, sought) for name, text in dumped()}
    places |= {str(key): find_leaks(read_redis(store, key), sought) for key in store.scan_iter()}
    places |= {
        "worker": find_leaks(worker.log(), sought),
        "log": find_leaks(written.getvalue(), sought),
    }
    places |= {"messages": find_leaks("".join(sent), sought)}
    assert len(sent) == 4
    assert not {place: kinds for place, kinds in places.items() if kinds}


def given_at(seen: dict[str, Any]) -> dict[str, str]:
    """Return the secrets that went to an authorization server and the server behind it.

    The server's tokens begin with what they are, which is no secret.
    """
    found = {"client secret": CLIENT_SECRET}
    for number, one in enumerate(seen["token_requests"]):
        for name in ("code", "code_verifier", "refresh_token"):
            if name in one:
                found[f"{name} {number}"] = one[name].removeprefix("refresh-")
    for number, one in enumerate(seen["mcp_bearers"]):
        if one:
            found[f"access token {number}"] = one.removeprefix("access-")
    return found
