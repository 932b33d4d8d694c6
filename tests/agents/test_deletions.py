"""Deleted agents, servers, presets, skills, and workflows can be restored for ten minutes."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.core import serializers
from django.db.models import Model
from django.utils import timezone

from agents.budgets.services import BudgetLine, set_budgets
from agents.models import (
    Agent,
    AgentAssignment,
    AgentServer,
    Session,
    ToolRule,
    Workflow,
    WorkflowRun,
)
from agents.policies.services import PolicySpec, set_policy
from agents.services import attach_server, delete_agent, set_agent_members
from agents.skills import SkillSpec, delete_skill, save_skill
from agents.workflows.services import delete_workflow
from bonobot.accounts import deletions
from bonobot.accounts.models import Deletion, Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import Conflict, Forbidden, NotFound
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Definition, HealthCheck, Preset, Secret, Server
from mcp_servers.presets.services import PresetSpec, create_preset, delete_preset
from mcp_servers.services import delete_server
from tests import factories

pytestmark = pytest.mark.django_db

# Tables that tell what happened, not what is configured.
UNCOMPARED = {"ledger", "sessions", "django_celery_beat"}


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


def dump_rows() -> dict[str, Any]:
    """Return all rows of the product, as fixtures would have them; encrypted values as stored."""
    rows = {}
    for model in apps.get_models():
        if model._meta.app_label in UNCOMPARED or model is Deletion:
            continue
        for row in model._base_manager.all():
            rows[f"{model._meta.label} {row.pk}"] = dump_row(row)
    return rows


def dump_row(row: Model) -> Any:
    sealed = {
        field.name: getattr(field.value_from_object(row), "mark", None)
        for field in row._meta.concrete_fields
    }
    return json.loads(serializers.serialize("json", [row]))[0]["fields"], sealed


def create_attached_server(acme: Organization, helper: Agent) -> Server:
    """Create a server with an approved tool and attach it to an agent."""
    server = factories.create_stdio_server(acme)
    Definition.objects.create(
        organization=acme,
        server=server,
        kind="tool",
        name="tell_time",
        payload={"name": "tell_time", "inputSchema": {"type": "object"}},
        digest="d" * 64,
        pinned_digest="d" * 64,
    )
    attach_server(factories.build_administrator(acme), helper, server)
    return server


def create_server_with_rules(acme: Organization, helper: Agent) -> Server:
    """Create a server with a secret, a definition, an attachment, and a deny rule."""
    administrator = factories.build_administrator(acme)
    server = create_attached_server(acme, helper)
    Secret.objects.create(
        organization=acme, server=server, name="API_KEY", value="a-secret-of-the-server"
    )
    set_policy(administrator, helper, PolicySpec("all", deny=["mcp_time_tell_time"]))
    return server


def test_a_restored_server_has_all_it_had_under_the_same_ids(acme: Organization) -> None:
    helper = factories.create_agent(acme)
    server = create_server_with_rules(acme, helper)
    HealthCheck.objects.all().delete()  # observed again, and not restored
    before = dump_rows()
    deletion = delete_server(factories.build_administrator(acme), server)

    assert deletion is not None
    assert not Server.objects.exists()
    assert not ToolRule.objects.exists()
    deletions.restore_deletion(factories.build_administrator(acme), deletion)

    after = dump_rows()
    assert {name for name in before if before[name] != after.get(name)} == set()
    assert after.keys() == before.keys()
    assert Secret.objects.get().value.open() == "a-secret-of-the-server"
    assert Definition.objects.exists()
    assert AgentServer.objects.exists()
    assert ToolRule.objects.get().effect == "deny"


def test_a_restored_agent_has_its_sessions_and_members(acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    helper = factories.create_agent(acme)
    anna = factories.create_member(acme, Role.MEMBER, "anna")
    set_agent_members(administrator, helper, ["anna"])
    set_budgets(administrator, helper, [BudgetLine("calls", "day", 100)])
    create_server_with_rules(acme, helper)
    caller = factories.create_agent(acme, "caller")
    AgentAssignment.objects.create(organization=acme, agent=caller, callable_agent=helper)
    done = Session.objects.create(organization=acme, agent=helper, status="done")
    before = dump_rows()
    deletion = delete_agent(administrator, helper)

    assert deletion is not None
    assert not Agent.objects.filter(pk=helper.pk).exists()
    deletions.restore_deletion(administrator, deletion)

    assert dump_rows() == before
    assert [user.username for user in Agent.objects.get(slug="helper").members.all()] == [
        anna.label
    ]
    assert Session.objects.get() == done
    assert list(AuditRow.objects.order_by("seq").values_list("action", flat=True))[-2:] == [
        "agent_deleted",
        "agent_restored",
    ]


def test_a_session_that_was_not_finished_is_canceled_when_its_agent_is_restored(
    acme: Organization,
) -> None:
    administrator = factories.build_administrator(acme)
    helper = factories.create_agent(acme)
    Session.objects.create(organization=acme, agent=helper, status="queued")
    deletion = delete_agent(administrator, helper)
    assert deletion is not None

    deletions.restore_deletion(administrator, deletion)

    assert Session.objects.get().status == Session.Status.CANCELLED


def test_runs_of_a_restored_workflow_belong_to_it_again(acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    helper = factories.create_agent(acme)
    workflow = factories.create_workflow(helper, hooks=1)
    session = Session.objects.create(organization=acme, agent=helper, status="done")
    WorkflowRun.objects.create(
        organization=acme,
        session=session,
        workflow=workflow,
        version=1,
        definition=workflow.definition,
        name=workflow.name,
    )
    before = dump_rows()
    deletion = delete_workflow(administrator, workflow)

    assert deletion is not None
    assert WorkflowRun.objects.get().workflow is None
    deletions.restore_deletion(administrator, deletion)

    assert dump_rows() == before
    assert WorkflowRun.objects.get().workflow == Workflow.objects.get()


def test_skills_and_presets_can_be_restored(acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    helper = factories.create_agent(acme)
    skill = save_skill(
        administrator, SkillSpec(name="greet", text="Greet people.", agents=[helper.slug])
    )
    preset = create_preset(
        administrator,
        PresetSpec(
            name="Mine",
            transport_type="stdio",
            endpoint_config={"command": "uvx", "args": ["mcp-server-time"]},
        ),
    )
    before = dump_rows()
    kept = [delete_skill(administrator, skill), delete_preset(administrator, preset)]

    assert not Preset.objects.filter(pk=preset.pk).exists()
    for deletion in kept:
        assert deletion is not None
        deletions.restore_deletion(administrator, deletion)

    assert dump_rows() == before


def test_a_deletion_can_be_restored_once_and_for_ten_minutes(acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    first = delete_agent(administrator, factories.create_agent(acme))
    second = delete_agent(administrator, factories.create_agent(acme, "other"))
    assert first is not None
    assert second is not None
    deletions.restore_deletion(administrator, first)
    Deletion.objects.filter(pk=second.pk).update(expires_at=timezone.now() - timedelta(seconds=1))

    for deletion in (first, second):
        with pytest.raises(NotFound) as error:
            deletions.restore_deletion(administrator, deletion)
        assert error.value.code == "not_found"
    assert not deletions.list_deletions(administrator).exists()
    assert deletions.finish_expired_deletions() == 1
    assert not Deletion.objects.exists()


def test_a_taken_name_is_a_conflict_and_restores_nothing(acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    deletion = delete_agent(administrator, factories.create_agent(acme))
    assert deletion is not None
    factories.create_agent(acme)
    before = dump_rows()

    with pytest.raises(Conflict) as error:
        deletions.restore_deletion(administrator, deletion)

    assert error.value.code == "name_taken"
    assert dump_rows() == before
    assert deletions.list_deletions(administrator).get() == deletion


def test_rules_for_a_server_that_is_gone_are_not_restored_as_rules_for_all_servers(
    acme: Organization,
) -> None:
    administrator = factories.build_administrator(acme)
    helper = factories.create_agent(acme)
    server = create_attached_server(acme, helper)
    set_policy(administrator, helper, PolicySpec("none", allow=["mcp_time_tell_time"]))
    deletion = delete_agent(administrator, helper)
    assert deletion is not None
    delete_server(administrator, server)

    deletions.restore_deletion(administrator, deletion)

    assert Agent.objects.get().slug == "helper"
    assert not ToolRule.objects.exists()


def test_an_object_cannot_be_restored_without_what_it_needs(acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    helper = factories.create_agent(acme)
    workflow = factories.create_workflow(helper)
    deletion = delete_workflow(administrator, workflow)
    assert deletion is not None
    delete_agent(administrator, helper)

    with pytest.raises(Conflict) as error:
        deletions.restore_deletion(administrator, deletion)

    assert error.value.code == "conflict"
    assert not Workflow.objects.exists()


def test_only_those_who_may_delete_may_restore(acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    auditor = factories.create_member(acme, Role.AUDITOR)
    stranger = factories.build_administrator(factories.create_organization("other"))
    deletion = delete_agent(administrator, factories.create_agent(acme))
    assert deletion is not None

    with pytest.raises(Forbidden):
        deletions.restore_deletion(auditor, deletion)
    assert not deletions.list_deletions(auditor).exists()
    assert not deletions.list_deletions(stranger).exists()
    assert deletions.list_deletions(administrator).get() == deletion


def test_an_object_with_too_many_rows_is_deleted_without_being_kept(
    acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "MAX_ROWS", 3)
    helper = factories.create_agent(acme)
    for _ in range(4):
        Session.objects.create(organization=acme, agent=helper, status="done")

    assert delete_agent(factories.build_administrator(acme), helper) is None
    assert not Agent.objects.exists()
    assert not Deletion.objects.exists()


def test_the_rows_of_a_deletion_are_encrypted(acme: Organization) -> None:
    helper = factories.create_agent(acme, instructions="Talk about Project Heron.")
    deletion = delete_agent(factories.build_administrator(acme), helper)
    assert deletion is not None
    stored = Deletion.objects.get()
    assert "Heron" in json.dumps(stored.rows.open())
    assert "Heron" not in stored.rows.mark
