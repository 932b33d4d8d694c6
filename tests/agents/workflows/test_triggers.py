"""Triggers: webhooks with a secret, and schedules that are never run twice."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.utils import timezone

from agents.flow_labels.services import list_session_labels
from agents.models import Session, Trigger, WorkflowRun
from agents.services import AgentSpec, update_agent
from agents.workflows import triggers
from agents.workflows.services import WorkflowSpec, save_workflow
from agents.workflows.triggers import TriggerSpec, save_trigger, start_due_runs
from bonobot.accounts.roles import Role
from bonobot.core.crypto.signatures import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign_body
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.ledger.models import AuditRow
from tests import factories, rest

pytestmark = pytest.mark.django_db(transaction=True)

SOURCE = """\
agent: helper
inputs: {type: object, properties: {text: {type: string}}, required: [text]}
steps: [{id: say, call: search_notes, arguments: {query: "${/inputs/text}"}}]
"""
FIRST_ALERT = {"text": "${/body/alerts/0/name} is ${/body/state:-odd}"}


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def workflow(administrator, helper):
    return save_workflow(administrator, WorkflowSpec(name="say", source=SOURCE))


@pytest.fixture
def webhook(administrator, workflow):
    """A webhook trigger with inputs from the body, and its secret."""
    spec = TriggerSpec(name="alerts", kind="webhook", inputs=FIRST_ALERT, per_minute=600)
    return save_trigger(administrator, workflow, spec)


def create_schedule(administrator, workflow, **more):
    values = {"kind": "schedule", "every_s": 600, "inputs": {"text": "x"}} | more
    return save_trigger(administrator, workflow, TriggerSpec(name="nightly", **values))[0]


def make_overdue(trigger, minutes=61):
    Trigger.objects.filter(pk=trigger.pk).update(
        next_at=timezone.now() - timedelta(minutes=minutes)
    )


def post_delivery(trigger, body, **headers):
    return rest.RestClient().post(f"hooks/{trigger.pk}", body, **headers)


def build_bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


def build_signature(secret, body, signed_at=None):
    signed_at = int(time.time() if signed_at is None else signed_at)
    return {TIMESTAMP_HEADER: str(signed_at), SIGNATURE_HEADER: sign_body(secret, signed_at, body)}


def test_a_webhook_starts_a_run_with_inputs_from_its_body(webhook, workflow):
    trigger, secret = webhook
    alert = {"alerts": [{"name": "disk"}], "state": "firing"}
    response = post_delivery(trigger, alert, **build_bearer(secret))
    run = WorkflowRun.objects.select_related("session").get()
    assert (response.status, response.json["run_id"]) == (201, str(run.pk))
    assert (run.inputs, run.via) == ({"text": "disk is firing"}, "webhook")
    assert (run.trigger, run.session.started_by) == (trigger, "webhook alerts")
    (label,) = list_session_labels(run.session)
    assert str(label.label) == "untrusted_content", "inputs from a webhook are untrusted"
    row = AuditRow.objects.get(action="webhook_received")
    assert (row.outcome, row.session_id, label.call_id) == ("ok", run.session_id, row.pk)
    assert AuditRow.objects.get(action="workflow_started").actor_label == "webhook alerts"
    body = json.dumps({"alerts": [{"name": "net"}]}).encode()
    assert post_delivery(trigger, body, **build_signature(secret, body)).status == 201
    assert WorkflowRun.objects.first().inputs == {"text": "net is odd"}
    trigger.refresh_from_db()
    assert (trigger.last_code, trigger.last_at is None) == ("", False)


def test_wrong_secrets_unknown_ids_and_old_signatures_get_the_same_response(
    acme, administrator, webhook, workflow
):
    trigger, secret = webhook
    body = b'{"alerts": [{"name": "disk"}]}'
    schedule = create_schedule(administrator, workflow)
    _, other_trigger = save_trigger(
        administrator, workflow, TriggerSpec(name="other", kind="webhook")
    )
    expired_at = time.time() - 400
    responses = [
        post_delivery(trigger, body),
        post_delivery(trigger, body, **build_bearer("")),
        post_delivery(trigger, body, **build_bearer(other_trigger)),
        post_delivery(trigger, body, **build_bearer(f"{secret}x")),
        post_delivery(trigger, body, Authorization=f"Basic {secret}"),
        post_delivery(trigger, body + b" ", **build_signature(secret, body)),
        post_delivery(trigger, body, **build_signature(other_trigger, body)),
        post_delivery(trigger, body, **build_signature(secret, body, signed_at=expired_at)),
        post_delivery(trigger, body, **build_signature(secret, body, signed_at=time.time() + 400)),
        post_delivery(trigger, body, **{**build_signature(secret, body), TIMESTAMP_HEADER: "soon"}),
        post_delivery(schedule, body, **build_bearer(secret)),
        rest.RestClient().post(
            "hooks/0198c0de-0000-7000-8000-000000000000", body, **build_bearer(secret)
        ),
        rest.RestClient().post("hooks/no-id", body, **build_bearer(secret)),
    ]
    assert {(response.status, response.text) for response in responses} == {
        (401, responses[0].text)
    }
    assert responses[0].code == "bad_secret"
    Trigger.objects.filter(pk=trigger.pk).update(secret="")
    assert post_delivery(trigger, body, **build_bearer("")).status == 401, (
        "without a secret every delivery is refused"
    )
    assert not Session.objects.exists()


def test_a_body_without_valid_inputs_is_refused_and_recorded(administrator, webhook, workflow):
    trigger, secret = webhook
    trigger_without_inputs, key = save_trigger(
        administrator, workflow, TriggerSpec(name="plain", kind="webhook")
    )
    assert (
        post_delivery(trigger, {"alerts": []}, **build_bearer(secret)).code
        == "unresolved_reference"
    )
    assert post_delivery(trigger, b"{", **build_bearer(secret)).code == "invalid_json"
    assert post_delivery(trigger, b"", **build_bearer(secret)).code == "invalid_json"
    assert (
        post_delivery(trigger, b"[" + b"1," * 2**17 + b"1]", **build_bearer(secret)).status == 413
    )
    assert post_delivery(trigger_without_inputs, ["x"], **build_bearer(key)).json["field"] == "body"
    assert (
        post_delivery(trigger_without_inputs, {"text": 1}, **build_bearer(key)).code
        == "invalid_arguments"
    )
    trigger_without_inputs.refresh_from_db()
    assert trigger_without_inputs.last_code == "invalid_arguments"
    codes = set(AuditRow.objects.filter(action="webhook_received").values_list("code", "outcome"))
    assert codes == {
        ("unresolved_reference", "error"),
        ("invalid", "error"),
        ("invalid_arguments", "error"),
    }
    assert post_delivery(trigger_without_inputs, {"text": "x"}, **build_bearer(key)).status == 201
    save_trigger(
        administrator, workflow, TriggerSpec(name="plain", enabled=False), trigger_without_inputs
    )
    assert (
        post_delivery(trigger_without_inputs, {"text": "x"}, **build_bearer(key)).code
        == "trigger_disabled"
    )
    update_agent(administrator, workflow.agent, AgentSpec(name=workflow.agent.name, enabled=False))
    caught = post_delivery(trigger, {"alerts": [{"name": "x"}]}, **build_bearer(secret))
    assert (caught.status, caught.code) == (409, "agent_disabled")
    assert WorkflowRun.objects.count() == 1


def test_a_repeated_delivery_starts_nothing(webhook):
    trigger, secret = webhook
    body = {"alerts": [{"name": "disk"}]}
    headers = {**build_bearer(secret), "Idempotency-Key": "delivery-1"}
    first, repeated = (
        post_delivery(trigger, body, **headers),
        post_delivery(trigger, body, **headers),
    )
    assert (first.status, repeated.status) == (201, 200)
    assert first.json["run_id"] == repeated.json["run_id"]
    headers["Idempotency-Key"] = "delivery-2"

    def post(_number):
        try:
            return post_delivery(trigger, body, **headers)
        finally:
            connections.close_all()

    if connection.vendor == "sqlite":
        responses = [post(number) for number in range(3)]
    else:
        with ThreadPoolExecutor(4) as pool:
            responses = list(pool.map(post, range(4)))
    assert len({response.json["run_id"] for response in responses}) == 1
    assert sorted(response.status for response in responses)[-1] == 201
    assert WorkflowRun.objects.count() == Session.objects.count() == 2
    invalid = {**build_bearer(secret), "Idempotency-Key": "x" * 256}
    assert post_delivery(trigger, body, **invalid).code == "bad_idempotency_key"


@pytest.mark.parametrize("key", ["", "another"])
def test_a_replayed_signed_delivery_starts_nothing(webhook, key):
    trigger, secret = webhook
    body = {"alerts": [{"name": "disk"}]}
    headers = build_signature(secret, json.dumps(body).encode())
    first = post_delivery(trigger, body, **headers)
    repeated = post_delivery(trigger, body, **headers, **({"Idempotency-Key": key} if key else {}))
    assert first.status == 201
    if key:  # the key isn't signed, so a replay can use another one
        assert (repeated.status, repeated.code) == (409, "delivery_replayed")
    else:
        assert (repeated.status, repeated.json["run_id"]) == (200, first.json["run_id"])
    assert WorkflowRun.objects.count() == 1


def test_a_signed_delivery_that_started_nothing_can_be_resent(webhook):
    trigger, secret = webhook
    body = {"alerts": [{"name": "disk"}]}
    headers = build_signature(secret, json.dumps(body).encode())
    Trigger.objects.update(enabled=False)
    assert post_delivery(trigger, body, **headers).code == "trigger_disabled"
    Trigger.objects.update(enabled=True)
    assert post_delivery(trigger, body, **headers).status == 201


def test_a_webhook_is_rate_limited(administrator, workflow):
    trigger, key = save_trigger(
        administrator, workflow, TriggerSpec(name="a", kind="webhook", per_minute=2)
    )
    responses = [post_delivery(trigger, {"text": "x"}, **build_bearer(key)) for _ in range(4)]
    assert [response.status for response in responses] == [201, 201, 429, 429]
    assert responses[-1].code == "rate_limited"
    assert int(responses[-1].headers["Retry-After"]) > 1
    assert WorkflowRun.objects.count() == 2
    entry = AuditRow.objects.get(action="webhook_received", outcome="refused")
    assert (entry.code, entry.resource_name) == ("rate_limited", "a"), (
        "repeated denials are one entry"
    )


def test_a_due_schedule_runs_once_after_missed_times(administrator, workflow):
    trigger = create_schedule(administrator, workflow)
    assert start_due_runs() == 0, "its first time is in the future"
    make_overdue(trigger)
    before = timezone.now()
    assert [start_due_runs() for _ in range(3)] == [1, 0, 0]
    run = WorkflowRun.objects.select_related("session").get()
    assert (run.via, run.inputs, run.session.started_by) == (
        "schedule",
        {"text": "x"},
        "schedule nightly",
    )
    trigger.refresh_from_db()
    assert before < trigger.next_at <= before + timedelta(minutes=11)
    assert trigger.last_code == ""


def test_two_concurrent_sweeps_start_one_run(administrator, workflow, monkeypatch):
    trigger = create_schedule(administrator, workflow)
    make_overdue(trigger)
    start_trigger_run = triggers._start_trigger_run

    def start_after_other_sweep(row):
        # The other sweep read the same row before this one updated its time.
        assert triggers._claim_trigger(stale, timezone.now()) is False
        return start_trigger_run(row)

    stale = Trigger.objects.select_related("workflow").get(pk=trigger.pk)
    monkeypatch.setattr(triggers, "_start_trigger_run", start_after_other_sweep)
    assert start_due_runs() == 1
    assert WorkflowRun.objects.count() == 1


def test_a_crash_leaves_no_run_and_keeps_the_due_time(administrator, workflow, monkeypatch):
    trigger = create_schedule(administrator, workflow)
    make_overdue(trigger)
    with monkeypatch.context() as patch:
        patch.setattr(triggers, "_start_trigger_run", lambda row: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            start_due_runs()
    assert start_due_runs() == 1, "the time is still due"


def test_the_error_of_a_run_is_stored_with_its_schedule(administrator, workflow):
    trigger = create_schedule(administrator, workflow)
    make_overdue(trigger)
    assert start_due_runs() == 1
    make_overdue(trigger)
    assert start_due_runs() == 0
    trigger.refresh_from_db()
    assert trigger.last_code == "still_running"
    Session.objects.update(status="done")
    save_workflow(administrator, WorkflowSpec(name="say", enabled=False), workflow)
    make_overdue(trigger)
    assert [start_due_runs(), start_due_runs()] == [0, 0]
    trigger.refresh_from_db()
    assert (trigger.last_code, trigger.next_at > timezone.now()) == ("workflow_disabled", True)
    assert AuditRow.objects.filter(action="trigger_not_run").count() == 2
    assert WorkflowRun.objects.count() == 1


def test_a_reenabled_schedule_runs_no_missed_times(administrator, workflow):
    trigger = create_schedule(administrator, workflow)
    save_trigger(administrator, workflow, TriggerSpec(name="nightly", enabled=False), trigger)
    make_overdue(trigger)
    assert start_due_runs() == 0
    trigger, _ = save_trigger(
        administrator, workflow, TriggerSpec(name="nightly", enabled=True), trigger
    )
    assert trigger.next_at > timezone.now()
    assert start_due_runs() == 0


INVALID = (
    ({"kind": "schedule", "every_s": 600}, "text"),
    ({"kind": "schedule", "inputs": {"text": "x"}}, "every_s"),
    ({"kind": "schedule", "cron": "never", "inputs": {"text": "x"}}, "cron"),
    ({"kind": "schedule", "every_s": 60, "inputs": {"text": "${/body/x}"}}, "inputs"),
    ({"kind": "webhook", "inputs": {"text": "${/inputs/x}"}}, "inputs"),
    ({"kind": "webhook", "inputs": {"text": "x", "more": ["${body}"]}}, "inputs"),
    ({"kind": "webhook", "every_s": 600}, "every_s"),
    ({"kind": "webhook", "per_minute": 0}, "per_minute"),
    ({"kind": "bell"}, "kind"),
    ({}, "kind"),
    ({"kind": "webhook", "name": "a b"}, "name"),
)


def test_an_invalid_trigger_is_refused_and_nothing_is_written(administrator, workflow):
    for fields, field in INVALID:
        with pytest.raises(InvalidInput) as caught:
            save_trigger(administrator, workflow, TriggerSpec(**({"name": "t"} | fields)))
        assert field in caught.value.field, fields
    assert not Trigger.objects.exists()


def test_roles_that_manage_workflows_manage_triggers(acme, administrator, workflow, webhook):
    with pytest.raises(Forbidden):
        create_schedule(factories.create_member(acme, Role.REVIEWER), workflow)
    with pytest.raises(Conflict) as caught:
        save_trigger(administrator, workflow, TriggerSpec(name="alerts", kind="webhook"))
    assert caught.value.code == "name_taken"
    with pytest.raises(InvalidInput):
        save_trigger(
            administrator, workflow, TriggerSpec(name="alerts", kind="schedule"), webhook[0]
        )
    rows = AuditRow.objects.filter(resource_type="trigger").values_list("action", "opened")
    assert [action for action, _ in rows] == ["trigger_created"]
    assert webhook[1] not in str(list(rows))
