"""Triggers for people and programs: REST and the admin."""

import re

import pytest

from agents.models import Trigger, WorkflowRun
from agents.workflows.services import WorkflowSpec, save_workflow
from bonobot.accounts.roles import Role
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db(transaction=True)

SOURCE = "agent: helper\nsteps: [{id: say, call: search_notes, arguments: {query: x}}]\n"
SECRET = re.compile(r"whs_[-\w]{43}")


@pytest.fixture
def flow(acme, helper):
    return save_workflow(
        factories.build_administrator(acme), WorkflowSpec(name="say", source=SOURCE)
    )


def test_rest_manages_triggers_and_shows_a_secret_once(acme, flow):
    operator = rest.as_role(acme, Role.OPERATOR)
    made = operator.post("workflows/say/triggers", {"name": "alerts", "kind": "webhook"})
    assert (made.status, made.headers["Cache-Control"]) == (201, "no-store")
    secret, address = made.json["hook_secret"], made.json["url"]
    assert SECRET.fullmatch(secret)
    stranger = rest.Rest()
    path = address.partition("/api/")[2]
    assert stranger.post(path, {}, Authorization=f"Bearer {secret}").status == 201
    (listed,) = operator.get("workflows/say/triggers").json["results"]
    assert (listed["last_status"], listed["has_secret"]) == ("queued", True)
    assert listed["last_run_id"] == str(WorkflowRun.objects.get().pk)
    assert secret not in str(listed)
    new = operator.post("workflows/say/triggers/alerts/secret").json["hook_secret"]
    assert stranger.post(path, {}, Authorization=f"Bearer {secret}").status == 401
    assert stranger.post(path, {}, Authorization=f"Bearer {new}").status == 201
    nightly = {"name": "nightly", "kind": "schedule", "cron": "0 3  * * *", "inputs": {}}
    shown = operator.post("workflows/say/triggers", nightly).json
    assert (shown["cron"], shown["hook_secret"], shown["url"]) == ("0 3 * * *", "", "")
    changed = operator.patch("workflows/say/triggers/nightly", {"every_s": 3600})
    assert (changed.json["every_s"], changed.json["cron"]) == (3600, "")
    wrong = operator.patch("workflows/say/triggers/nightly", {"cron": "0 3 * *"})
    assert (wrong.status, wrong.json["field"]) == (400, "cron")
    assert operator.post("workflows/say/triggers/nightly/secret").status == 400
    assert operator.delete("workflows/say/triggers/nightly").status == 204
    assert operator.get("workflows/say/triggers/nightly").status == 404
    auditor = rest.as_role(acme, Role.AUDITOR)
    assert auditor.get("workflows/say/triggers/alerts").status == 200
    assert auditor.post("workflows/say/triggers/alerts/secret").status == 403
    assert operator.delete("workflows/say/triggers/alerts").status == 204
    assert stranger.post(path, {}, Authorization=f"Bearer {new}").status == 401
    assert WorkflowRun.objects.count() == 2, "what it started stays"


def test_the_admin_manages_triggers(acme, flow):
    seat = admin_client.sit(acme, Role.OWNER)
    assert "A schedule starts the workflow" in seat.get("agents_workflow_triggers", flow.pk)
    fields = {"name": "nightly", "kind": "schedule", "time_zone": "UTC", "per_minute": 10}
    fields |= {"inputs": "{}", "enabled": "on"}
    page = seat.post("agents_workflow_triggers", flow.pk, **fields)
    assert "interval or a cron expression" in admin_client.words(page)
    page = seat.post("agents_workflow_triggers", flow.pk, **fields, cron="0 3 * * *")
    assert "0 3 * * *" in page
    trigger = Trigger.objects.get()
    where = f"{admin_client.url('agents_workflow_triggers', flow.pk)}?trigger={trigger.pk}"
    assert 'value="0 3 * * *"' in seat.open(where)
    page = seat.send(where, {**fields, "every_s": 600})
    assert "every 600 s" in admin_client.words(page)
    seat.post("agents_workflow_switch_trigger", flow.pk, trigger=trigger.pk, enabled="0")
    trigger.refresh_from_db()
    assert not trigger.enabled
    hook = {**fields, "name": "alerts", "kind": "webhook", "inputs": '{"x": "${/body/y}"}'}
    made = SECRET.search(seat.post("agents_workflow_triggers", flow.pk, **hook))
    alerts = Trigger.objects.get(name="alerts")
    assert made
    assert made[0] == alerts.secret.open()
    page = seat.get("agents_workflow_triggers", flow.pk)
    assert str(alerts.pk) in page
    assert not SECRET.search(page)
    page = seat.post("agents_workflow_replace_secret", flow.pk, trigger=alerts.pk)
    found = SECRET.search(page)
    assert found
    assert found[0] != made[0]
    wrong = seat.post("agents_workflow_triggers", flow.pk, **{**hook, "inputs": "[1]"})
    assert "Enter a JSON object" in admin_client.words(wrong)
    for one in (trigger, alerts):
        seat.post("agents_workflow_remove_trigger", flow.pk, trigger=one.pk)
    assert not Trigger.objects.exists()
    reader = admin_client.sit(acme, Role.AUDITOR)
    assert "Create trigger" not in reader.get("agents_workflow_triggers", flow.pk)
    reader.post("agents_workflow_triggers", flow.pk, status=403, **hook)
