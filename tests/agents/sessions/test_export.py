"""Exports of a session as Markdown and JSON."""

import json

import pytest

from agents.models import Session, Step
from agents.sessions.export import build_filename, export_session
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def session():
    acme = factories.create_organization()
    new_session = Session.objects.create(
        organization=acme,
        agent=factories.create_agent(acme),
        title="What `time` is it?\u200b",
        status="failed",
        started_by="ann",
        turns=2,
        calls=1,
    )
    steps = [
        ("message", "done", {"text": "old words", "by": "ann"}),
        ("model", "done", {"text": "old answer"}),
        (
            "message",
            "done",
            {"text": "two\nlines", "by": "ann", "replaces": 1, "files": [{"name": "a.txt"}]},
        ),
        (
            "model",
            "done",
            {"text": "Look:\n\n- **this**", "thinking": "```</details>\u200b"},
        ),
        (
            "call",
            "done",
            {"name": "mcp_x", "arguments": {"a": 1}, "text": "````\nout\u202e", "duration_ms": 7},
        ),
        ("notice", "done", {"text": "The server is away.", "code": "x"}),
        ("model", "failed", {"detail": "No luck.", "code": "model_error"}),
        ("end", "done", {"detail": "No luck.", "remedy": "Ask again.", "code": "model_error"}),
    ]
    for seq, (kind, state, payload) in enumerate(steps, start=1):
        Step.objects.create(
            session=new_session, seq=seq, kind=kind, state=state, payload=payload, index=seq
        )
    return new_session


def test_the_markdown_export_has_the_current_conversation(session, django_assert_num_queries):
    with django_assert_num_queries(1):
        text = export_session(session, "markdown")
    assert text.startswith("# What 'time' is it?⟨U+200B⟩\n\nAgent `helper`, started by ann on ")
    assert "2 steps were replaced by later messages and are left out." in text
    assert "old" not in text
    assert (
        "\n\n## ann\n\n> two\n> lines\n\nAttached: `a.txt`\n\n## Agent\n\n"
        "<details><summary>Thinking</summary>\n\n````\n```</details>⟨U+200B⟩\n````\n\n</details>"
        "\n\nLook:\n\n- **this**\n"
    ) in text
    call = '### Call `mcp_x` (done, 7 ms)\n\n```json\n{\n  "a": 1\n}\n```\n\n'
    assert call + "`````\n````\nout⟨U+202E⟩\n`````\n" in text
    assert "*The server is away.*\n\n## Agent\n\n*No answer: No luck. (model_error)*" in text
    assert text.endswith("*Ended: No luck. Ask again. (model_error)*\n")


def test_the_json_export_has_every_step_and_marks_replaced_ones(session):
    export = json.loads(export_session(session, "json"))
    assert (export["agent"], export["status"], export["turns"]) == ("helper", "failed", 2)
    marks = [(step["seq"], step["superseded"]) for step in export["steps"]]
    assert marks == [(seq, seq < 3) for seq in range(1, 9)]
    assert export["steps"][4]["arguments"] == {"a": 1}
    assert export["steps"][3]["thinking"] == "```</details>\u200b"


def test_the_file_is_named_after_the_title(session):
    assert build_filename(session, "json") == f"what-time-is-it-{str(session.pk)[:8]}.json"
    session.title = "…"
    assert build_filename(session, "markdown") == f"session-{str(session.pk)[:8]}.md"
