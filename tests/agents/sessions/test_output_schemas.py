"""Structured output: schemas, answers, corrections, and every surface that returns the value."""

import asyncio
import json

import pytest

from agents.evaluation.recordings import create_recording
from agents.evaluation.replays import (
    ReplayOverrides,
    create_replay,
    load_replay_context,
    replay_messages,
)
from agents.llm.interface import ModelError
from agents.llm.offline.model import render_output
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Step
from agents.services import AgentSpec, update_agent
from agents.sessions import services as sessions
from agents.sessions.export import build_report
from agents.sessions.output_schemas import OutputSchemaViolation, check_output_schema, parse_output
from bonobot.core.problems import InvalidInput
from bonobot.core.runtime import get_runtime
from tests import factories
from tests.agents.llm.openai_server import Says

SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
    "required": ["title", "count"],
    "additionalProperties": False,
}
VALUE = {"title": "Issues", "count": 3}


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def model(administrator, helper, fake):
    """The server of the agent's model."""
    spec = ModelEndpointSpec(name="Fake", base_url=fake.url, model="m", allow_private=True)
    helper.model_endpoint = save_endpoint(administrator, spec)
    helper.save()
    return fake


def nest(depth):
    schema = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {}},
        {"type": "object", "properties": {"a": {"type": "nothing"}}},
        {"type": "object", "properties": {"a": {"pattern": "(a+)+\\1"}}},
        {"type": "object", "description": "x" * 20_000},
        nest(70),
    ],
    ids=["text", "remote", "dangling", "invalid", "backtracking", "large", "deep"],
)
def test_an_unusable_schema_is_refused_with_its_field(schema):
    with pytest.raises(InvalidInput) as caught:
        check_output_schema(schema)
    assert (caught.value.code, caught.value.field) == ("unusable_output_schema", "output_schema")


def test_stored_secrets_in_a_schema_are_masked(administrator, acme, helper):
    spec = ModelEndpointSpec(
        name="Keyed",
        base_url="https://models.example.com/v1",
        model="m",
        api_key="stored-key-0123456789",
    )
    save_endpoint(administrator, spec)
    schema = {
        "type": "object",
        "properties": {"password": {"type": "string", "description": "Not stored-key-0123456789"}},
    }
    session = sessions.start_session(administrator, helper, "List", output_schema=schema)
    stored = session.inbox.get().payload["output_schema"]["properties"]["password"]
    assert stored["type"] == "string"
    assert "0123456789" not in stored["description"]


@pytest.mark.parametrize(
    "text", [json.dumps(VALUE), f"```json\n{json.dumps(VALUE)}\n```", f"\n{json.dumps(VALUE)} "]
)
def test_an_answer_is_parsed_with_and_without_a_code_fence(text):
    assert asyncio.run(parse_output(SCHEMA, text)) == VALUE


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("There are three issues.", "isn't JSON"),
        ('{"title": "a", "count": NaN}', "isn't JSON"),
        ("[" * 100_000, "isn't JSON"),
        ('{"title": "a"}', "count"),
        ('{"title": "a", "count": 0}', "at least 1"),
        ('{"title": "a", "count": 1, "more": ' + "[" * 80 + "]" * 80 + "}", "nested"),
        ("[]", "object"),
    ],
)
def test_an_answer_that_violates_the_schema_says_where(text, detail):
    with pytest.raises(OutputSchemaViolation) as caught:
        asyncio.run(parse_output(SCHEMA, text))
    assert detail in str(caught.value)
    assert caught.value.code == "output_schema_violation"


def test_the_value_of_an_answer_is_returned_and_the_schema_is_in_the_prompt(
    administrator, helper, model, run_to_rest
):
    model.script = [Says(json.dumps(VALUE))]
    session = sessions.start_session(administrator, helper, "List", output_schema=SCHEMA)
    assert run_to_rest(session) == "done"
    report = build_report(session.pk)
    assert (report["output"], json.loads(report["answer"])) == (VALUE, VALUE)
    assert '"required":["title","count"]' in model.read(0).system
    # Many servers make no calls if the answer has to be JSON, so it isn't enforced with tools.
    assert "response_format" not in model.requests[0]


def test_the_model_is_asked_again_with_the_error(administrator, helper, model, run_to_rest):
    model.script = [Says("Three."), Says('{"title": "a"}'), Says(json.dumps(VALUE))]
    session = sessions.start_session(administrator, helper, "List", output_schema=SCHEMA)
    assert run_to_rest(session) == "done"
    assert build_report(session.pk)["output"] == VALUE
    last = model.read(2).with_role("user")[-1].text
    assert "count" in last
    notices = session.steps.filter(kind=Step.Kind.NOTICE, payload__code="output_rejected")
    assert notices.count() == 2


def test_a_session_fails_after_repeated_violations_and_keeps_the_text(
    administrator, helper, model, run_to_rest
):
    model.script = [Says("one"), Says("two"), Says("three")]
    session = sessions.start_session(administrator, helper, "List", output_schema=SCHEMA)
    assert run_to_rest(session) == "failed"
    assert session.error_code == "output_schema_violation"
    turns = session.steps.filter(kind=Step.Kind.MODEL).order_by("seq")
    assert [step.payload["text"] for step in turns] == ["one", "two", "three"]
    assert build_report(session.pk)["output"] is None

    # The next message has its own attempts, and no schema.
    model.script = [Says("free text")]
    sessions.send_message(administrator, session, "again")
    assert run_to_rest(session) == "done"
    assert build_report(session.pk)["answer"] == "free text"


def test_the_schema_of_a_message_replaces_that_of_the_agent(
    administrator, helper, model, run_to_rest
):
    update_agent(administrator, helper, AgentSpec(name=helper.name, output_schema=SCHEMA))
    model.script = [Says(json.dumps(VALUE)), Says('{"ok": true}'), Says(json.dumps(VALUE))]
    session = sessions.start_session(administrator, helper, "List")
    run_to_rest(session)
    assert build_report(session.pk)["output"] == VALUE
    own = {"type": "object", "required": ["ok"], "additionalProperties": True}
    sessions.send_message(administrator, session, "Check", output_schema=own)
    run_to_rest(session)
    assert build_report(session.pk)["output"] == {"ok": True}
    sessions.resend_message(administrator, session)
    helper.refresh_from_db()
    assert session.inbox.order_by("pk").last().payload["output_schema"] == own
    update_agent(administrator, helper, AgentSpec(name=helper.name, output_schema={}))
    assert not helper.output_schema


def test_a_replay_asks_for_the_same_output(administrator, helper, model, run_to_rest):
    model.script = [Says(json.dumps(VALUE)), Says("text"), Says(json.dumps(VALUE))]
    session = sessions.start_session(administrator, helper, "List", output_schema=SCHEMA)
    run_to_rest(session)
    recording = create_recording(administrator, session)
    replay = create_replay(administrator, recording, ReplayOverrides())
    transcript = get_runtime().call(replay_messages, load_replay_context(replay.pk))
    assert json.loads(transcript.exchanges[0].answer) == VALUE
    assert len(transcript.exchanges[0].turns) == 2


def test_the_offline_model_answers_simple_schemas(administrator, helper, run_to_rest):
    session = sessions.start_session(administrator, helper, "hello", output_schema=SCHEMA)
    assert run_to_rest(session) == "done"
    assert build_report(session.pk)["output"]["count"] == 1


def test_the_offline_model_refuses_other_schemas(administrator, helper, run_to_rest):
    schema = {"type": "object", "properties": {"a": {"pattern": "^[0-9]+$", "type": "string"}}}
    session = sessions.start_session(administrator, helper, "hello", output_schema=schema)
    assert run_to_rest(session) == "failed"
    assert "offline model" in session.error_detail
    with pytest.raises(ModelError):
        render_output({"type": "object", "minProperties": 1}, "text")
