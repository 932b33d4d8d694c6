"""Prompts at `/mcp`: skills with arguments, rendered and completed."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.gateway.organization_server.handlers import list_prompts
from agents.models import Agent
from agents.skills import SkillSpec, save_skill
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, token_of
from tests.agents.gateway.organization_server.conftest import PATH

pytestmark = pytest.mark.django_db(transaction=True)

ARGUMENTS = [
    {"name": "version", "description": "Which one", "required": True},
    {"name": "tone", "choices": ["plain", "proud"], "default": "plain"},
]


@pytest.fixture(autouse=True)
def _skills(acme: Organization, helper: Agent) -> None:
    administrator = factories.build_administrator(acme)
    text = "Write notes for ${version}, ${tone}."
    spec = SkillSpec(name="notes", description="Notes", text=text, arguments=ARGUMENTS)
    save_skill(administrator, spec)
    save_skill(administrator, SkillSpec(name="given", text="Enter a value.", agents=["helper"]))
    save_skill(administrator, SkillSpec(name="off", text="Enter a value.", enabled=False))


def test_skills_are_listed_and_rendered_as_prompts(gateway_client: GatewayClient) -> None:
    listed = gateway_client.modern(PATH, "prompts/list").result["prompts"]
    assert [item["name"] for item in listed] == ["given", "notes"]
    arguments = {item["name"]: item for item in listed[1]["arguments"]}
    assert (arguments["version"]["required"], arguments["tone"]["required"]) == (True, False)
    params = {"name": "notes", "arguments": {"version": "1.4"}}
    for result in (
        gateway_client.modern(PATH, "prompts/get", params).result,
        gateway_client.handshake(PATH).ask("prompts/get", params).result,
    ):
        [message] = result["messages"]
        text = "Write notes for 1.4, plain."
        assert message == {"role": "user", "content": {"type": "text", "text": text}}
        assert result["description"] == "Notes"


def test_wrong_arguments_and_unknown_prompts_are_refused(gateway_client: GatewayClient) -> None:
    def get_error(name: str, **arguments: object) -> tuple[int, str]:
        params = {"name": name, "arguments": arguments}
        error = gateway_client.modern(PATH, "prompts/get", params).error
        return error["code"], (error.get("data") or {}).get("code", "")

    assert get_error("notes") == (-32602, "missing_argument")
    assert get_error("notes", version="1", tone="loud") == (-32602, "invalid")
    assert get_error("notes", version=1) == (-32602, "invalid")
    assert get_error("notes", version="1", nothing="1") == (-32602, "unknown_argument")
    assert get_error("off") == get_error("nothing") == (-32602, "")


def test_only_the_skills_of_a_token_are_listed(
    acme: Organization, helper: Agent, gateway_client: GatewayClient
) -> None:
    token = token_of(factories.build_administrator(acme), Role.MEMBER, agent_ids=[helper.pk])
    listed = gateway_client.modern(PATH, "prompts/list", token=token).result["prompts"]
    assert [prompt["name"] for prompt in listed] == ["given"]
    reply = gateway_client.modern(PATH, "prompts/get", {"name": "notes"}, token=token)
    assert reply.error == {"code": -32602, "message": "Unknown prompt: notes"}


def test_arguments_with_choices_are_completed(gateway_client: GatewayClient) -> None:
    def complete(name: str, prefix: str, prompt: str = "notes") -> list[str]:
        params = {
            "ref": {"type": "ref/prompt", "name": prompt},
            "argument": {"name": name, "value": prefix},
        }
        values: list[str] = gateway_client.modern(PATH, "completion/complete", params).result[
            "completion"
        ]["values"]
        return values

    assert complete("tone", "P") == ["plain", "proud"]
    assert complete("tone", "pr") == ["proud"]
    assert complete("version", "1") == []
    params = {"ref": {"type": "ref/prompt", "name": "off"}, "argument": {"name": "x", "value": ""}}
    assert gateway_client.modern(PATH, "completion/complete", params).error["code"] == -32602


def test_the_prompt_list_takes_one_query(acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    with CaptureQueriesContext(connection) as queries:
        assert len(list_prompts(administrator)) == 2
    assert len(queries) == 1
