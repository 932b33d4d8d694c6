"""Triggers in REST and the admin."""

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
def workflow(acme, helper):
    return save_workflow(
        factories.build_administrator(acme), WorkflowSpec(name="say", source=SOURCE)
    )


def test_rest_manages_triggers_and_shows_a_secret_once(acme, workflow):
    operator = rest.as_role(acme, Role.OPERATOR)
    created = operator.post("workflows/say/triggers", {"name": "alerts", "kind": "webhook"})
    assert (created.status, created.headers["Cache-Control"]) == (201, "no-store")
    secret, url = created.json["hook_secret"], created.json["url"]
    assert SECRET.fullmatch(secret)
    anonymous = rest.RestClient()
    path = url.partition("/api/")[2]
    assert anonymous.post(path, {}, Authorization=f"Bearer {secret}").status == 201
    (listed,) = operator.get("workflows/say/triggers").json["results"]
    assert (listed["last_status"], listed["has_secret"]) == ("queued", True)
    assert listed["last_run_id"] == str(WorkflowRun.objects.get().pk)
    assert secret not in str(listed)
    new = operator.post("workflows/say/triggers/alerts/secret").json["hook_secret"]
    assert anonymous.post(path, {}, Authorization=f"Bearer {secret}").status == 401
    assert anonymous.post(path, {}, Authorization=f"Bearer {new}").status == 201
    nightly = {"name": "nightly", "kind": "schedule", "cron": "0 3  * * *", "inputs": {}}
    schedule = operator.post("workflows/say/triggers", nightly).json
    assert (schedule["cron"], schedule["hook_secret"], schedule["url"]) == ("0 3 * * *", "", "")
    changed = operator.patch("workflows/say/triggers/nightly", {"every_s": 3600})
    assert (changed.json["every_s"], changed.json["cron"]) == (3600, "")
    invalid = operator.patch("workflows/say/triggers/nightly", {"cron": "0 3 * *"})
    assert (invalid.status, invalid.json["field"]) == (400, "cron")
    assert operator.post("workflows/say/triggers/nightly/secret").status == 400
    assert operator.delete("workflows/say/triggers/nightly").status == 204
    assert operator.get("workflows/say/triggers/nightly").status == 404
    auditor = rest.as_role(acme, Role.AUDITOR)
    assert auditor.get("workflows/say/triggers/alerts").status == 200
    assert auditor.post("workflows/say/triggers/alerts/secret").status == 403
    assert operator.delete("workflows/say/triggers/alerts").status == 204
    assert anonymous.post(path, {}, Authorization=f"Bearer {new}").status == 401
    assert WorkflowRun.objects.count() == 2, "runs of a deleted trigger are kept"


def test_the_admin_manages_triggers(acme, workflow):
    owner = admin_client.sign_in(acme, Role.OWNER)
    assert "A schedule starts the workflow" in owner.get("agents_workflow_triggers", workflow.pk)
    fields = {"name": "nightly", "kind": "schedule", "time_zone": "UTC", "per_minute": 10}
    fields |= {"inputs": "{}", "enabled": "on"}
    page = owner.post("agents_workflow_triggers", workflow.pk, **fields)
    assert "interval or a cron expression" in admin_client.get_text(page)
    page = owner.post("agents_workflow_triggers", workflow.pk, **fields, cron="0 3 * * *")
    assert "0 3 * * *" in page
    trigger = Trigger.objects.get()
    url = f"{admin_client.build_url('agents_workflow_triggers', workflow.pk)}?trigger={trigger.pk}"
    assert 'value="0 3 * * *"' in owner.open(url)
    page = owner.send(url, {**fields, "every_s": 600})
    assert "every 600 s" in admin_client.get_text(page)
    owner.post("agents_workflow_toggle_trigger", workflow.pk, trigger=trigger.pk, enabled="0")
    trigger.refresh_from_db()
    assert not trigger.enabled
    hook = {**fields, "name": "alerts", "kind": "webhook", "inputs": '{"x": "${/body/y}"}'}
    secret = SECRET.search(owner.post("agents_workflow_triggers", workflow.pk, **hook))
    alerts = Trigger.objects.get(name="alerts")
    assert secret
    assert secret[0] == alerts.secret.open()
    page = owner.get("agents_workflow_triggers", workflow.pk)
    assert str(alerts.pk) in page
    assert not SECRET.search(page)
    page = owner.post("agents_workflow_replace_secret", workflow.pk, trigger=alerts.pk)
    new_secret = SECRET.search(page)
    assert new_secret
    assert new_secret[0] != secret[0]
    rejected = owner.post("agents_workflow_triggers", workflow.pk, **{**hook, "inputs": "[1]"})
    assert "Enter a JSON object" in admin_client.get_text(rejected)
    for row in (trigger, alerts):
        owner.post("agents_workflow_remove_trigger", workflow.pk, trigger=row.pk)
    assert not Trigger.objects.exists()
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    assert "Create trigger" not in auditor.get("agents_workflow_triggers", workflow.pk)
    auditor.post("agents_workflow_triggers", workflow.pk, status=403, **hook)
