"""`bonobot elicitations`: what servers ask, on the command line."""

import json

import pytest

from agents.sessions.services import start_session
from bonobot.accounts.models import Organization
from tests import admin_client, factories
from tests.command_line import Bonobot

pytestmark = pytest.mark.django_db


def test_the_command_line_lists_shows_and_answers(bonobot: Bonobot, acme: Organization) -> None:
    agent, server = factories.create_agent(acme), admin_client.web_server(acme)
    session = start_session(factories.build_administrator(acme), agent, "Provision it")
    first, second = (factories.create_elicitation(session, server) for _ in range(2))
    assert len(bonobot("elicitations", "list", "--json").json) == 2
    shown = bonobot("elicitations", "show", str(first.pk)).out
    assert ("Which region?" in shown, "choice, required: eu, us" in shown) == (True, True)
    wrong = bonobot("elicitations", "answer", str(first.pk), "accept", "--set", "count=x", "--json")
    assert wrong.status == 1
    said = ("--set", "region=eu", "--set", "count=2", "--set", "sure=yes")
    assert bonobot("elicitations", "answer", str(first.pk), "accept", *said).status == 0
    first.refresh_from_db()
    assert first.content.open() == {"region": "eu", "count": 2, "sure": True}
    whole = json.dumps({"region": "us"})
    bonobot("elicitations", "answer", str(second.pk), "accept", "--content", whole)
    second.refresh_from_db()
    assert (second.state, second.content.open()) == ("accept", {"region": "us"})
