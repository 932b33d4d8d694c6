import http.client
import json
import signal
from typing import Any

import pytest
from django.db import OperationalError
from django.test import RequestFactory

from bonobot import asgi
from bonobot.monitoring import database_state, health_endpoints
from tests.processes import Web


@pytest.fixture(autouse=True)
def _clear_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    database_state._ready.clear()


def get_health() -> tuple[int, dict[str, str]]:
    response = health_endpoints.answer_healthz(RequestFactory().get(health_endpoints.LIVENESS_PATH))
    return response.status_code, json.loads(response.content)


def test_a_process_with_all_migrations_is_ready(db: None) -> None:
    assert get_health() == (200, {"status": "ok"})


def test_missing_migrations_are_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_state, "count_unapplied_migrations", lambda: 3)
    status, body = get_health()
    assert status == 503
    assert body["status"] == "starting"
    assert "bonobot migrate" in body["detail"]


def test_an_unavailable_database_means_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise OperationalError("connection refused at 10.0.0.5 for user bonobot")

    monkeypatch.setattr(database_state, "count_unapplied_migrations", fail)
    assert get_health() == (503, {"status": "starting", "detail": "the database doesn't respond"})


def test_liveness_needs_no_database_once_ready(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_health()[0] == 200

    def fail_if_called() -> int:
        raise AssertionError("the database was queried again")

    monkeypatch.setattr(database_state, "count_unapplied_migrations", fail_if_called)
    assert get_health()[0] == 200


def test_an_application_that_was_not_ready_becomes_ready(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as starting:
        starting.setattr(database_state, "count_unapplied_migrations", lambda: 1)
        assert get_health()[0] == 503
    assert get_health()[0] == 200


async def test_a_websocket_is_closed() -> None:
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        messages.append(message)

    await asgi.application({"type": "websocket", "path": "/"}, receive, send)
    assert [message["type"] for message in messages] == ["websocket.close"]


@pytest.mark.worker
def test_a_real_server_answers_any_host_name(live_web: Web) -> None:
    link = http.client.HTTPConnection("127.0.0.1", live_web.port, timeout=5)
    link.request("GET", "/healthz", headers={"Host": "10.2.3.4"})
    response = link.getresponse()
    assert (response.status, json.loads(response.read())) == (200, {"status": "ok"})
    assert response.headers["Cache-Control"] == "no-store"
    link.close()


@pytest.mark.worker
def test_a_real_server_starts_and_stops_without_warnings(live_web: Web) -> None:
    assert live_web.stop() in (0, -signal.SIGTERM)  # uvicorn ends by the signal that it got
    log = live_web.log()
    assert "Application startup complete" in log
    assert "Application shutdown complete" in log
    assert not [word for word in ("Traceback", " ERROR ", " WARNING ") if word in log]
