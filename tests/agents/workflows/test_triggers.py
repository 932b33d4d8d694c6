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
from agents.workflows import schedules
from agents.workflows.services import WorkflowSpec, save_workflow
from agents.workflows.triggers import TriggerSpec, save_trigger
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
def boss(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def flow(boss, helper):
    return save_workflow(boss, WorkflowSpec(name="say", source=SOURCE))


@pytest.fixture
def hook(boss, flow):
    """A webhook whose inputs are taken out of what is sent, and its secret."""
    spec = TriggerSpec(name="alerts", kind="webhook", inputs=FIRST_ALERT, per_minute=600)
    return save_trigger(boss, flow, spec)


def nightly(boss, flow, **more):
    values = {"kind": "schedule", "every_s": 600, "inputs": {"text": "x"}} | more
    return save_trigger(boss, flow, TriggerSpec(name="nightly", **values))[0]


def overdue(trigger, minutes=61):
    Trigger.objects.filter(pk=trigger.pk).update(
        next_at=timezone.now() - timedelta(minutes=minutes)
    )


def sent(trigger, body, **headers):
    return rest.Rest().post(f"hooks/{trigger.pk}", body, **headers)


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


def signed(secret, body, at=None):
    at = int(time.time() if at is None else at)
    return {TIMESTAMP_HEADER: str(at), SIGNATURE_HEADER: sign_body(secret, at, body)}


def test_a_webhook_starts_a_run_with_inputs_from_its_body(hook, flow):
    trigger, secret = hook
    alert = {"alerts": [{"name": "disk"}], "state": "firing"}
    answer = sent(trigger, alert, **bearer(secret))
    run = WorkflowRun.objects.select_related("session").get()
    assert (answer.status, answer.json["run_id"]) == (201, str(run.pk))
    assert (run.inputs, run.via) == ({"text": "disk is firing"}, "webhook")
    assert (run.trigger, run.session.started_by) == (trigger, "webhook alerts")
    (held,) = list_session_labels(run.session)
    assert str(held.label) == "untrusted_content", "the run knows that others wrote this"
    row = AuditRow.objects.get(action="webhook_received")
    assert (row.outcome, row.session_id, held.call_id) == ("ok", run.session_id, row.pk)
    assert AuditRow.objects.get(action="workflow_started").actor_label == "webhook alerts"
    body = json.dumps({"alerts": [{"name": "net"}]}).encode()
    assert sent(trigger, body, **signed(secret, body)).status == 201
    assert WorkflowRun.objects.first().inputs == {"text": "net is odd"}
    trigger.refresh_from_db()
    assert (trigger.last_code, trigger.last_at is None) == ("", False)


def test_wrong_secrets_unknown_ids_and_old_signatures_get_the_same_response(acme, boss, hook, flow):
    trigger, secret = hook
    body = b'{"alerts": [{"name": "disk"}]}'
    schedule = nightly(boss, flow)
    _, other = save_trigger(boss, flow, TriggerSpec(name="other", kind="webhook"))
    late = time.time() - 400
    tried = [
        sent(trigger, body),
        sent(trigger, body, **bearer("")),
        sent(trigger, body, **bearer(other)),
        sent(trigger, body, **bearer(f"{secret}x")),
        sent(trigger, body, Authorization=f"Basic {secret}"),
        sent(trigger, body + b" ", **signed(secret, body)),
        sent(trigger, body, **signed(other, body)),
        sent(trigger, body, **signed(secret, body, at=late)),
        sent(trigger, body, **signed(secret, body, at=time.time() + 400)),
        sent(trigger, body, **{**signed(secret, body), TIMESTAMP_HEADER: "soon"}),
        sent(schedule, body, **bearer(secret)),
        rest.Rest().post("hooks/0198c0de-0000-7000-8000-000000000000", body, **bearer(secret)),
        rest.Rest().post("hooks/no-id", body, **bearer(secret)),
    ]
    assert {(one.status, one.text) for one in tried} == {(401, tried[0].text)}
    assert tried[0].code == "bad_secret"
    Trigger.objects.filter(pk=trigger.pk).update(secret="")
    assert sent(trigger, body, **bearer("")).status == 401, "without a secret it is closed"
    assert not Session.objects.exists()


def test_a_body_without_valid_inputs_is_refused_and_recorded(boss, hook, flow):
    trigger, secret = hook
    plain, key = save_trigger(boss, flow, TriggerSpec(name="plain", kind="webhook"))
    assert sent(trigger, {"alerts": []}, **bearer(secret)).code == "unresolved_reference"
    assert sent(trigger, b"{", **bearer(secret)).code == "invalid_json"
    assert sent(trigger, b"", **bearer(secret)).code == "invalid_json"
    assert sent(trigger, b"[" + b"1," * 2**17 + b"1]", **bearer(secret)).status == 413
    assert sent(plain, ["x"], **bearer(key)).json["field"] == "body"
    assert sent(plain, {"text": 1}, **bearer(key)).code == "invalid_arguments"
    plain.refresh_from_db()
    assert plain.last_code == "invalid_arguments"
    codes = set(AuditRow.objects.filter(action="webhook_received").values_list("code", "outcome"))
    assert codes == {
        ("unresolved_reference", "error"),
        ("invalid", "error"),
        ("invalid_arguments", "error"),
    }
    assert sent(plain, {"text": "x"}, **bearer(key)).status == 201
    save_trigger(boss, flow, TriggerSpec(name="plain", enabled=False), plain)
    assert sent(plain, {"text": "x"}, **bearer(key)).code == "trigger_disabled"
    update_agent(boss, flow.agent, AgentSpec(name=flow.agent.name, enabled=False))
    refused = sent(trigger, {"alerts": [{"name": "x"}]}, **bearer(secret))
    assert (refused.status, refused.code) == (409, "agent_disabled")
    assert WorkflowRun.objects.count() == 1


def test_a_repeated_delivery_starts_nothing(hook):
    trigger, secret = hook
    body = {"alerts": [{"name": "disk"}]}
    headers = {**bearer(secret), "Idempotency-Key": "delivery-1"}
    first, again = sent(trigger, body, **headers), sent(trigger, body, **headers)
    assert (first.status, again.status) == (201, 200)
    assert first.json["run_id"] == again.json["run_id"]
    headers["Idempotency-Key"] = "delivery-2"

    def one(_number):
        try:
            return sent(trigger, body, **headers)
        finally:
            connections.close_all()

    if connection.vendor == "sqlite":
        several = [one(number) for number in range(3)]
    else:
        with ThreadPoolExecutor(4) as pool:
            several = list(pool.map(one, range(4)))
    assert len({answer.json["run_id"] for answer in several}) == 1
    assert sorted(answer.status for answer in several)[-1] == 201
    assert WorkflowRun.objects.count() == Session.objects.count() == 2
    wrong = {**bearer(secret), "Idempotency-Key": "x" * 256}
    assert sent(trigger, body, **wrong).code == "bad_idempotency_key"


@pytest.mark.parametrize("key", ["", "another"])
def test_a_replayed_signed_delivery_starts_nothing(hook, key):
    trigger, secret = hook
    body = {"alerts": [{"name": "disk"}]}
    headers = signed(secret, json.dumps(body).encode())
    first = sent(trigger, body, **headers)
    again = sent(trigger, body, **headers, **({"Idempotency-Key": key} if key else {}))
    assert first.status == 201
    if key:  # the id isn't signed: whoever recorded the delivery can choose another one
        assert (again.status, again.code) == (409, "delivery_replayed")
    else:
        assert (again.status, again.json["run_id"]) == (200, first.json["run_id"])
    assert WorkflowRun.objects.count() == 1


def test_a_signed_delivery_that_started_nothing_can_be_resent(hook):
    trigger, secret = hook
    body = {"alerts": [{"name": "disk"}]}
    headers = signed(secret, json.dumps(body).encode())
    Trigger.objects.update(enabled=False)
    assert sent(trigger, body, **headers).code == "trigger_disabled"
    Trigger.objects.update(enabled=True)
    assert sent(trigger, body, **headers).status == 201


def test_a_webhook_is_rate_limited(boss, flow):
    trigger, key = save_trigger(boss, flow, TriggerSpec(name="a", kind="webhook", per_minute=2))
    answers = [sent(trigger, {"text": "x"}, **bearer(key)) for _ in range(4)]
    assert [one.status for one in answers] == [201, 201, 429, 429]
    assert answers[-1].code == "rate_limited"
    assert int(answers[-1].headers["Retry-After"]) > 1
    assert WorkflowRun.objects.count() == 2
    refused = AuditRow.objects.get(action="webhook_received", outcome="refused")
    assert (refused.code, refused.resource_name) == ("rate_limited", "a"), "a flood is one row"


def test_a_due_schedule_runs_once_after_missed_times(boss, flow):
    trigger = nightly(boss, flow)
    assert schedules.start_due_runs() == 0, "its first time is still to come"
    overdue(trigger)
    before = timezone.now()
    assert [schedules.start_due_runs() for _ in range(3)] == [1, 0, 0]
    run = WorkflowRun.objects.select_related("session").get()
    assert (run.via, run.inputs, run.session.started_by) == (
        "schedule",
        {"text": "x"},
        "schedule nightly",
    )
    trigger.refresh_from_db()
    assert before < trigger.next_at <= before + timedelta(minutes=11)
    assert trigger.last_code == ""


def test_two_concurrent_sweeps_start_one_run(boss, flow, monkeypatch):
    trigger = nightly(boss, flow)
    overdue(trigger)
    begin = schedules._start_trigger_run

    def meanwhile(one):
        # The other sweep read the same row before this one moved its time on.
        assert schedules._claim_trigger(stale, timezone.now()) is False
        return begin(one)

    stale = Trigger.objects.select_related("workflow").get(pk=trigger.pk)
    monkeypatch.setattr(schedules, "_start_trigger_run", meanwhile)
    assert schedules.start_due_runs() == 1
    assert WorkflowRun.objects.count() == 1


def test_a_crash_leaves_neither_a_run_nor_a_new_time(boss, flow, monkeypatch):
    trigger = nightly(boss, flow)
    overdue(trigger)
    with monkeypatch.context() as broken:
        broken.setattr(
            schedules, "_start_trigger_run", lambda one: (_ for _ in ()).throw(SystemExit)
        )
        with pytest.raises(SystemExit):
            schedules.start_due_runs()
    assert schedules.start_due_runs() == 1, "the time is still due"


def test_the_error_of_a_run_is_stored_with_its_schedule(boss, flow):
    trigger = nightly(boss, flow)
    overdue(trigger)
    assert schedules.start_due_runs() == 1
    overdue(trigger)
    assert schedules.start_due_runs() == 0
    trigger.refresh_from_db()
    assert trigger.last_code == "still_running"
    Session.objects.update(status="done")
    save_workflow(boss, WorkflowSpec(name="say", enabled=False), flow)
    overdue(trigger)
    assert [schedules.start_due_runs(), schedules.start_due_runs()] == [0, 0]
    trigger.refresh_from_db()
    assert (trigger.last_code, trigger.next_at > timezone.now()) == ("workflow_disabled", True)
    assert AuditRow.objects.filter(action="trigger_not_run").count() == 2
    assert WorkflowRun.objects.count() == 1


def test_a_reenabled_schedule_runs_no_missed_times(boss, flow):
    trigger = nightly(boss, flow)
    save_trigger(boss, flow, TriggerSpec(name="nightly", enabled=False), trigger)
    overdue(trigger)
    assert schedules.start_due_runs() == 0
    trigger, _ = save_trigger(boss, flow, TriggerSpec(name="nightly", enabled=True), trigger)
    assert trigger.next_at > timezone.now()
    assert schedules.start_due_runs() == 0


WRONG = (
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


def test_an_invalid_trigger_is_refused_and_nothing_is_written(boss, flow):
    for values, field in WRONG:
        with pytest.raises(InvalidInput) as refused:
            save_trigger(boss, flow, TriggerSpec(**({"name": "t"} | values)))
        assert field in refused.value.field, values
    assert not Trigger.objects.exists()


def test_roles_that_manage_workflows_manage_triggers(acme, boss, flow, hook):
    with pytest.raises(Forbidden):
        nightly(factories.create_member(acme, Role.REVIEWER), flow)
    with pytest.raises(Conflict) as taken:
        save_trigger(boss, flow, TriggerSpec(name="alerts", kind="webhook"))
    assert taken.value.code == "name_taken"
    with pytest.raises(InvalidInput):
        save_trigger(boss, flow, TriggerSpec(name="alerts", kind="schedule"), hook[0])
    rows = AuditRow.objects.filter(resource_type="trigger").values_list("action", "opened")
    assert [action for action, _ in rows] == ["trigger_added"]
    assert hook[1] not in str(list(rows))
