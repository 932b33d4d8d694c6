"""Other origins: those that are listed may use /api, with a token and without cookies."""

import pytest
from django.test import Client

FRONTEND = "https://app.example.com"
PREFLIGHT = {"Access-Control-Request-Method": "POST"}

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _listed(settings) -> None:
    settings.BONOBOT_CORS_ORIGINS = (FRONTEND,)


def test_a_listed_origin_is_told_what_it_may_send(client: Client):
    answer = client.options("/api/agents", headers={"Origin": FRONTEND} | PREFLIGHT)
    assert answer.status_code == 204
    assert answer["Access-Control-Allow-Origin"] == FRONTEND
    assert "Authorization" in answer["Access-Control-Allow-Headers"]
    assert "PATCH" in answer["Access-Control-Allow-Methods"]


def test_a_listed_origin_reads_answers_and_problems(client: Client):
    answer = client.get("/api/agents", headers={"Origin": FRONTEND})
    assert answer.status_code == 401
    assert answer["Access-Control-Allow-Origin"] == FRONTEND
    assert "WWW-Authenticate" in answer["Access-Control-Expose-Headers"]
    assert "Origin" in answer["Vary"]


def test_cookies_are_never_taken_from_elsewhere(client: Client):
    for answer in (
        client.options("/api/agents", headers={"Origin": FRONTEND} | PREFLIGHT),
        client.get("/api/agents", headers={"Origin": FRONTEND}),
    ):
        assert "Access-Control-Allow-Credentials" not in answer


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://app.example.com.evil"])
def test_any_other_origin_gets_nothing(client: Client, origin):
    asked = client.options("/api/agents", headers={"Origin": origin} | PREFLIGHT)
    read = client.get("/api/agents", headers={"Origin": origin})
    assert asked.status_code == 401
    assert "Access-Control-Allow-Origin" not in asked
    assert "Access-Control-Allow-Origin" not in read
    assert "Origin" in read["Vary"]


def test_nothing_but_the_api_is_opened(client: Client):
    answer = client.get("/admin/login/", headers={"Origin": FRONTEND})
    assert "Access-Control-Allow-Origin" not in answer


def test_without_the_setting_nothing_is_said(client: Client, settings):
    settings.BONOBOT_CORS_ORIGINS = ()
    answer = client.get("/api/agents", headers={"Origin": FRONTEND})
    assert "Access-Control-Allow-Origin" not in answer
