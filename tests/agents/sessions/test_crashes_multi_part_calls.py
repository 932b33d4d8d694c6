"""Crashes of multi-part calls, killed at each moment.

The calls are one that requests input, a task, and a resource that requests input; the server logs
them.
"""

from collections import Counter
from functools import partial

import pytest

from agents.models import Agent, Approval, ElicitationRequest, Session, Step
from agents.services import attach_server
from agents.sessions import services as sessions
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.flow_labels.effective_labels import set_labels
from mcp_servers.models import Definition
from tests import factories
from tests.agents.crash_scenarios import assert_in_order, kill_at_each_moment, list_calls
from tests.processes import serve

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.whole("postgres")]

URI = "parts://book"
TOOLS = '/mcp_parts_provision {"key": "one"}\n/mcp_parts_build {"key": "two"}'
READ = f'/read_resource {{"server": "parts", "uri": "{URI}"}}'


@pytest.fixture
def start(acme, helper, tmp_path):
    """Return a function that starts a session with an empty call log."""
    file = tmp_path / "parts"
    administrator = factories.build_administrator(acme)
    with serve("multi_part_call_server.py", file) as url:
        server = factories.approve_server(
            acme, factories.create_http_server(acme, url, "parts"), helper
        )
        attach_server(administrator, helper, server, allowed_resources=[URI])
        # Flow labels don't matter here.
        set_labels(administrator, server, list(Definition.objects.filter(server=server)), ())
        Agent.objects.update(calls_per_minute=100_000)

        def go(text):
            file.write_text("")
            return sessions.start_session(administrator, helper, text)

        yield go
        get_runtime().call(get_connection_pool().forget_server, server.pk)


def check(file, session, context, *, approve):
    """Check that each part ran once or is unknown."""
    session.refresh_from_db()
    assert session.status == Session.Status.DONE, context
    assert_in_order(session, context)
    counts = Counter(line.split()[0] for line in file.read_text().splitlines())
    repeated = approve and Approval.objects.filter(session=session).exists()
    for step in list_calls(session):
        name = step.payload["name"].removeprefix("mcp_parts_")
        repeatable = name == "read_resource"
        for effect in {"build": ("build", "told"), "read_resource": ("read",)}.get(name, (name,)):
            assert counts[effect] <= 1 + (repeatable or repeated), (context, effect)
            assert counts[effect] >= (step.state == Step.State.DONE), (context, effect)
        if repeatable:
            assert step.state == Step.State.DONE, context
        elif approve:
            # A repeated call completed, unless its result was lost.
            assert step.payload.get("code") in (None, "", "answer_lost"), context
    # People's answers are deleted.
    for request in ElicitationRequest.objects.filter(session=session):
        assert request.state != ElicitationRequest.State.WAITING, context
        assert request.content.open() == {}, context


@pytest.mark.parametrize(
    ("text", "sample_size"), [(TOOLS, 3), (READ, 2)], ids=["tools", "a resource"]
)
def test_a_multi_part_call_continues_after_a_crash(
    start, start_crash_process, tmp_path, text, sample_size
):
    kill_at_each_moment(
        partial(start, text), start_crash_process(), sample_size, partial(check, tmp_path / "parts")
    )
