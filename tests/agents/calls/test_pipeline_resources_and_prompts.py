"""The call pipeline for resources, prompts, and completion, with a real server."""

import json

import pytest

from agents.models import StoredResult
from agents.policies.services import PolicySpec, set_policy
from agents.services import attach_server
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden, NotFound, Problem
from bonobot.ledger.models import AuditRow
from mcp_servers.definition_reviews import reset_review, set_definition_enabled
from tests import factories


@pytest.fixture
def select(acme, helper, library):
    """A function that selects resources and prompts of the attached server."""

    def attach(resources=(), prompts=()):
        attach_server(
            factories.build_administrator(acme),
            helper,
            library,
            allowed_resources=resources,
            allowed_prompts=prompts,
        )

    return attach


@pytest.fixture
def read(call, library):
    return lambda uri, **options: call(
        uri, method="resources/read", server_id=library.pk, **options
    )


@pytest.fixture
def get(call, library):
    def get_prompt(name, arguments=None, **options):
        return call(name, arguments, method="prompts/get", server_id=library.pk, **options)

    return get_prompt


@pytest.fixture
def complete(call, library):
    def complete_argument(ref, name, value, **options):
        arguments = {"ref": ref, "argument": {"name": name, "value": value}}
        key = ref.get("name") or ref["uri"]
        options = {"method": "completion/complete", "server_id": library.pk} | options
        return call(key, arguments, **options)

    return complete_argument


def catch_problem(call, *args, **kwargs):
    with pytest.raises(Problem) as caught:
        call(*args, **kwargs)
    return caught.value


def get_last_call():
    return AuditRow.objects.filter(event_type="call").order_by("-seq").first()


def list_calls(effects):
    """Return the requests that reached the server, without its discovery."""
    lines = effects.read_text().splitlines()
    return [line for line in lines if "/list" not in line and "discover" not in line]


def test_an_allowed_resource_is_read_and_recorded(read, select, library, helper):
    select(["lib://rules"])
    outcome = read("lib://rules")
    assert (outcome.outcome, outcome.text, outcome.own_name) == ("ok", "# Be quiet", "lib://rules")
    row = get_last_call()
    assert (row.resource_type, row.resource_id, row.action) == (
        "mcp_resource",
        "lib://rules",
        "agent_resource_read",
    )
    assert (row.outcome, row.server_id, row.agent_id) == ("ok", library.pk, helper.pk)
    assert row.rule == "policy:all"
    assert len(json.loads(row.opened)["details"]["definition_digest"]) == 64


def test_a_resource_that_isnt_allowed_never_reaches_the_server(read, get, select, effects):
    select(["lib://logo"], [])
    assert catch_problem(read, "lib://rules").code == "not_selected"
    assert catch_problem(get, "review", {"book": "Emma"}).code == "not_selected"
    assert catch_problem(read, "lib://nowhere").code == "unknown_resource"
    assert catch_problem(get, "nothing").code == "unknown_prompt"
    assert list_calls(effects) == []
    assert (get_last_call().outcome, get_last_call().code) == ("refused", "unknown_prompt")


def test_a_template_reads_only_matching_uris(read, select, effects):
    select(["lib://books/{book}"])
    assert read("lib://books/emma").text == "the text of lib://books/emma"
    details = json.loads(get_last_call().opened)["details"]
    assert details["template"] == "lib://books/{book}"
    for book in ("a/b", "..", "%2e%2e", "a%2fb", "a%252fb", ""):
        assert catch_problem(read, f"lib://books/{book}").code == "unknown_resource"
    assert list_calls(effects) == ["resources/read lib://books/emma"]


def test_a_path_with_several_segments_needs_a_pattern(read, select):
    select(["lib://files/{+path}"])
    assert read("lib://files/a").outcome == "ok"
    assert catch_problem(read, "lib://files/a/b").code == "unknown_resource"
    select(["lib://files/docs/*"])
    assert read("lib://files/docs/a/b").outcome == "ok"
    assert catch_problem(read, "lib://files/other/b").code == "unknown_resource"
    assert catch_problem(read, "lib://files/docs/../x").code == "unknown_resource"


def test_unusual_uris_are_refused_and_recorded(read, select):
    select(["*"])
    for uri in ("", "lib://\ud800", "lib://\0", "lib://books/" + "a" * 5_000, "{", "lib:" * 9_000):
        assert catch_problem(read, uri).code == "unknown_resource"
        assert get_last_call().code == "unknown_resource"


def test_a_disabled_resource_cant_be_read_by_a_template(acme, read, select, library):
    select(["lib://books/{book}"])
    assert read("lib://books/secret").outcome == "ok"
    row = library.definitions.get(name="lib://books/secret")
    set_definition_enabled(factories.build_administrator(acme), row, enabled=False)
    assert catch_problem(read, "lib://books/secret").code == "resource_disabled"


def test_a_revoked_approval_applies_to_the_next_read(acme, read, select, library):
    select(["*"])
    assert read("lib://rules").outcome == "ok"
    reset_review(factories.build_administrator(acme), library.definitions.get(name="lib://rules"))
    assert catch_problem(read, "lib://rules").code == "not_approved"


def test_mode_none_denies_resources_and_prompts_too(acme, helper, read, get, select):
    select(["*"], ["*"])
    set_policy(factories.build_administrator(acme), helper, PolicySpec("none"))
    assert catch_problem(read, "lib://rules").code == "denied_by_policy"
    assert catch_problem(get, "plain").code == "denied_by_policy"


def test_changing_the_tools_keeps_allowed_resources_and_prompts(
    acme, helper, read, select, library
):
    select(["lib://rules"])
    attach_server(factories.build_administrator(acme), helper, library, denied_tools=["x"])
    assert read("lib://rules").outcome == "ok"


def test_a_blob_is_shown_with_its_size_and_complete_in_json(read, select):
    select(["*"])
    outcome = read("lib://logo")
    assert outcome.text == "[resource lib://logo image/png, 70 bytes]"
    assert outcome.result["contents"][0]["blob"].startswith("iVBOR")


def test_a_resource_is_cleaned_and_truncated_like_a_result(read, select, settings):
    select(["*"])
    assert read("lib://hidden").text == "seethis "
    settings.BONOBOT_RESULT_LIMIT = 5
    outcome = read("lib://rules")
    assert outcome.text.startswith("# Be \n[truncated")
    assert StoredResult.objects.get(pk=outcome.call_id).text == "# Be quiet"


def test_a_prompt_is_rendered_and_its_arguments_validated(get, select, effects):
    select(prompts=["review"])
    outcome = get("review", {"book": "Emma"})
    assert outcome.text.splitlines() == [
        "user: Review Emma (plainly)",
        "assistant: [image image/png, 70 bytes]",
    ]
    assert (get_last_call().resource_type, get_last_call().resource_id) == ("mcp_prompt", "review")
    for invalid in ({}, {"book": 1}, {"book": "Emma", "other": "x"}):
        assert catch_problem(get, "review", invalid).code == "invalid_arguments"
    assert list_calls(effects) == ["prompts/get review"]


def test_completion_is_limited_to_allowed_resources_and_bounded(complete, select, effects):
    prompt = {"type": "ref/prompt", "name": "review"}
    template = {"type": "ref/resource", "uri": "lib://books/{book}"}
    assert catch_problem(complete, prompt, "book", "E").code == "not_selected"
    assert catch_problem(complete, template, "book", "E").code == "not_selected"
    assert list_calls(effects) == []
    select(["lib://books/{book}"], ["review"])
    completion = complete(prompt, "book", "E").result["completion"]
    assert (len(completion["values"]), completion["values"][0], completion["hasMore"]) == (
        100,
        "E0",
        True,
    )
    assert complete(template, "book", "!").result["completion"]["values"] == ["hidden"]
    assert get_last_call().resource_type == "mcp_resource"
    assert catch_problem(complete, prompt, "other", "E").code == "invalid_arguments"
    invalid = {"type": "ref/prompt", "name": "review", "uri": "lib://x"}
    assert catch_problem(complete, invalid, "book", "E").code == "invalid_arguments"


def test_a_completion_reference_cant_be_ambiguous(call, select, library, effects):
    select(prompts=["plain"])
    ref = {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "a", "value": ""}}
    problem = catch_problem(call, "plain", ref, method="completion/complete", server_id=library.pk)
    assert problem.code == "invalid_arguments"
    assert list_calls(effects) == []


def test_servers_that_arent_attached_arent_found(acme, call, helper, library):
    attach_server(
        factories.build_administrator(acme), factories.create_agent(acme, "other"), library
    )
    helper.agent_servers.all().delete()
    problem = catch_problem(call, "lib://rules", method="resources/read", server_id=library.pk)
    assert isinstance(problem, NotFound)
    assert problem.code == "not_attached"


# -- without an agent ----------------------------------------------------------------------------


def test_without_an_agent_the_organizations_policy_applies(acme, read, get, library):
    without_agent = {"agent_id": None}
    assert read("lib://rules", **without_agent).outcome == "ok"
    assert read("lib://files/a/b", **without_agent).outcome == "ok"
    assert get_last_call().action == "resource_read"
    assert catch_problem(read, "lib://files/a/../b", **without_agent).code == "unknown_resource"
    member = factories.create_member(acme, Role.MEMBER)
    assert isinstance(
        catch_problem(read, "lib://rules", principal=member, **without_agent), Forbidden
    )
    reset_review(factories.build_administrator(acme), library.definitions.get(name="plain"))
    assert catch_problem(get, "plain", **without_agent).code == "not_approved"
    assert get("plain", allow_unapproved=True, **without_agent).outcome == "ok"


# -- by the model --------------------------------------------------------------------------------


def test_the_resource_tools_exist_only_if_a_resource_is_allowed(call, select):
    assert catch_problem(call, "list_resources").code == "unknown_tool"
    select(prompts=["*"])
    assert catch_problem(call, "read_resource").code == "unknown_tool"
    select(["lib://rules", "lib://books/{book}"])
    assert call("list_resources").text.splitlines() == [
        "library lib://rules text/markdown House rules",
        "library lib://books/{book}  (template: fill in its variables) book – A book.",
    ]
    assert catch_problem(call, "list_resources", {"other": 1}).code == "invalid_arguments"


def test_the_model_reads_resources_through_the_call_pipeline(call, select):
    select(["lib://rules"])
    outcome = call("read_resource", {"server": "library", "uri": "lib://rules"})
    assert outcome.text == "# Be quiet"
    child = AuditRow.objects.get(resource_type="mcp_resource")
    assert (child.parent_id, child.outcome) == (outcome.call_id, "ok")
    denied = call("read_resource", {"server": "library", "uri": "lib://logo"})
    assert (denied.outcome, denied.code) == ("error", "not_selected")
    missing = call("read_resource", {"server": "other", "uri": "lib://logo"})
    assert (missing.outcome, missing.code) == ("error", "not_found")


def test_a_long_resource_is_truncated_once_and_readable(call, select, settings):
    select(["*"])
    settings.BONOBOT_RESULT_LIMIT = 5
    outcome = call("read_resource", {"server": "library", "uri": "lib://rules"})
    child = AuditRow.objects.get(resource_type="mcp_resource")
    assert str(child.pk) in outcome.text
    settings.BONOBOT_RESULT_LIMIT = 1000
    remainder = call("read_result", {"result_id": str(child.pk), "offset": 5})
    assert remainder.text.startswith("quiet\n")
