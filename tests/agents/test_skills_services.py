"""Skills: versions, attaching to agents, reading and running."""

import json

import pytest

from agents.calls.snapshots import get_snapshot_cache
from agents.llm.result_frames import apply_frame
from agents.models import Agent, Inbox, Session, Skill
from agents.sessions.system_prompt import build_instructions
from agents.skills import SkillSpec, save_skill
from bonobot.accounts.roles import Role
from bonobot.core.problems import InvalidInput, NotFound
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db(transaction=True)

NOTES = {
    "name": "notes",
    "description": "Writes notes",
    "text": "Write notes for ${version}.",
    "arguments": [{"name": "version", "required": True, "description": "Which release"}],
    "agents": ["helper"],
}


@pytest.fixture
def notes(acme, helper):
    return save_skill(factories.build_administrator(acme), SkillSpec(**NOTES))


def test_an_agent_reads_its_attached_skills(acme, helper, call, notes):
    save_skill(factories.build_administrator(acme), SkillSpec(name="other", text="Not given."))
    assert call("list_skills").text == "notes(version): Writes notes"
    result = call("read_skill", {"name": "notes"})
    assert result.text.startswith("Write notes for ${version}.")
    assert "- ${version}: Which release" in result.text
    assert result.instructs, "skills of the organization are instructions"
    assert call("read_skill", {"name": "other"}).code == "unknown_skill"
    assert not call("read_skill", {"name": "other"}).instructs
    prompt = build_instructions("", get_snapshot_cache().load_current("agent", helper.pk), [])
    assert "- notes: Writes notes" in prompt
    assert apply_frame(result.text, None) == result.text


def test_the_audit_log_names_the_agents_that_a_skill_was_attached_to(acme, notes):
    entry = AuditRow.objects.get(action="skill_created")
    assert json.loads(entry.opened)["details"]["agents"] == ["helper"]


def test_a_change_applies_to_the_next_call(acme, helper, call, notes):
    assert "notes" in call("list_skills").text
    save_skill(factories.build_administrator(acme), SkillSpec(name="notes", enabled=False), notes)
    with pytest.raises(NotFound) as caught:
        call("list_skills")
    assert caught.value.code == "unknown_tool"
    assert "## Skills" not in build_instructions(
        "", get_snapshot_cache().load_current("agent", helper.pk), []
    )


def test_the_policy_decides_whether_an_agent_can_read_skills(acme, helper, notes):
    administrator = factories.build_administrator(acme)
    factories.set_policy(
        administrator, helper, factories.PolicySpec("denylist", deny=("read_skill",))
    )
    assert "## Skills" not in build_instructions(
        "", get_snapshot_cache().load_current("agent", helper.pk), []
    )


def test_the_text_is_versioned_and_the_agents_arent(acme, helper, notes):
    administrator = factories.build_administrator(acme)
    first = notes.digest
    changed = save_skill(administrator, SkillSpec(name="notes", text="Notes: ${version}"), notes)
    assert (changed.version, changed.digest != first) == (2, True)
    unchanged = save_skill(
        administrator, SkillSpec(name="notes", agents=[], enabled=False), changed
    )
    assert (unchanged.version, unchanged.digest) == (2, changed.digest)
    assert [version.payload["text"] for version in unchanged.versions.all()] == [
        "Notes: ${version}",
        "Write notes for ${version}.",
    ]
    row = AuditRow.objects.filter(action="skill_updated").order_by("seq").first()
    assert json.loads(row.opened)["details"]["changed"] == ["text"]


def test_an_invalid_skill_writes_nothing(acme, helper):
    administrator = factories.build_administrator(acme)
    for invalid in (
        {"agents": ["nobody"]},
        {"text": "${other}"},
        {"text": " "},
        {"name": "no spaces"},
        {"arguments": [{"name": "A"}]},
    ):
        with pytest.raises((InvalidInput, NotFound)) as caught:
            save_skill(administrator, SkillSpec(**(NOTES | invalid)))
        assert caught.value.field
    assert not Skill.objects.exists()


def test_members_can_use_the_skills_of_their_agents(acme, helper, notes):
    administrator = factories.build_administrator(acme)
    save_skill(administrator, SkillSpec(name="hidden", text="x"))
    member = factories.create_member(acme, Role.MEMBER)
    usable = Skill.objects.usable_by(member)
    assert not usable.exists()
    helper.members.add(member.id)
    assert [skill.name for skill in usable.all()] == ["notes"]
    client = rest.as_role(acme, Role.MEMBER, helper)
    assert [item["name"] for item in client.get("skills").json["results"]] == ["notes"]
    assert client.get("skills/hidden").status == 404


def test_rest_creates_renders_and_runs_a_skill(acme, helper):
    operator = rest.as_role(acme, Role.OPERATOR)
    created = operator.post("skills", NOTES)
    assert (created.status, created.json["version"], created.json["agents"]) == (201, 1, ["helper"])
    assert operator.post("skills", NOTES).code == "name_taken"
    values = {"arguments": {"version": "1.4"}}
    assert operator.post("skills/notes/render", values).json["text"] == "Write notes for 1.4."
    invalid = operator.post("skills/notes/run", {"agent": "helper"})
    assert (invalid.code, invalid.json["field"]) == ("missing_argument", "arguments.version")
    assert operator.post("skills/notes/run", {"agent": "nobody", **values}).status == 404
    factories.create_agent(acme, "other")
    refused = operator.post("skills/notes/run", {"agent": "other", **values})
    assert refused.code == "skill_not_attached"
    run = operator.post("skills/notes/run", {"agent": "helper", **values})
    assert run.status == 201
    assert Inbox.objects.get().payload["text"] == "Write notes for 1.4."
    operator.patch("skills/notes", {"text": "Other ${version}"})
    versions = operator.get("skills/notes/versions").json["results"]
    assert [version["number"] for version in versions] == [2, 1]
    assert rest.as_role(acme, Role.AUDITOR).patch("skills/notes", {"text": "x"}).status == 403
    assert operator.delete("skills/notes").status == 204


def test_the_admin_creates_and_runs_a_skill(acme, helper):
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    fields = {
        "name": "notes",
        "text": "For ${version} ${tone}",
        "arguments": 'version!\ntone = dry ["dry", "warm"]: how',
        "agents": ["helper"],
        "enabled": "on",
    }
    page = operator.post("agents_skill_add", **fields)
    skill = Skill.objects.get()
    assert 'value="dry"' in page or "<option selected>dry" in page
    assert "For ${version} ${tone}" in operator.get("agents_skill_edit", skill.pk)
    page = operator.post("agents_skill_edit", skill.pk, **{**fields, "text": "${strange}"})
    assert "but no argument has this name" in page
    page = operator.post("agents_skill_edit", skill.pk, **{**fields, "arguments": "version!\n= x"})
    assert "t a valid argument declaration" in page
    run = {"agent": "helper", "argument-version": "2", "argument-tone": "warm"}
    operator.post("agents_skill_run", skill.pk, **run)
    assert Session.objects.get().title == "For 2 warm"
    assert "notes" in admin_client.get_text(operator.get("agents_skill_changelist"))
    operator.post("agents_skill_delete", skill.pk, post="yes")
    assert not Skill.objects.exists()
    assert Agent.objects.count() == 1
