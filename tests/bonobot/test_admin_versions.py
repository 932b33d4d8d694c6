"""No form of the admin reverts a concurrent change: people with two tabs.

`test_admin_pages.py` posts every form with an outdated version.
"""

import re
from html import unescape
from typing import Any

import pytest
from django.core import signing

from agents.models import Agent, ToolRule
from agents.policies.services import PolicySpec, load_policy_spec, set_policy
from agents.skills import SkillSpec, save_skill
from bonobot.accounts.admin_base.form_conflicts import (
    Difference,
    FormConflict,
    describe_conflict,
    render_field_conflicts,
)
from bonobot.accounts.admin_base.form_versions import (
    VERSION_FIELD,
    VERSION_SALT,
    Control,
    Form,
    parse_forms,
)
from bonobot.accounts.models import Membership, Organization
from bonobot.accounts.roles import Role
from bonobot.core.db.object_version import compute_version
from bonobot.core.text.masked_values import MASK
from tests import admin_client, factories, rest

TOKEN = re.compile(rf'<input type="hidden" name="{VERSION_FIELD}" value="([^"]*)">')
HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)"(?: value="([^"]*)")?')


def read_fields(page: str, form: Form) -> dict[str, Any]:
    """Return what a browser posts for an unchanged form."""
    end = page.index("</form>", form.insert_at)
    hidden = {name: unescape(value) for name, value in HIDDEN.findall(page[form.insert_at : end])}
    return hidden | {name: control.values for name, control in form.controls.items()}


def build_outdated_version(token: str, form: Form) -> str:
    """Build the version of a form whose first control had another value."""
    page, key, _version = signing.loads(token, salt=VERSION_SALT)
    first, *_others = form.controls
    parts = form.build_parts() | {first: ["what was there before"]}
    return signing.dumps([page, key, compute_version(parts)], salt=VERSION_SALT)


class Tab:
    """A page in a browser, with the values of its form."""

    def __init__(self, browser: admin_client.AdminClient, path: str, number: int = 0) -> None:
        self.browser, self.path = browser, path
        self.read(browser.client.get(path).content.decode(), number)

    def read(self, page: str, number: int = 0) -> None:
        """Read the form of a page."""
        self.page = page
        form = parse_forms(page, self.path.partition("?")[0])[number]
        self.fields = read_fields(page, form)

    def save(self, **changes: Any) -> int:
        """Change some controls, save, and return the status; a returned page is read again."""
        response = self.browser.client.post(self.path, self.fields | changes)
        if response.status_code in (200, 409):
            self.read(response.content.decode())
        return int(response.status_code)


@pytest.fixture
def acme(db: None) -> Organization:
    return factories.create_organization()


@pytest.fixture
def owner(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OWNER)


@pytest.fixture
def helper(acme: Organization) -> Agent:
    agent = factories.create_agent(acme)
    server = admin_client.create_web_server(acme, "web")
    for name in ("read", "write", "remove"):
        admin_client.declare_tool(server, name)
    factories.attach_server(factories.build_administrator(acme), agent, server)
    return agent


def load_rules(agent: Agent) -> dict[str, str]:
    text = load_policy_spec(Agent.objects.get(pk=agent.pk))
    return {
        name: effect for effect in ("allow", "ask", "deny") for name in text.get_entries(effect)
    }


READ, WRITE, REMOVE = "mcp_web_read", "mcp_web_write", "mcp_web_remove"


def rule_field(name: str) -> str:
    return f"rule-{name}"


NOTE = re.compile(r'<div class="bb-conflict"\s+data-field-name="([^"]*)"(.*?)</div>', re.S)


def find_notes(page: str) -> dict[str, str]:
    return {name: unescape(" ".join(note.split())) for name, note in NOTE.findall(page)}


def test_a_field_that_both_changed_shows_what_the_other_person_saved(
    acme: Organization, owner: admin_client.AdminClient, helper: Agent
) -> None:
    other = admin_client.sign_in(acme, Role.OPERATOR)
    path = admin_client.build_url("agents_agent_configuration", helper.pk)
    first, second = Tab(other, path), Tab(owner, path)
    assert first.save(description="Theirs <b>", name="Renamed") == 302
    assert second.save(description="Mine") == 409
    notes = find_notes(second.page)
    assert notes.keys() == {"description", "name"}
    assert "changed this to <b data-saved-text>Theirs <b></b>" in notes["description"]
    assert """data-saved="["Theirs <b>"]\"""" in notes["description"]
    assert "Use this value" in notes["description"]
    # Only the other person changed the name: the form shows theirs, so there is nothing to choose.
    assert "Use this value" not in notes["name"]
    assert second.fields["name"] == ["Renamed"]
    # The code is a small link, not a part of the sentence.
    assert "(version_conflict)" not in second.page
    assert second.page.count("<code>version_conflict</code></a>") == 1
    assert second.save() == 302
    assert Agent.objects.get(pk=helper.pk).description == "Mine"


def test_a_choice_that_both_changed_shows_the_saved_one_and_offers_the_own(
    acme: Organization, owner: admin_client.AdminClient, helper: Agent
) -> None:
    path = admin_client.build_url("agents_agent_policy", helper.pk)
    first, second = Tab(owner, path), Tab(owner, path)
    assert first.save(**{rule_field(REMOVE): "deny"}) == 302
    assert second.save(**{rule_field(REMOVE): "allow"}) == 409
    note = find_notes(second.page)[rule_field(REMOVE)]
    assert """data-saved="["deny"]" data-own="["allow"]\"""" in note
    assert "data-is-saved" in note
    assert second.fields[rule_field(REMOVE)] == ["deny"]


def test_a_note_about_a_secret_has_neither_its_values_nor_a_button() -> None:
    control = Control("secret", "Key", ["hunter2"])
    difference = Difference(control, "key", "form", ["hunter3"], is_kept=True)
    html = render_field_conflicts("Anna", [difference])
    assert "Anna changed this to" in html
    assert MASK in html
    assert not re.search("hunter|data-saved-text|<button", html)
    assert 'data-saved="" data-own=""' in " ".join(html.split())
    conflict = FormConflict("Anna", [difference])
    assert "hunter" not in describe_conflict(conflict, keeps_changes=True)


def test_a_denial_in_one_tab_survives_a_save_in_the_other(
    owner: admin_client.AdminClient, helper: Agent
) -> None:
    path = admin_client.build_url("agents_agent_policy", helper.pk)
    first, second = Tab(owner, path), Tab(owner, path)
    assert first.save(**{rule_field(REMOVE): "deny"}) == 302

    assert second.save(**{rule_field(READ): "allow"}) == 409

    assert load_rules(helper) == {REMOVE: "deny"}
    assert "version_conflict" in second.page
    assert "mcp_web_remove" in second.page
    # The page has the denial and the change of this tab; saving again keeps both.
    assert second.fields[rule_field(REMOVE)] == ["deny"]
    assert second.fields[rule_field(READ)] == ["allow"]
    assert second.save() == 302
    assert load_rules(helper) == {REMOVE: "deny", READ: "allow"}


def test_an_allowance_in_one_tab_survives_a_save_in_the_other(
    owner: admin_client.AdminClient, helper: Agent
) -> None:
    set_policy(
        factories.build_administrator(helper.organization), helper, PolicySpec("all", deny=(READ,))
    )
    path = admin_client.build_url("agents_agent_policy", helper.pk)
    first, second = Tab(owner, path), Tab(owner, path)
    assert first.save(**{rule_field(READ): "allow"}) == 302
    assert second.save(**{rule_field(WRITE): "ask"}) == 409
    assert second.save() == 302
    assert load_rules(helper) == {READ: "allow", WRITE: "ask"}


def test_a_conflicting_rule_is_chosen_again_next_to_the_saved_one(
    owner: admin_client.AdminClient, helper: Agent
) -> None:
    path = admin_client.build_url("agents_agent_policy", helper.pk)
    first, second = Tab(owner, path), Tab(owner, path)
    assert first.save(**{rule_field(REMOVE): "deny"}) == 302
    assert second.save(**{rule_field(REMOVE): "allow"}) == 409
    assert second.save() == 302  # without choosing again: the denial is kept
    assert load_rules(helper) == {REMOVE: "deny"}
    third = Tab(owner, path)
    assert third.save(**{rule_field(REMOVE): "allow"}) == 302
    assert load_rules(helper) == {REMOVE: "allow"}


def test_a_denial_over_rest_survives_a_save_in_a_tab(
    owner: admin_client.AdminClient, helper: Agent
) -> None:
    tab = Tab(owner, admin_client.build_url("agents_agent_policy", helper.pk))
    administrator = factories.build_administrator(helper.organization)
    set_policy(administrator, helper, PolicySpec("all", deny=(REMOVE,)))
    assert tab.save(**{rule_field(READ): "allow"}) == 409
    assert tab.save() == 302
    assert load_rules(helper) == {REMOVE: "deny", READ: "allow"}


def test_members_added_in_another_tab_keep_the_agent(
    acme: Organization, owner: admin_client.AdminClient, helper: Agent
) -> None:
    names = [factories.create_member(acme, Role.MEMBER, name).label for name in ("anna", "bert")]
    path = admin_client.build_url("agents_agent_configuration", helper.pk)
    first, second = Tab(owner, path), Tab(owner, path)
    assert first.save(members=names[:1]) == 302
    assert second.save(description="Ours") == 409
    assert second.save() == 302
    helper.refresh_from_db()
    assert helper.description == "Ours"
    assert [user.username for user in helper.members.all()] == ["anna"]


def test_budgets_added_in_another_tab_are_kept(
    owner: admin_client.AdminClient, helper: Agent
) -> None:
    path = admin_client.build_url("agents_agent_configuration", helper.pk)
    first, second = Tab(owner, path), Tab(owner, path)
    limits = first.fields["budget-limit"]
    assert first.save(**{"budget-limit": ["7", *limits[1:]]}) == 302
    assert second.save(**{"budget-limit": ["8", *limits[1:]]}) == 409
    assert second.save() == 302
    assert [budget.limit for budget in helper.budgets.all()] == [7]


def test_a_role_removed_in_another_tab_isnt_restored(
    acme: Organization, owner: admin_client.AdminClient
) -> None:
    factories.create_member(acme, Role.MEMBER, "anna")
    member = Membership.objects.get(user__username="anna")
    tab = Tab(owner, admin_client.build_url("tenancy_membership_change", member.pk))
    Membership.objects.filter(pk=member.pk).update(role=Role.AUDITOR)
    assert tab.save() == 409
    assert tab.save() in (200, 302)
    member.refresh_from_db()
    assert member.role == Role.AUDITOR


def test_a_form_without_a_version_is_saved(owner: admin_client.AdminClient, helper: Agent) -> None:
    tab = Tab(owner, admin_client.build_url("agents_agent_policy", helper.pk))
    del tab.fields[VERSION_FIELD]
    assert tab.save(**{rule_field(REMOVE): "deny"}) == 302
    assert ToolRule.objects.get().effect == "deny"


def test_patterns_added_in_both_tabs_are_kept(
    owner: admin_client.AdminClient, helper: Agent
) -> None:
    administrator = factories.build_administrator(helper.organization)
    set_policy(administrator, helper, PolicySpec("all", deny=("mcp_web_a*", "mcp_web_b*")))
    path = admin_client.build_url("agents_agent_policy", helper.pk)
    first, second = Tab(owner, path), Tab(owner, path)
    assert first.save(deny="mcp_web_b*\r\nmcp_web_c*") == 302  # removes a, adds c
    assert second.save(deny="mcp_web_a*\r\nmcp_web_b*\r\nmcp_web_d*") == 409
    assert second.save() == 302
    assert sorted(load_rules(helper)) == ["mcp_web_b*", "mcp_web_c*", "mcp_web_d*"]


def test_members_selected_in_both_tabs_all_get_the_agent(
    acme: Organization, owner: admin_client.AdminClient, helper: Agent
) -> None:
    names = [factories.create_member(acme, Role.MEMBER, name).label for name in ("anna", "bert")]
    path = admin_client.build_url("agents_agent_configuration", helper.pk)
    first, second = Tab(owner, path), Tab(owner, path)
    assert first.save(members=names[:1]) == 302
    assert second.save(members=names[1:]) == 409
    assert second.save() == 302
    assert sorted(user.username for user in helper.members.all()) == ["anna", "bert"]


def test_conditional_rules_added_in_another_tab_are_kept(
    owner: admin_client.AdminClient, helper: Agent
) -> None:
    path = admin_client.build_url("agents_agent_policy", helper.pk)
    first, second = Tab(owner, path), Tab(owner, path)
    schema = '{"properties": {"amount": {"minimum": 1000}}}'
    assert first.save(**{"when-effect": "deny", "when-tool": WRITE, "when-schema": schema}) == 302
    assert second.save(**{"when-effect": "allow", "when-tool": READ, "when-schema": schema}) == 409
    assert second.save() == 302
    policy = load_policy_spec(Agent.objects.get(pk=helper.pk))
    assert [rule.tool for rule in policy.deny] == [WRITE]  # type: ignore[union-attr]
    assert policy.allow == ()


def test_labels_set_in_another_tab_are_kept(
    acme: Organization, owner: admin_client.AdminClient, helper: Agent
) -> None:
    server = helper.agent_servers.get().server
    definition, _other = server.definitions.filter(kind="tool").order_by("name")[:2]
    path = admin_client.build_url("mcp_servers_server_definitions", server.pk)
    first, second = Tab(owner, path), Tab(owner, path)
    label = {"label": str(definition.pk), f"flow_labels-{definition.pk}": ["private_data"]}
    assert first.save(**label) == 302
    stale = {"label": str(definition.pk), f"flow_labels-{definition.pk}": ["sends_out"]}
    assert second.save(**stale) == 409
    definition.refresh_from_db()
    assert definition.labels == ["private_data"]


def test_a_preview_compares_no_versions(owner: admin_client.AdminClient, helper: Agent) -> None:
    path = admin_client.build_url("agents_agent_policy", helper.pk)
    first, second = Tab(owner, path), Tab(owner, path)
    assert first.save(**{rule_field(REMOVE): "deny"}) == 302
    preview = admin_client.build_url("agents_agent_policy_preview", helper.pk)
    assert owner.client.post(preview, second.fields).status_code == 200


def test_rules_of_rows_added_later_are_compared_too(
    owner: admin_client.AdminClient, helper: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.admin.policies.PAGE_SIZE", 2)
    tab = Tab(owner, admin_client.build_url("agents_agent_policy", helper.pk))
    assert rule_field(REMOVE) not in tab.fields
    group = helper.agent_servers.get().server_id
    rows = admin_client.build_url("agents_agent_policy_rows", helper.pk) + f"?group={group}"
    fragment = owner.client.get(rows).content.decode()
    [form] = parse_forms(fragment, rows)
    administrator = factories.build_administrator(helper.organization)
    set_policy(administrator, helper, PolicySpec("all", deny=(REMOVE,)))
    values = {name: control.values for name, control in form.controls.items()}
    match = TOKEN.search(fragment)
    assert match is not None
    assert (
        tab.save(**values, **{VERSION_FIELD: [tab.fields[VERSION_FIELD], unescape(match[1])]})
        == 409
    )
    assert load_rules(helper) == {REMOVE: "deny"}


def find_delete_path(row: Any) -> str:
    return admin_client.build_url(f"{row._meta.app_label}_{row._meta.model_name}_delete", row.pk)


def test_an_object_that_another_tab_changed_is_deleted_only_after_another_confirmation(
    owner: admin_client.AdminClient, helper: Agent
) -> None:
    confirmation = Tab(owner, find_delete_path(helper))
    path = admin_client.build_url("agents_agent_policy", helper.pk)
    assert Tab(owner, path).save(**{rule_field(REMOVE): "deny"}) == 302

    assert confirmation.save() == 409

    assert Agent.objects.filter(pk=helper.pk).exists()
    assert "version_conflict" in confirmation.page
    assert confirmation.save() == 302
    assert not Agent.objects.filter(pk=helper.pk).exists()


@pytest.mark.parametrize("kind", ["server", "skill"])
def test_a_renamed_object_is_deleted_only_after_another_confirmation(
    acme: Organization, owner: admin_client.AdminClient, kind: str
) -> None:
    administrator = factories.build_administrator(acme)
    row: Any
    if kind == "server":
        row = admin_client.create_web_server(acme, "web")
        confirmation = Tab(owner, find_delete_path(row))
        response = rest.as_administrator().patch(
            f"mcp-servers/{row.pk}", {"description": "Used by payroll."}
        )
        assert response.status == 200
    else:
        row = save_skill(administrator, SkillSpec(name="tell", text="Hello"))
        confirmation = Tab(owner, find_delete_path(row))
        save_skill(administrator, SkillSpec(name="tell", text="Used by payroll."), row)
    assert confirmation.save() == 409
    assert type(row).objects.filter(pk=row.pk).exists()
    assert confirmation.save() == 302
    assert not type(row).objects.filter(pk=row.pk).exists()


def test_an_unchanged_object_is_deleted_at_once(
    owner: admin_client.AdminClient, helper: Agent
) -> None:
    assert Tab(owner, find_delete_path(helper)).save() == 302
    assert not Agent.objects.filter(pk=helper.pk).exists()


def test_a_save_doesnt_restore_an_object_that_another_tab_deleted(
    owner: admin_client.AdminClient, helper: Agent
) -> None:
    tab = Tab(owner, admin_client.build_url("agents_agent_policy", helper.pk))
    assert Tab(owner, find_delete_path(helper)).save() == 302
    changes = {rule_field(REMOVE): "deny"}
    assert owner.client.post(tab.path, tab.fields | changes).status_code == 404
    assert not Agent.objects.filter(pk=helper.pk).exists()


def test_an_edit_conflict_is_shown_once(
    acme: Organization, owner: admin_client.AdminClient
) -> None:
    channel = factories.create_notification(acme).channel
    path = admin_client.build_url("notices_notificationchannel_change", channel.pk)
    first, second = Tab(owner, path), Tab(owner, path)
    assert first.save(name="first") == 302
    assert second.save(name="second") == 409
    assert second.page.count("Not saved.") == 1
    assert second.save(name="") == 200  # other errors are shown
    assert "data-error-summary" in second.page
