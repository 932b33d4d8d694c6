"""Resources, prompts, and completion of a third-party server."""

import pytest

from agents.services import attach_server
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories

TEXT = "demo://resource/dynamic/text/{resourceId}"


@pytest.fixture
def everything(acme, helper, node_server):
    config = {"command": "node", "args": [node_server("mcp-server-everything"), "stdio"]}
    spec = ServerSpec(name="everything", transport_type="stdio", endpoint_config=config)
    server = create_server(factories.build_administrator(acme), spec)
    yield factories.approve_server(acme, server, helper)
    get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.mark.npm
def test_resources_prompts_and_completions_of_the_reference_server_work(
    acme, helper, everything, call
):
    counts = {
        kind: everything.definitions.filter(kind=kind).count()
        for kind in ("resource", "resource_template", "prompt")
    }
    assert counts == {"resource": 7, "resource_template": 2, "prompt": 4}
    attach_server(
        *(factories.build_administrator(acme), helper, everything),
        allowed_resources=[TEXT, "demo://resource/static/*"],
        allowed_prompts=["*"],
    )

    def call_server(method, name, arguments=None):
        return call(name, arguments, method=method, server_id=everything.pk)

    static = call_server("resources/read", "demo://resource/static/document/features.md")
    assert "Everything Server" in static.text
    assert "Resource 7" in call_server("resources/read", "demo://resource/dynamic/text/7").text
    with pytest.raises(Problem, match="isn't selected for this agent"):
        call_server("resources/read", "demo://resource/dynamic/blob/7")
    prompt = call_server("prompts/get", "args-prompt", {"city": "Berlin"})
    assert prompt.text == "user: What's weather in Berlin?"
    embedded = call_server(
        "prompts/get", "resource-prompt", {"resourceType": "Text", "resourceId": "1"}
    )
    assert "Resource 1" in embedded.text
    ref = {"ref": {"type": "ref/prompt", "name": "completable-prompt"}}
    argument = {"argument": {"name": "department", "value": "E"}}
    assert (
        call_server("completion/complete", "completable-prompt", ref | argument).text
        == "Engineering"
    )
