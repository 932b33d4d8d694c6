"""Skills: versioned, given to agents, read by them, run by people."""

import json

import pytest

from agents.calls.snapshots import get_snapshot_cache
from agents.llm.messages import apply_frame
from agents.models import Agent, Inbox, Session, Skill
from agents.sessions.system_prompt import build_instructions
from agents.skills.services import SkillSpec, save_skill
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
    read = call("read_skill", {"name": "notes"})
    assert read.text.startswith("Write notes for ${version}.")
    assert "- ${version}: Which release" in read.text
    assert read.instructs, "our own people's words are no data from outside"
    assert call("read_skill", {"name": "other"}).code == "unknown_skill"
    assert not call("read_skill", {"name": "other"}).instructs
    prompt = build_instructions("", get_snapshot_cache().load_current("agent", helper.pk), [])
    assert "- notes: Writes notes" in prompt
    assert apply_frame(read.text, None) == read.text


def test_a_change_applies_to_the_next_call(acme, helper, call, notes):
    assert "notes" in call("list_skills").text
    save_skill(factories.build_administrator(acme), SkillSpec(name="notes", enabled=False), notes)
    with pytest.raises(NotFound) as gone:
        call("list_skills")
    assert gone.value.code == "unknown_tool"
    assert "## Skills" not in build_instructions(
        "", get_snapshot_cache().load_current("agent", helper.pk), []
    )


def test_the_policy_decides_whether_an_agent_can_read_skills(acme, helper, notes):
    boss = factories.build_administrator(acme)
    factories.set_policy(boss, helper, factories.PolicySpec("denylist", deny=("read_skill",)))
    assert "## Skills" not in build_instructions(
        "", get_snapshot_cache().load_current("agent", helper.pk), []
    )


def test_the_text_is_versioned_and_the_agents_arent(acme, helper, notes):
    boss = factories.build_administrator(acme)
    first = notes.digest
    changed = save_skill(boss, SkillSpec(name="notes", text="Notes: ${version}"), notes)
    assert (changed.version, changed.digest != first) == (2, True)
    same = save_skill(boss, SkillSpec(name="notes", agents=[], enabled=False), changed)
    assert (same.version, same.digest) == (2, changed.digest)
    assert [one.payload["text"] for one in same.versions.all()] == [
        "Notes: ${version}",
        "Write notes for ${version}.",
    ]
    row = AuditRow.objects.filter(action="skill_changed").order_by("seq").first()
    assert json.loads(row.opened)["details"]["changed"] == ["text"]


def test_an_invalid_skill_writes_nothing(acme, helper):
    boss = factories.build_administrator(acme)
    for wrong in (
        {"agents": ["nobody"]},
        {"text": "${other}"},
        {"text": " "},
        {"name": "no spaces"},
        {"arguments": [{"name": "A"}]},
    ):
        with pytest.raises((InvalidInput, NotFound)) as refused:
            save_skill(boss, SkillSpec(**(NOTES | wrong)))
        assert refused.value.field
    assert not Skill.objects.exists()


def test_members_can_use_the_skills_of_their_agents(acme, helper, notes):
    boss = factories.build_administrator(acme)
    save_skill(boss, SkillSpec(name="hidden", text="x"))
    member = factories.create_member(acme, Role.MEMBER)
    usable = Skill.objects.usable_by(member)
    assert not usable.exists()
    helper.members.add(member.id)
    assert [skill.name for skill in usable.all()] == ["notes"]
    narrowed = rest.as_role(acme, Role.MEMBER, helper)
    assert [one["name"] for one in narrowed.get("skills").json["results"]] == ["notes"]
    assert narrowed.get("skills/hidden").status == 404


def test_rest_creates_renders_and_runs_a_skill(acme, helper):
    operator = rest.as_role(acme, Role.OPERATOR)
    made = operator.post("skills", NOTES)
    assert (made.status, made.json["version"], made.json["agents"]) == (201, 1, ["helper"])
    assert operator.post("skills", NOTES).code == "name_taken"
    values = {"arguments": {"version": "1.4"}}
    assert operator.post("skills/notes/render", values).json["text"] == "Write notes for 1.4."
    wrong = operator.post("skills/notes/run", {"agent": "helper"})
    assert (wrong.code, wrong.json["field"]) == ("missing_argument", "arguments.version")
    assert operator.post("skills/notes/run", {"agent": "nobody", **values}).status == 404
    factories.create_agent(acme, "other")
    refused = operator.post("skills/notes/run", {"agent": "other", **values})
    assert refused.code == "skill_not_given"
    started = operator.post("skills/notes/run", {"agent": "helper", **values})
    assert started.status == 201
    assert Inbox.objects.get().payload["text"] == "Write notes for 1.4."
    operator.patch("skills/notes", {"text": "Other ${version}"})
    versions = operator.get("skills/notes/versions").json["results"]
    assert [one["number"] for one in versions] == [2, 1]
    assert rest.as_role(acme, Role.AUDITOR).patch("skills/notes", {"text": "x"}).status == 403
    assert operator.delete("skills/notes").status == 204


def test_the_admin_creates_and_runs_a_skill(acme, helper):
    seat = admin_client.sit(acme, Role.OPERATOR)
    fields = {
        "name": "notes",
        "text": "For ${version} ${tone}",
        "arguments": 'version!\ntone = dry ["dry", "warm"]: how',
        "agents": ["helper"],
        "enabled": "on",
    }
    page = seat.post("agents_skill_add", **fields)
    skill = Skill.objects.get()
    assert 'value="dry"' in page or "<option selected>dry" in page
    assert "For ${version} ${tone}" in seat.get("agents_skill_write", skill.pk)
    page = seat.post("agents_skill_write", skill.pk, **{**fields, "text": "${strange}"})
    assert "but no argument has this name" in page
    page = seat.post("agents_skill_write", skill.pk, **{**fields, "arguments": "version!\n= x"})
    assert "t a valid argument declaration" in page
    run = {"agent": "helper", "argument-version": "2", "argument-tone": "warm"}
    seat.post("agents_skill_run", skill.pk, **run)
    assert Session.objects.get().title == "For 2 warm"
    assert "notes" in admin_client.words(seat.get("agents_skill_changelist"))
    seat.post("agents_skill_delete", skill.pk, post="yes")
    assert not Skill.objects.exists()
    assert Agent.objects.count() == 1
