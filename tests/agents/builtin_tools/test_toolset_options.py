"""Toolsets of built-in tools: in the admin, over REST, and in the configuration file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.builtin_tools.toolset_options import (
    TOOLSETS,
    ToolsetOption,
    apply_defaults,
    clean_toolsets,
    list_restricted_changes,
)
from agents.calls.snapshots import get_snapshot_cache
from agents.config_file.apply_config import apply_config
from agents.config_file.export_config import export_config, to_yaml
from agents.config_file.read_config import read_config_file
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import InvalidInput
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db

FILE = """
agents:
  helper:
    builtin_tools:
      filesystem: {read_only: true}
      search:
      fetch: {hosts: ["*.example.com"], methods: [get, post]}
    workspace: {mib: 5, files: 50}
"""


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.mark.parametrize(
    ("toolsets", "field", "message"),
    [
        ("shell", "builtin_tools", "list of names"),
        (["telepathy"], "builtin_tools", "telepathy"),
        ({"shell": 3}, "builtin_tools.shell", "object"),
        ({"shell": {"nice": 1}}, "builtin_tools.shell.nice", "The option doesn't exist"),
        ({"shell": {"network": "yes"}}, "builtin_tools.shell.network", "true or false"),
        ({"shell": {"time_s": 0}}, "builtin_tools.shell.time_s", "out of range"),
        ({"shell": {"time_s": True}}, "builtin_tools.shell.time_s", "integer"),
        ({"fetch": {"hosts": ["http://x"]}}, "builtin_tools.fetch.hosts", "isn't valid"),
        ({"fetch": {"hosts": ["a.b"] * 101}}, "builtin_tools.fetch.hosts", "too long"),
        ({"fetch": {"hosts": ["a\nb"]}}, "builtin_tools.fetch.hosts", "isn't valid"),
        ({"fetch": {"methods": ["BREW"]}}, "builtin_tools.fetch.methods", "isn't valid"),
    ],
)
def test_unknown_toolsets_and_options_are_refused_at_their_field(toolsets, field, message):
    with pytest.raises(InvalidInput) as raised:
        clean_toolsets(toolsets)
    assert raised.value.field == field
    assert message in str(raised.value)
    assert raised.value.remedy


def build_values(option: ToolsetOption) -> st.SearchStrategy[object]:
    if option.kind == "flag":
        return st.booleans()
    if option.kind == "number":
        return st.integers(option.minimum, option.maximum)
    return st.just(list(option.default))


TOOLSETS_BODIES = st.fixed_dictionaries(
    {},
    optional={
        toolset.name: st.fixed_dictionaries(
            {}, optional={option.name: build_values(option) for option in toolset.options}
        )
        for toolset in TOOLSETS.values()
    },
)


@given(TOOLSETS_BODIES, TOOLSETS_BODIES)
def test_toolsets_are_stored_normalized_and_can_always_be_disabled(old, new):
    stored = clean_toolsets(old)
    assert clean_toolsets(stored) == stored
    assert apply_defaults(clean_toolsets(apply_defaults(stored))) == apply_defaults(stored)
    assert list_restricted_changes(stored, stored) == []
    assert list_restricted_changes(stored, {}) == []
    restricted = list_restricted_changes(stored, clean_toolsets(new))
    if "shell" in new and "shell" not in old:
        assert "shell" in restricted
    if not {"shell", "fetch"} & set(new):
        assert restricted == []


def test_the_configuration_file_reads_and_writes_toolsets(acme, helper):
    administrator = factories.build_administrator(acme)
    plan = apply_config(administrator, read_config_file(FILE, {}))
    assert [(step.kind, step.fields) for step in plan.changes] == [
        ("agent", ("builtin_tools", "workspace_mib", "workspace_files"))
    ]
    helper.refresh_from_db()
    assert helper.builtin_tools == {
        "filesystem": {"read_only": True},
        "search": {},
        "fetch": {"hosts": ["*.example.com"], "methods": ["GET", "POST"]},
    }
    assert (helper.workspace_mib, helper.workspace_files) == (5, 50)
    exported = to_yaml(export_config(administrator))
    assert apply_config(administrator, read_config_file(exported, {})).changes == ()
    invalid = apply_config(
        administrator,
        read_config_file(FILE.replace("mib: 5", "mib: lots").replace("get", "brew"), {}),
    )
    assert sorted(problem.field for problem in invalid.problems) == [
        "agents.helper.builtin_tools",
        "agents.helper.workspace.mib",
    ]
    operator = factories.create_member(acme, Role.OPERATOR)
    file = FILE + "    enabled: false\n"
    assert not apply_config(operator, read_config_file(file, {})).problems
    (problem,) = apply_config(
        operator, read_config_file(FILE.replace("search:", "shell:"), {})
    ).problems
    assert (problem.code, problem.field) == (
        "platform_admin_only",
        "agents.helper.builtin_tools.shell",
    )


def test_rest_sets_toolsets_and_returns_the_effective_tools(acme, helper, tmp_path: Path):
    operator = rest.as_role(acme, Role.OPERATOR)
    response = operator.send(
        "PATCH", "agents/helper", {"builtin_tools": {"search": {}}, "workspace_mib": 7}
    )
    assert (response.status, response.json["builtin_tools"]) == (200, {"search": {}})
    tools = {tool["name"]: tool for tool in operator.get("agents/helper/tools").json["results"]}
    assert tools["search_files"]["decision"] == "allow"
    assert tools["run_shell"]["code"] == "builtin_disabled"
    assert "Built-in tools" in tools["run_shell"]["remedy"]
    explanation = operator.get("agents/helper/tools/run_shell/explain").json
    assert (explanation["first"], explanation["code"]) == ("attachment", "builtin_disabled")
    for body, status, code in (
        ({"builtin_tools": {"shell": {}}}, 403, "platform_admin_only"),
        ({"workspace_folder": str(tmp_path)}, 403, "platform_admin_only"),
        ({"builtin_tools": {"shll": {}}}, 400, "unknown_toolset"),
    ):
        denied = operator.send("PATCH", "agents/helper", body)
        assert (denied.status, denied.code) == (status, code)
    workspace = operator.get("agents/helper/workspace").json
    assert (workspace["bytes"], workspace["max_bytes"], workspace["labels"]) == (0, 7 << 20, [])
    assert operator.send("DELETE", "agents/helper/workspace", None).status == 204
    assert rest.as_role(acme, Role.AUDITOR).send("DELETE", "agents/helper/workspace").status == 403


def test_the_page_enables_only_what_the_role_allows(acme, helper, tmp_path: Path):
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    page = admin_client.get_text(operator.get("agents_agent_builtin", helper.pk))
    assert "Only a platform administrator can enable this" in page
    assert "The workspace uses 0 bytes of 256.0 MB" in page.replace("\xa0", " ")
    fields = {
        "toolset-filesystem": "on",
        "option-filesystem-read_only-there": "1",
        "option-filesystem-read_only": "on",
        "toolset-fetch": "on",
        "option-fetch-hosts-there": "1",
        "option-fetch-hosts": "docs.example.com, *.example.org",
        "option-fetch-methods-there": "1",
        "option-fetch-methods": "GET",
        "workspace_mib": "12",
        "workspace_files": "",
    }
    assert "Saved" in admin_client.get_text(
        operator.post("agents_agent_builtin", helper.pk, **fields)
    )
    helper.refresh_from_db()
    assert helper.builtin_tools == {
        "filesystem": {"read_only": True},
        "fetch": {"hosts": ["docs.example.com", "*.example.org"], "methods": ["GET"]},
    }
    assert helper.workspace_mib == 12
    toolbox = get_snapshot_cache().load_current("agent", helper.pk).toolbox
    assert toolbox.has_toolset("filesystem", writes=False)
    assert not toolbox.has_toolset("filesystem", writes=True)
    denied = operator.post("agents_agent_builtin", helper.pk, status=403, **{"toolset-shell": "on"})
    assert "Only a platform administrator" in admin_client.get_text(denied)
    administrator = admin_client.sign_in(acme, None)
    restricted_fields = fields | {
        "toolset-shell": "on",
        "option-shell-time_s-there": "1",
        "option-shell-time_s": "30",
        "workspace_folder": str(tmp_path),
    }
    administrator.post("agents_agent_builtin", helper.pk, **restricted_fields)
    # An operator's form has no fields for locked toolsets and keeps them unchanged.
    operator.post("agents_agent_builtin", helper.pk, **(fields | {"toolset-shell": "on"}))
    helper.refresh_from_db()
    assert helper.builtin_tools["shell"] == {"time_s": 30}
    assert helper.workspace_folder == str(tmp_path.resolve())
    rows = AuditRow.objects.filter(action="agent_updated", resource_id=str(helper.pk))
    assert rows.count() == 3


def test_what_only_a_platform_administrator_can_change_is_text_for_others(
    helper: Agent, acme: Organization
) -> None:
    Agent.objects.filter(pk=helper.pk).update(builtin_tools={"fetch": {}})
    restricted = ('name="toolset-shell"', 'name="option-fetch-allow_private"')
    page = admin_client.sign_in(acme, Role.OPERATOR).get("agents_agent_builtin", helper.pk)
    assert 'name="toolset-fetch"' in page
    assert [field for field in restricted if field in page] == []
    assert "Private addresses No Only a platform administrator" in admin_client.get_text(page)
    page = admin_client.sign_in(acme, None).get("agents_agent_builtin", helper.pk)
    assert [field for field in restricted if field not in page] == []


def test_built_in_tools_are_described_to_people_in_german_and_to_models_in_english(
    helper: Agent, acme: Organization
) -> None:
    Agent.objects.filter(pk=helper.pk).update(builtin_tools={"notes": {}})
    owner = admin_client.sign_in(acme, Role.OWNER)
    owner.client.defaults["HTTP_ACCEPT_LANGUAGE"] = "de"
    policy = admin_client.get_text(owner.get("agents_agent_policy", helper.pk))
    assert "Eine Notiz anhand ihres Titels löschen." in policy
    toolsets = admin_client.get_text(owner.get("agents_agent_builtin", helper.pk))
    assert "Dateien und Ordner" in toolsets
    assert "Speicher (MiB)" in toolsets
    tool = get_snapshot_cache().load_current("agent", helper.pk).tools["forget"]
    assert tool.description == tool.declaration["description"] == "Delete a note by its title."
