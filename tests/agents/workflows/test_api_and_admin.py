"""Workflows in REST and the admin."""

import pytest
from django.utils.translation import override

from agents.models import Session, Workflow, WorkflowRun
from bonobot.accounts.roles import Role
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db(transaction=True)

SOURCE = """\
agent: helper
description: Says it
inputs: {type: object, properties: {text: {type: string}}, required: [text]}
steps: [{id: say, call: search_notes, arguments: {query: "${/inputs/text}"}}]
outputs: {said: "${/steps/say/text}"}
"""


def test_rest_creates_runs_and_returns_a_workflow(acme, helper):
    operator = rest.as_role(acme, Role.OPERATOR)
    created = operator.post("workflows", {"name": "say", "source": SOURCE, "agents": ["helper"]})
    assert (created.status, created.json["agent"], created.json["state"]) == (
        201,
        "helper",
        "pending",
    )
    invalid = operator.post("workflows", {"name": "b", "source": SOURCE.replace("call:", "cal:")})
    assert (invalid.status, invalid.json["field"]) == (400, "steps[0].cal")
    invalid = operator.post(
        "workflows", {"name": "b", "source": SOURCE.replace("helper", "nobody")}
    )
    assert (invalid.status, invalid.json["field"]) == (404, "agent")
    assert operator.post("workflows/say/runs", {"inputs": {"text": 1}}).code == "invalid_arguments"
    run = operator.post("workflows/say/runs", {"inputs": {"text": "x"}})
    assert (run.status, run.json["session"]["status"]) == (201, "queued")
    assert [item["state"] for item in run.json["steps"]] == ["waiting"]
    path = f"workflow-runs/{run.json['id']}"
    assert operator.post(f"{path}/cancel").json["session"]["status"] == "cancelled"
    listed = operator.get("workflows/say/runs?status=cancelled").json["results"]
    assert [item["id"] for item in listed] == [run.json["id"]]
    reviewer = rest.as_role(acme, Role.REVIEWER)
    stale = reviewer.post("workflows/say/approve", {"digest": "other"})
    assert stale.code == "definition_changed"
    digest = {"digest": created.json["digest"]}
    assert reviewer.post("workflows/say/approve", digest).json["state"] == "approved"
    assert operator.post("workflows/say/approve", digest).status == 403
    changed = operator.patch("workflows/say", {"source": SOURCE.replace("Says", "Said")})
    assert (changed.json["version"], changed.json["state"]) == (2, "changed")
    assert len(operator.get("workflows/say/versions").json["results"]) == 2
    assert operator.delete("workflows/say").status == 204
    assert operator.get(path).json["workflow"] == "say", "runs are kept"


def test_members_can_run_workflows_of_their_agents(acme, helper):
    operator = rest.as_role(acme, Role.OPERATOR)
    operator.post("workflows", {"name": "say", "source": SOURCE})
    member = rest.as_role(acme, Role.MEMBER, helper)
    assert member.post("workflows/say/runs", {"inputs": {"text": "x"}}).status == 201
    other_rest = rest.as_role(acme, Role.MEMBER, factories.create_agent(acme, "other"))
    assert other_rest.get("workflows/say").status == 404
    assert other_rest.get("workflows").json["results"] == []
    run = WorkflowRun.objects.get()
    assert other_rest.get(f"workflow-runs/{run.pk}").status == 404


def test_the_admin_creates_and_shows_a_workflow_run(acme, helper):
    owner = admin_client.sign_in(acme, Role.OWNER)
    assert "agent: helper" in owner.get("agents_workflow_add")
    fields = {"name": "say", "source": SOURCE, "agents": ["helper"], "enabled": "on"}
    page = owner.post("agents_workflow_add", **{**fields, "source": SOURCE.replace("id:", "ID:")})
    assert "See the field steps[0].ID" in admin_client.get_text(page)
    page = admin_client.get_text(owner.post("agents_workflow_add", **fields))
    assert "No runs yet." in page
    workflow = Workflow.objects.get()
    page = owner.post("agents_workflow_start", workflow.pk, inputs='{"text": "x"}')
    run = WorkflowRun.objects.get()
    assert "say" in page
    page = admin_client.get_text(owner.get("agents_workflow_run", workflow.pk, run=run.pk))
    assert "Steps" in page
    owner.post("agents_workflow_cancel", workflow.pk, run=run.pk)
    owner.post("agents_workflow_edit", workflow.pk, **{**fields, "source": SOURCE + "max_run_s: 5"})
    workflow.refresh_from_db()
    assert workflow.version == 2
    owner.post("agents_workflow_approve", workflow.pk, digest=workflow.digest)
    workflow.refresh_from_db()
    assert workflow.state == "approved"
    assert "say" in admin_client.get_text(owner.get("agents_workflow_changelist"))
    owner.post("agents_workflow_delete", workflow.pk, post="yes")
    assert not Workflow.objects.exists()
    assert Session.objects.count() == 1


@pytest.mark.parametrize(
    ("via", "kind", "started_by", "language", "starter"),
    [
        ("person", "user", "ann", "en", "ann"),
        ("person", "cli", "cli:root", "en", "root"),
        ("agent", "user", "ann", "en", "ann"),
        ("schedule", "system", "schedule nightly", "en", "Schedule: nightly"),
        ("schedule", "system", "schedule nightly", "de", "Zeitplan: nightly"),
        ("webhook", "system", "webhook alerts", "de", "Webhook: alerts"),
    ],
)
def test_a_run_names_who_started_it(
    via: str, kind: str, started_by: str, language: str, starter: str
) -> None:
    session = Session(started_by_kind=kind, started_by_id="1", started_by=started_by)
    with override(language):
        assert WorkflowRun(session=session, via=via).starter == starter


def test_skills_and_workflows_say_whether_they_are_enabled(acme, helper):
    owner = admin_client.sign_in(acme, Role.OWNER)
    fields = {"name": "say", "source": SOURCE, "agents": ["helper"]}
    owner.post("agents_workflow_add", **fields)
    page = admin_client.get_text(owner.get("agents_workflow_changelist"))
    assert "do_not_disturb_on disabled" in page
    owner.post("agents_skill_add", name="greet", text="Hello", agents=["helper"], enabled="on")
    page = admin_client.get_text(owner.get("agents_skill_changelist"))
    assert f"{helper.name} 1 check_circle enabled" in page
