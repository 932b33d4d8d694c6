"""Resources, prompts, and completion over REST: of an agent, and of a server without one."""

import pytest

from bonobot.accounts.roles import Role
from mcp_servers.definition_reviews import reset_review
from tests import factories, rest

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "agents/helper"


@pytest.fixture
def operator(acme, helper):
    return rest.as_role(acme, Role.OPERATOR)


@pytest.fixture
def selection(operator, library):
    """Select resources and prompts over REST; return the body that names the server."""
    body = {
        "server_id": str(library.pk),
        "allowed_resources": ["lib://rules", "lib://books/{book}"],
        "allowed_prompts": ["review"],
    }
    response = operator.post(f"{AGENT}/mcp-servers", body)
    assert response.status == 200
    assert response.json["allowed_resources"] == ["lib://rules", "lib://books/{book}"]
    return {"server_id": str(library.pk)}


@pytest.fixture
def execute(operator, library):
    def send_request(method, client=operator, **params):
        body = {"method": method, "params": params}
        return client.post(f"mcp-servers/{library.pk}/execute", body)

    return send_request


def test_the_resources_of_an_agent_are_listed_with_the_decision(operator, selection):
    resources = {row["name"]: row for row in operator.get(f"{AGENT}/resources").json["results"]}
    assert len(resources) == 7
    rules, logo = resources["lib://rules"], resources["lib://logo"]
    assert (rules["allowed"], rules["title"], rules["mime_type"]) == (
        True,
        "House rules",
        "text/markdown",
    )
    assert (logo["allowed"], logo["code"]) == (False, "not_selected")
    assert logo["remedy"]
    assert resources["lib://books/{book}"]["kind"] == "resource_template"
    prompts = {row["name"]: row for row in operator.get(f"{AGENT}/prompts").json["results"]}
    assert [name for name, row in prompts.items() if row["allowed"]] == ["review"]
    assert prompts["review"]["argument_schema"]["required"] == ["book"]


def test_the_list_uses_a_fixed_number_of_queries(
    operator, selection, django_assert_max_num_queries
):
    operator.get(f"{AGENT}/resources")
    with django_assert_max_num_queries(12):
        assert len(operator.get(f"{AGENT}/resources").json["results"]) == 7


def test_resources_are_paginated(operator, selection):
    names, url = [], f"{AGENT}/resources?limit=3"
    while url:
        response = operator.get(url)
        names += [row["name"] for row in response.json["results"]]
        url = response.json["next"]
    assert len(names) == len(set(names)) == 7


def test_a_resource_is_read_as_the_agent(operator, selection):
    response = operator.post(f"{AGENT}/resources/read", selection | {"uri": "lib://books/emma"})
    assert (response.status, response.json["text"]) == (200, "the text of lib://books/emma")
    assert response.json["result"]["contents"][0]["uri"] == "lib://books/emma"
    denied = operator.post(f"{AGENT}/resources/read", selection | {"uri": "lib://logo"})
    assert (denied.status, denied.code) == (403, "not_selected")
    unknown = operator.post(f"{AGENT}/resources/read", selection | {"uri": "lib://books/../x"})
    assert (unknown.status, unknown.code) == (404, "unknown_resource")


def test_a_prompt_is_rendered_as_the_agent(operator, selection):
    body = selection | {"name": "review", "arguments": {"book": "Emma", "tone": ""}}
    response = operator.post(f"{AGENT}/prompts/get", body)
    assert response.json["result"]["messages"][0]["content"]["text"] == "Review Emma ()"
    invalid = operator.post(f"{AGENT}/prompts/get", selection | {"name": "review"})
    assert (invalid.status, invalid.code) == (400, "invalid_arguments")
    denied = operator.post(f"{AGENT}/prompts/get", selection | {"name": "plain"})
    assert denied.code == "not_selected"


def test_a_server_of_another_organization_cant_be_named(operator, selection):
    foreign = factories.create_http_server(
        factories.create_organization("other"), "http://127.0.0.1:9/mcp"
    )
    body = {"server_id": str(foreign.pk), "uri": "lib://rules"}
    response = operator.post(f"{AGENT}/resources/read", body)
    assert (response.status, response.code) == (404, "not_attached")


def test_a_server_can_be_called_without_an_agent(acme, execute, library):
    reset_review(factories.build_administrator(acme), library.definitions.get(name="lib://logo"))
    resources = execute("resources/list").json["result"]["resources"]
    assert "lib://logo" not in {resource["uri"] for resource in resources}
    assert len(resources) == 4
    templates = execute("resources/templates/list").json["result"]["resourceTemplates"]
    assert templates[0] == {
        "uriTemplate": "lib://books/{book}",
        "name": "book",
        "description": "A book.",
    }
    assert len(execute("prompts/list").json["result"]["prompts"]) == 2
    assert execute("resources/read", uri="lib://rules").json["text"] == "# Be quiet"
    assert execute("prompts/get", name="plain").json["outcome"] == "ok"
    ref = {"type": "ref/prompt", "name": "review"}
    completed = execute("completion/complete", ref=ref, argument={"name": "book", "value": "E"})
    assert len(completed.json["result"]["completion"]["values"]) == 100


def test_invalid_server_requests_are_reported(execute):
    assert execute("resources/read").status == 400
    assert execute("resources/subscribe").code == "unknown_method"
    response = execute("completion/complete", ref={"type": "ref/prompt"}, argument={})
    assert response.status == 400
    ref = {"type": "ref/resource", "uri": "lib://books/{book}"}
    assert execute("completion/complete", ref=ref, argument={}).code == "invalid_arguments"


def test_a_member_can_read_only_as_an_agent(acme, helper, selection, execute):
    member = rest.as_role(acme, Role.MEMBER, helper)
    response = member.post(f"{AGENT}/resources/read", selection | {"uri": "lib://rules"})
    assert response.status in (200, 403, 404)
    assert execute("resources/read", client=member, uri="lib://rules").status in (403, 404)
