"""The door for resources, prompts and completion: with a real server behind it."""

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
def tick(acme, helper, library):
    """A function that ticks resources and prompts in the agent's agent_server."""

    def ticked(resources=(), prompts=()):
        attach_server(
            factories.build_administrator(acme),
            helper,
            library,
            allowed_resources=resources,
            allowed_prompts=prompts,
        )

    return ticked


@pytest.fixture
def read(call, library):
    return lambda uri, **more: call(uri, method="resources/read", server_id=library.pk, **more)


@pytest.fixture
def get(call, library):
    def asked(name, given=None, **more):
        return call(name, given, method="prompts/get", server_id=library.pk, **more)

    return asked


@pytest.fixture
def complete(call, library):
    def asked(ref, name, value, **more):
        given = {"ref": ref, "argument": {"name": name, "value": value}}
        key = ref.get("name") or ref["uri"]
        more = {"method": "completion/complete", "server_id": library.pk} | more
        return call(key, given, **more)

    return asked


def refused(make, *args, **more):
    with pytest.raises(Problem) as caught:
        make(*args, **more)
    return caught.value


def last_call():
    return AuditRow.objects.filter(event_type="call").order_by("-seq").first()


def asked(effects):
    """Return what reached the server beside its discovery."""
    lines = effects.read_text().splitlines()
    return [line for line in lines if "/list" not in line and "discover" not in line]


def test_an_allowed_resource_is_read_and_recorded(read, tick, library, helper):
    tick(["lib://rules"])
    outcome = read("lib://rules")
    assert (outcome.outcome, outcome.text, outcome.own_name) == ("ok", "# Be quiet", "lib://rules")
    row = last_call()
    assert (row.resource_type, row.resource_id, row.action) == (
        "mcp_resource",
        "lib://rules",
        "agent_resource_read",
    )
    assert (row.outcome, row.server_id, row.agent_id) == ("ok", library.pk, helper.pk)
    assert row.rule == "policy:all"
    assert len(json.loads(row.opened)["details"]["definition_digest"]) == 64


def test_a_resource_that_isnt_allowed_never_reaches_the_server(read, get, tick, effects):
    tick(["lib://logo"], [])
    assert refused(read, "lib://rules").code == "not_selected"
    assert refused(get, "review", {"book": "Emma"}).code == "not_selected"
    assert refused(read, "lib://nowhere").code == "unknown_resource"
    assert refused(get, "nothing").code == "unknown_prompt"
    assert asked(effects) == []
    assert (last_call().outcome, last_call().code) == ("refused", "unknown_prompt")


def test_a_template_reads_only_matching_uris(read, tick, effects):
    tick(["lib://books/{book}"])
    assert read("lib://books/emma").text == "the text of lib://books/emma"
    details = json.loads(last_call().opened)["details"]
    assert details["template"] == "lib://books/{book}"
    for trick in ("a/b", "..", "%2e%2e", "a%2fb", "a%252fb", ""):
        assert refused(read, f"lib://books/{trick}").code == "unknown_resource"
    assert asked(effects) == ["resources/read lib://books/emma"]


def test_a_path_with_several_segments_needs_a_pattern(read, tick):
    tick(["lib://files/{+path}"])
    assert read("lib://files/a").outcome == "ok"
    assert refused(read, "lib://files/a/b").code == "unknown_resource"
    tick(["lib://files/docs/*"])
    assert read("lib://files/docs/a/b").outcome == "ok"
    assert refused(read, "lib://files/other/b").code == "unknown_resource"
    assert refused(read, "lib://files/docs/../x").code == "unknown_resource"


def test_unusual_uris_are_refused_and_recorded(read, tick):
    tick(["*"])
    for uri in ("", "lib://\ud800", "lib://\0", "lib://books/" + "a" * 5_000, "{", "lib:" * 9_000):
        assert refused(read, uri).code == "unknown_resource"
        assert last_call().code == "unknown_resource"


def test_a_disabled_resource_cant_be_read_by_a_template(acme, read, tick, library):
    tick(["lib://books/{book}"])
    assert read("lib://books/secret").outcome == "ok"
    row = library.definitions.get(name="lib://books/secret")
    set_definition_enabled(factories.build_administrator(acme), row, enabled=False)
    assert refused(read, "lib://books/secret").code == "resource_disabled"


def test_a_revoked_approval_applies_to_the_next_read(acme, read, tick, library):
    tick(["*"])
    assert read("lib://rules").outcome == "ok"
    reset_review(factories.build_administrator(acme), library.definitions.get(name="lib://rules"))
    assert refused(read, "lib://rules").code == "not_approved"


def test_mode_none_denies_resources_and_prompts_too(acme, helper, read, get, tick):
    tick(["*"], ["*"])
    set_policy(factories.build_administrator(acme), helper, PolicySpec("none"))
    assert refused(read, "lib://rules").code == "denied_by_policy"
    assert refused(get, "plain").code == "denied_by_policy"


def test_changing_the_tools_keeps_allowed_resources_and_prompts(acme, helper, read, tick, library):
    tick(["lib://rules"])
    attach_server(factories.build_administrator(acme), helper, library, denied_tools=["x"])
    assert read("lib://rules").outcome == "ok"


def test_a_blob_is_shown_with_its_size_and_complete_in_json(read, tick):
    tick(["*"])
    outcome = read("lib://logo")
    assert outcome.text == "[resource lib://logo image/png, 70 bytes]"
    assert outcome.result["contents"][0]["blob"].startswith("iVBOR")


def test_a_resource_is_cleaned_and_truncated_like_a_result(read, tick, settings):
    tick(["*"])
    assert read("lib://hidden").text == "seethis "
    settings.BONOBOT_RESULT_LIMIT = 5
    outcome = read("lib://rules")
    assert outcome.text.startswith("# Be \n[cut")
    assert StoredResult.objects.get(pk=outcome.call_id).text == "# Be quiet"


def test_a_prompt_is_rendered_and_its_arguments_validated(get, tick, effects):
    tick(prompts=["review"])
    outcome = get("review", {"book": "Emma"})
    assert outcome.text.splitlines() == [
        "user: Review Emma (plainly)",
        "assistant: [image image/png, 70 bytes]",
    ]
    assert (last_call().resource_type, last_call().resource_id) == ("mcp_prompt", "review")
    for wrong in ({}, {"book": 1}, {"book": "Emma", "other": "x"}):
        assert refused(get, "review", wrong).code == "invalid_arguments"
    assert asked(effects) == ["prompts/get review"]


def test_completion_is_limited_to_allowed_resources_and_bounded(complete, tick, effects):
    prompt = {"type": "ref/prompt", "name": "review"}
    template = {"type": "ref/resource", "uri": "lib://books/{book}"}
    assert refused(complete, prompt, "book", "E").code == "not_selected"
    assert refused(complete, template, "book", "E").code == "not_selected"
    assert asked(effects) == []
    tick(["lib://books/{book}"], ["review"])
    found = complete(prompt, "book", "E").result["completion"]
    assert (len(found["values"]), found["values"][0], found["hasMore"]) == (100, "E0", True)
    assert complete(template, "book", "!").result["completion"]["values"] == ["hidden"]
    assert last_call().resource_type == "mcp_resource"
    assert refused(complete, prompt, "other", "E").code == "invalid_arguments"
    wrong = {"type": "ref/prompt", "name": "review", "uri": "lib://x"}
    assert refused(complete, wrong, "book", "E").code == "invalid_arguments"


def test_a_completion_reference_cant_be_ambiguous(call, tick, library, effects):
    tick(prompts=["plain"])
    ref = {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "a", "value": ""}}
    problem = refused(call, "plain", ref, method="completion/complete", server_id=library.pk)
    assert problem.code == "invalid_arguments"
    assert asked(effects) == []


def test_servers_that_arent_attached_arent_found(acme, call, helper, library):
    attach_server(
        factories.build_administrator(acme), factories.create_agent(acme, "other"), library
    )
    helper.agent_servers.all().delete()
    problem = refused(call, "lib://rules", method="resources/read", server_id=library.pk)
    assert isinstance(problem, NotFound)
    assert problem.code == "not_attached"


# -- without an agent ----------------------------------------------------------------------------


def test_without_an_agent_the_organizations_policy_applies(acme, read, get, library):
    alone = {"agent_id": None}
    assert read("lib://rules", **alone).outcome == "ok"
    assert read("lib://files/a/b", **alone).outcome == "ok"
    assert last_call().action == "resource_read"
    assert refused(read, "lib://files/a/../b", **alone).code == "unknown_resource"
    member = factories.create_member(acme, Role.MEMBER)
    assert isinstance(refused(read, "lib://rules", principal=member, **alone), Forbidden)
    reset_review(factories.build_administrator(acme), library.definitions.get(name="plain"))
    assert refused(get, "plain", **alone).code == "not_approved"
    assert get("plain", allow_unapproved=True, **alone).outcome == "ok"


# -- by the model --------------------------------------------------------------------------------


def test_the_resource_tools_exist_only_if_a_resource_is_allowed(call, tick):
    assert refused(call, "list_resources").code == "unknown_tool"
    tick(prompts=["*"])
    assert refused(call, "read_resource").code == "unknown_tool"
    tick(["lib://rules", "lib://books/{book}"])
    assert call("list_resources").text.splitlines() == [
        "library lib://rules text/markdown House rules",
        "library lib://books/{book}  (template: fill in its variables) book – A book.",
    ]
    assert refused(call, "list_resources", {"other": 1}).code == "invalid_arguments"


def test_the_model_reads_resources_through_the_call_pipeline(call, tick):
    tick(["lib://rules"])
    outcome = call("read_resource", {"server": "library", "uri": "lib://rules"})
    assert outcome.text == "# Be quiet"
    child = AuditRow.objects.get(resource_type="mcp_resource")
    assert (child.parent_id, child.outcome) == (outcome.call_id, "ok")
    refusal = call("read_resource", {"server": "library", "uri": "lib://logo"})
    assert (refusal.outcome, refusal.code) == ("error", "not_selected")
    nowhere = call("read_resource", {"server": "other", "uri": "lib://logo"})
    assert (nowhere.outcome, nowhere.code) == ("error", "not_found")


def test_a_long_resource_is_truncated_once_and_readable(call, tick, settings):
    tick(["*"])
    settings.BONOBOT_RESULT_LIMIT = 5
    outcome = call("read_resource", {"server": "library", "uri": "lib://rules"})
    child = AuditRow.objects.get(resource_type="mcp_resource")
    assert str(child.pk) in outcome.text
    settings.BONOBOT_RESULT_LIMIT = 1000
    rest = call("read_result", {"result_id": str(child.pk), "offset": 5})
    assert rest.text.startswith("quiet\n")
