"""Labels of data that was written after its reviewer loaded the page aren't cleared."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest
from django.db import connections

from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.builtin_tools.toolset_options import NOTES_TOOLSET
from agents.calls.pipeline import CallOutcome
from agents.flow_labels import services
from agents.flow_labels.services import (
    build_store_version_parts,
    clear_agent_stores,
    list_agent_stores,
)
from agents.models import Agent
from agents.services import AgentSpec, update_agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.db.object_version import compute_version
from bonobot.core.problems import Conflict
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import FlowCell
from mcp_servers.flow_labels import build_flow_key, decode_labels, store_labels
from mcp_servers.flow_labels.store_labels import clear_store_labels, load_server_store
from tests import admin_client, factories, rest
from tests.agents.labeled_stores import BOTH, Caller, World, create_world, end_call

pytestmark = pytest.mark.django_db(transaction=True)

Call = Callable[..., CallOutcome]
WORKSPACE, NOTES, INSTRUCTIONS = range(3)


class Scene:
    """A caller with labels that writes to each kind of store."""

    def __init__(self, world: World, call: Call) -> None:
        self.world, self.call = world, call
        toolsets = {NOTES_TOOLSET: {}, "filesystem": {"read_only": False}}
        spec = AgentSpec(name=world.helper.name, builtin_tools=toolsets)
        update_agent(world.administrator, world.helper, spec)
        self.session = world.start_session().read_labeled_data()
        self.token, text = world.issue_organization_token()
        self.token.read_labeled_data()
        self.rest = rest.RestClient(text)
        self.reviewer = factories.create_member(world.acme, Role.REVIEWER)

    def write_data(self, caller: Caller | None = None) -> None:
        """Write to the server."""
        caller = caller or self.session
        assert caller.use("mcp_records_create_record", {"text": "x"}) == ""

    def write_configuration(self, caller: Caller | None = None) -> None:
        """Write the server's name."""
        name = {"name": f"Records {next(self.world.numbers)}"}
        client = self.rest if caller is None else rest.as_role(self.world.acme, Role.OWNER)
        assert client.patch(f"mcp-servers/{self.world.records.pk}", name).status == 200

    def write_file(self, caller: Caller | None = None) -> None:
        """Write to the agent's workspace."""
        self._use("write_file", {"path": "a", "text": "x"}, caller or self.session)

    def write_note(self, caller: Caller | None = None) -> None:
        """Replace a note, or write another without labels."""
        self._use("remember", {"title": "b" if caller else "a", "text": "x"}, caller)

    def write_second_note(self, caller: Caller | None = None) -> None:
        """Write a note with another title each time."""
        self._use("remember", {"title": str(next(self.world.numbers)), "text": "x"}, caller)

    def write_instructions(self, caller: Caller | None = None) -> None:
        """Write the agent's instructions; unlabeled: something else of the agent."""
        number = next(self.world.numbers)
        if caller is None:
            client, fields = self.rest, {"instructions": f"Say {number}."}
        else:
            client, fields = rest.as_role(self.world.acme, Role.OWNER), {"max_turns": 50 + number}
        assert client.patch("agents/helper", fields).status == 200

    def _use(self, tool: str, arguments: dict[str, str], caller: Caller | None) -> None:
        session = (caller or self.session).session
        assert session is not None
        assert self.call(tool, arguments, session_id=session.pk).outcome == "ok"


Write = Callable[..., None]
OF_SERVERS: tuple[Write, ...] = (Scene.write_data, Scene.write_configuration)
OF_AGENTS: dict[Write, int] = {
    Scene.write_file: WORKSPACE,
    Scene.write_note: NOTES,
    Scene.write_second_note: NOTES,
    Scene.write_instructions: INSTRUCTIONS,
}


@pytest.fixture
def scene(acme: Organization, helper: Agent, call: Call) -> Iterator[Scene]:
    with create_world(acme, helper) as world:
        yield Scene(world, call)


def _get_server_version(scene: Scene) -> str:
    return compute_version(load_server_store(scene.world.records).version_parts)


def _get_agent_version(scene: Scene) -> str:
    return compute_version(build_store_version_parts(list_agent_stores(scene.world.helper)))


@pytest.mark.parametrize("write", OF_SERVERS, ids=lambda write: write.__name__)
def test_labels_of_a_server_are_kept_when_it_was_written_again(scene: Scene, write: Write) -> None:
    scene.write_data()
    write(scene)
    version = _get_server_version(scene)
    write(scene)
    with pytest.raises(Conflict) as caught:
        clear_store_labels(scene.reviewer, scene.world.records, version=version)
    assert (caught.value.code, caught.value.status) == ("version_conflict", 409)
    assert load_server_store(scene.world.records).labels == BOTH
    seen_version = _get_server_version(scene)
    clear_store_labels(scene.reviewer, scene.world.records, version=seen_version)
    assert load_server_store(scene.world.records).labels == ()


@pytest.mark.parametrize("write", OF_AGENTS, ids=lambda write: write.__name__)
def test_labels_of_an_agent_are_kept_when_its_store_was_written_again(
    scene: Scene, write: Write
) -> None:
    write(scene)
    version, helper = _get_agent_version(scene), scene.world.helper
    write(scene)
    with pytest.raises(Conflict) as caught:
        clear_agent_stores(scene.reviewer, helper, version=version)
    assert (caught.value.code, caught.value.status) == ("version_conflict", 409)
    store = list_agent_stores(helper)[OF_AGENTS[write]]
    assert store.labels == BOTH
    assert store.written_at is not None
    clear_agent_stores(scene.reviewer, helper, version=_get_agent_version(scene))
    assert [store.labels for store in list_agent_stores(helper)] == [(), (), ()]


@pytest.mark.parametrize("write", OF_SERVERS, ids=lambda write: write.__name__)
def test_labels_of_a_server_are_cleared_when_only_others_wrote(scene: Scene, write: Write) -> None:
    scene.write_data()
    write(scene)
    version = _get_server_version(scene)
    write(scene, scene.world.start_session())
    clear_store_labels(scene.reviewer, scene.world.records, version=version)
    assert load_server_store(scene.world.records).labels == ()


@pytest.mark.parametrize("write", OF_AGENTS, ids=lambda write: write.__name__)
def test_labels_of_an_agent_are_cleared_when_only_others_wrote(scene: Scene, write: Write) -> None:
    write(scene)
    version, helper = _get_agent_version(scene), scene.world.helper
    write(scene, scene.world.start_session())
    clear_agent_stores(scene.reviewer, helper, version=version)
    assert [store.labels for store in list_agent_stores(helper)] == [(), (), ()]


@pytest.mark.parametrize("write", [*OF_SERVERS, *OF_AGENTS], ids=lambda write: write.__name__)
def test_labels_of_a_write_during_the_clearing_are_kept(
    scene: Scene, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    if write in OF_SERVERS:
        scene.write_data()
    write(scene)

    def write_with_own_connection() -> None:
        try:
            write(scene)
        finally:
            connections.close_all()

    writer = Thread(target=write_with_own_connection)

    def write_meanwhile(*args: Any) -> None:
        writer.start()
        writer.join(timeout=0.5)

    module = store_labels if write in OF_SERVERS else services
    monkeypatch.setattr(module, "require_store_version", write_meanwhile)
    if write in OF_SERVERS:
        clear_store_labels(scene.reviewer, scene.world.records)
    else:
        clear_agent_stores(scene.reviewer, scene.world.helper)
    writer.join()
    key = build_flow_key(scene.world.acme.pk, "text", scene.world.records.pk)
    labels = {
        Scene.write_data: load_server_store(scene.world.records).labels,
        Scene.write_configuration: tuple(
            label
            for cell in FlowCell.objects.filter(pk=key)
            for label in decode_labels(cell.labels)
        ),
    } | {
        written: list_agent_stores(scene.world.helper)[position].labels
        for written, position in OF_AGENTS.items()
    }
    assert labels[write] == BOTH


def test_labels_are_kept_while_a_call_with_labels_is_running(scene: Scene) -> None:
    call = scene.session.start_call("mcp_records_create_record", {"text": "x"})
    version = _get_server_version(scene)
    with pytest.raises(Conflict) as caught:
        clear_store_labels(scene.reviewer, scene.world.records, version=version)
    assert (caught.value.code, caught.value.status) == ("still_running", 409)
    assert "create_record" in caught.value.detail
    assert load_server_store(scene.world.records).labels == BOTH
    end_call(call)
    clear_store_labels(scene.reviewer, scene.world.records, version=version)
    assert load_server_store(scene.world.records).labels == ()


def test_labels_of_a_server_without_labeled_data_are_cleared_while_calls_are_running(
    scene: Scene,
) -> None:
    scene.write_configuration()
    scene.world.start_session().start_call("mcp_records_create_record", {"text": "x"})
    clear_store_labels(scene.reviewer, scene.world.records)


def test_a_file_keeps_its_labels_when_they_are_cleared_while_it_is_written(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long run of a program, for example, whose later files its reviewer can't have seen."""
    tool = BUILTIN_TOOLS["write_file"]

    async def write_and_clear(*args: Any) -> Any:
        result = await tool.run(*args)
        await get_runtime().run_orm(clear_agent_stores, scene.reviewer, scene.world.helper)
        return result

    monkeypatch.setitem(BUILTIN_TOOLS, "write_file", replace(tool, run=write_and_clear))
    scene.write_file()
    assert list_agent_stores(scene.world.helper)[WORKSPACE].labels == BOTH


def test_the_end_of_a_tool_that_writes_files_changes_the_version(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, versions = BUILTIN_TOOLS["write_file"], []

    async def load_version_and_write(*args: Any) -> Any:
        versions.append(await get_runtime().run_orm(_get_agent_version, scene))
        return await tool.run(*args)

    monkeypatch.setitem(BUILTIN_TOOLS, "write_file", replace(tool, run=load_version_and_write))
    scene.write_file()
    with pytest.raises(Conflict) as caught:
        clear_agent_stores(scene.reviewer, scene.world.helper, version=versions[0])
    assert caught.value.code == "version_conflict"


SURFACES: list[tuple[str, Write]] = [
    ("mcp_servers_server", Scene.write_data),
    ("agents_agent", Scene.write_file),
]


@pytest.mark.parametrize(("admin_name", "write"), SURFACES)
def test_the_page_keeps_labels_of_data_written_after_it_was_loaded(
    scene: Scene, admin_name: str, write: Write
) -> None:
    write(scene)
    client = admin_client.sign_in(scene.world.acme, Role.REVIEWER, "eve")
    row: Any = scene.world.records if admin_name == "mcp_servers_server" else scene.world.helper
    page_name = "data_labels" if admin_name == "mcp_servers_server" else "builtin"

    def clear_labels(page: str) -> list[str]:
        (version,) = re.findall(r'name="labels_version" value="([^"]+)"', page)
        client.post(f"{admin_name}_clear_data_labels", row.pk, labels_version=version)
        return list(client.messages)

    page = client.get(f"{admin_name}_{page_name}", row.pk)
    write(scene)
    assert clear_labels(page)[0].startswith("Not cleared.")
    assert clear_labels(client.get(f"{admin_name}_{page_name}", row.pk)) == [
        "Data labels cleared. Effective immediately."
    ]


@pytest.mark.parametrize(("admin_name", "write"), SURFACES)
def test_rest_keeps_labels_of_data_written_after_the_version(
    scene: Scene, admin_name: str, write: Write
) -> None:
    objects = {
        "mcp_servers_server": f"mcp-servers/{scene.world.records.pk}",
        "agents_agent": "agents/helper",
    }
    path = f"{objects[admin_name]}/store-labels"
    write(scene)
    client = rest.as_role(scene.world.acme, Role.REVIEWER)
    response = client.get(path)
    assert response.headers["ETag"] == f'"{response.json["version"]}"'
    write(scene)
    refused = client.delete(path, If_Match=response.headers["ETag"])
    assert (refused.status, refused.code) == (412, "precondition_failed")
    assert client.send("DELETE", path, {"version": response.json["version"]}).code == (
        "version_conflict"
    )
    assert client.delete(path, If_Match=client.get(path).headers["ETag"]).status == 204
    assert client.get(path).json["version"] != response.json["version"]


def test_a_token_clears_the_labels_of_instructions_that_it_did_not_read(scene: Scene) -> None:
    scene.write_instructions()
    client = rest.as_role(scene.world.acme, Role.REVIEWER)
    version = client.get("agents/helper/store-labels").json["version"]
    assert client.delete("agents/helper/store-labels", If_Match=f'"{version}"').status == 204
    assert list_agent_stores(scene.world.helper)[INSTRUCTIONS].labels == ()
