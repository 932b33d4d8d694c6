"""Crashes of calls in several parts: killed at each moment while a server asks, or works.

A call that asks for input beside one that is a task, and a resource that asks: the server counts.
"""

from collections import Counter
from functools import partial

import pytest

from agents.models import Agent, Approval, ElicitationRequest, Session, Step
from agents.services import attach_server
from agents.sessions import services as sessions
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.flow_labels.services import set_labels
from mcp_servers.models import Definition
from tests import factories
from tests.agents.crash_scenarios import calls_of, in_order, table
from tests.processes import served

pytestmark = pytest.mark.django_db(transaction=True)

URI = "parts://book"
TOOLS = '/mcp_parts_provision {"key": "one"}\n/mcp_parts_build {"key": "two"}'
READ = f'/read_resource {{"server": "parts", "uri": "{URI}"}}'


@pytest.fixture
def begin(acme, helper, tmp_path):
    """A function that begins a session of a message, with nothing counted yet."""
    file = tmp_path / "parts"
    boss = factories.build_administrator(acme)
    with served("multi_part_call_server.py", file) as url:
        server = factories.approve_server(
            acme, factories.create_http_server(acme, url, "parts"), helper
        )
        attach_server(boss, helper, server, allowed_resources=[URI])
        # What flows where is no matter here.
        set_labels(boss, server, list(Definition.objects.filter(server=server)), ())
        Agent.objects.update(calls_per_minute=100_000)

        def go(text):
            file.write_text("")
            return sessions.start_session(boss, helper, text)

        yield go
        get_runtime().call(get_connection_pool().forget_server, server.pk)


def check(file, session, where, *, yes):
    """Check that each part was gone through once, or is said to be unknown."""
    session.refresh_from_db()
    assert session.status == Session.Status.DONE, where
    in_order(session, where)
    done = Counter(line.split()[0] for line in file.read_text().splitlines())
    repeated = yes and Approval.objects.filter(session=session).exists()
    for step in calls_of(session):
        name = step.payload["name"].removeprefix("mcp_parts_")
        safe = name == "read_resource"
        for effect in {"build": ("build", "told"), "read_resource": ("read",)}.get(name, (name,)):
            assert done[effect] <= 1 + (safe or repeated), (where, effect)
            assert done[effect] >= (step.state == Step.State.DONE), (where, effect)
        if safe:
            assert step.state == Step.State.DONE, where
        elif yes:
            # What a person has made again came to its end, unless that was seen by nobody.
            assert step.payload.get("code") in (None, "", "answer_lost"), where
    # What people entered is nowhere any more.
    for question in ElicitationRequest.objects.filter(session=session):
        assert question.state != ElicitationRequest.State.WAITING, where
        assert question.content.open() == {}, where


@pytest.mark.parametrize(("text", "few"), [(TOOLS, 3), (READ, 2)], ids=["tools", "a resource"])
def test_a_multi_part_call_continues_after_a_crash(begin, mortals, tmp_path, text, few):
    table(partial(begin, text), mortals(), few, partial(check, tmp_path / "parts"))
