"""Inferred reads and writes of the stores of real servers' tools."""

import pytest

from mcp_servers.flow_labels.store_use import NO_STORE, StoreUse, infer_store_use
from mcp_servers.flow_labels.suggested_labels import LabelContext, infer_labels
from tests.mcp_servers.labeled_tools import LabeledTool, labeled_tools

LOCAL = LabelContext()
READS, WRITES, BOTH = StoreUse(writes=False), StoreUse(reads=False), StoreUse()
USES = {
    "memory": {
        READS: "read_graph search_nodes open_nodes",
        WRITES: "create_entities create_relations add_observations delete_entities",
    },
    "filesystem": {
        READS: "read_file read_text_file list_directory directory_tree search_files get_file_info",
        WRITES: "write_file create_directory move_file",
        BOTH: "edit_file",
    },
    "git": {
        READS: "git_status git_diff git_log git_show git_branch",
        WRITES: "git_commit git_add git_create_branch",
        BOTH: "git_reset",
    },
    "sqlite": {
        READS: "read_query list_tables describe_table",
        WRITES: "write_query create_table append_insight",
    },
    "time": {NO_STORE: "get_current_time convert_time"},
    "fetch": {StoreUse(reads=False, writes=False, is_public_web=True): "fetch"},
}
CASES = [
    (server, name, use)
    for server, uses in USES.items()
    for use, names in uses.items()
    for name in names.split()
]


def _is(tool: LabeledTool, server: str, name: str) -> bool:
    return (tool.server, tool.declaration["name"]) == (server, name)


@pytest.mark.parametrize(("server", "name", "use"), CASES)
def test_the_store_use_of_real_tools_is_inferred(server: str, name: str, use: StoreUse) -> None:
    (tool,) = [each for each in labeled_tools() if _is(each, server, name)]
    assert infer_store_use("tool", tool.declaration, LOCAL) == use


def test_a_tool_with_private_data_always_reads() -> None:
    for tool in labeled_tools():
        use = infer_store_use("tool", tool.declaration, LOCAL)
        labels = infer_labels("tool", tool.declaration, LOCAL)
        assert use.with_labels(labels).reads or "private_data" not in labels


def test_a_server_can_add_a_write_but_not_remove_one() -> None:
    def use(name: str, hint: bool) -> StoreUse:
        payload = {"name": name, "annotations": {"readOnlyHint": hint}}
        return infer_store_use("tool", payload, LOCAL)

    assert use("save_note", hint=True).writes
    assert use("frobnicate", hint=True).writes
    assert use("get_note", hint=False).writes
    assert not use("get_note", hint=True).writes
    assert use("set_timer", hint=True).writes


def test_the_hint_of_an_api_operation_is_trusted() -> None:
    def use(hint: bool) -> StoreUse:
        payload = {"name": "frobnicate", "annotations": {"readOnlyHint": hint}}
        return infer_store_use("tool", payload, LabelContext("openapi"))

    assert (use(hint=True), use(hint=False)) == (READS, BOTH)
