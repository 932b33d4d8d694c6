"""Flow labels are inferred from the declarations of tools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.suggested_labels import (
    build_label_context,
    infer_labels,
    list_missing_labels,
)

P, U, S = FlowLabel.PRIVATE_DATA, FlowLabel.UNTRUSTED_CONTENT, FlowLabel.SENDS_OUT
R = FlowLabel.REPEATABLE
LOCAL = build_label_context("stdio")
TEXT = {"type": "string"}


def tool(name, description="", annotations=None, **properties):
    schema = {"type": "object", "properties": properties}
    declaration = {"name": name, "description": description, "inputSchema": schema}
    return declaration | ({"annotations": annotations} if annotations else {})


def labels(name, description="", context=LOCAL, **more):
    return set(infer_labels("tool", tool(name, description, **more), context))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("read_file", {P}),
        ("list_directory", {P}),
        ("query_database", {P}),
        ("search_customers", {P}),
        ("getSecretValue", {P}),
        ("read_mail", {P, U}),
        ("list_emails", {P, U}),
        ("get_issue", {P, U}),
        ("list_pull_request_comments", {P, U}),
        ("web_search", {U}),
        ("search", {U}),
        ("send_email", {S}),
        ("post_message", {S}),
        ("create_issue", {S}),
        ("uploadFile", {S}),
        ("push_files", {S}),
        ("create_webhook", {S}),
        ("write_file", set()),
        ("create_directory", set()),
        ("get_current_time", set()),
        ("convert_time", set()),
        ("calculate", set()),
        ("sequentialthinking", {P, U}),
        ("add", set()),
        ("echo", set()),
    ],
)
def test_labels_are_inferred_from_the_name(name, expected):
    assert labels(name) == expected


def test_a_url_argument_is_an_external_effect():
    assert labels("fetch", url=TEXT) == {U, S}
    assert S in labels("get_page", target={"type": "string", "format": "uri"})
    assert S not in labels("read_file", url={"type": "boolean"})


def test_a_recipient_argument_is_an_external_effect():
    assert S in labels("compose", to=TEXT, body=TEXT)


@pytest.mark.parametrize("name", ["run_shell", "execute_command", "bash", "eval_python"])
def test_a_tool_that_runs_code_has_an_external_effect(name):
    assert S in labels(name, command=TEXT)


def test_a_url_argument_of_a_calculation_isnt_an_external_effect():
    assert S in labels("calculate", callback=TEXT)


def test_the_description_counts_if_the_name_is_inconclusive():
    assert labels("tool7", "Returns the messages in the inbox.") >= {P, U}
    assert S in labels("handle", "Sends the text to a channel.", text=TEXT)


def test_an_unknown_tool_reads_private_and_untrusted_data():
    assert labels("frobnicate") == {P, U}
    remote = build_label_context("http")
    assert labels("frobnicate", context=remote, what=TEXT) == {P, U, S}


def test_a_server_can_add_labels_but_not_remove_them():
    closed = {"openWorldHint": False, "readOnlyHint": True}
    assert labels("send_email", annotations=closed) == {S}
    assert labels("read_mail", annotations=closed) == {P, U, R}
    assert labels("add", annotations={"openWorldHint": True}) == {U}


def test_an_api_operation_reads_or_has_an_external_effect():
    api = build_label_context("openapi")
    assert labels("list_pets", context=api, annotations={"readOnlyHint": True}) == {P, R}
    assert labels("add_pet", context=api, annotations={"readOnlyHint": False}) == {S}


def test_a_read_only_tool_can_be_repeated():
    reads = {"readOnlyHint": True}
    assert R in labels("get_balance", annotations=reads)
    assert R in labels("get_current_time", annotations=reads)
    assert R not in labels("get_balance")
    assert R not in labels("transfer_money", annotations=reads)
    assert R not in labels("fetch", url=TEXT, annotations=reads)


def test_the_method_of_an_api_operation_decides_whether_it_can_be_repeated():
    api = build_label_context("openapi")
    puts = {"readOnlyHint": False, "idempotentHint": True}
    posts = {"readOnlyHint": False, "idempotentHint": False}
    assert R in labels("put_pet", context=api, annotations=puts)
    assert R not in labels("add_pet", context=api, annotations=posts)


def test_a_preset_declares_idempotent_tools():
    context = build_label_context("stdio", {"put_key": ["private-data", "repeatable"]})
    assert labels("put_key", context=context) == {P, R}


def test_resources_are_private_and_prompts_have_no_labels():
    assert infer_labels("resource", {"uri": "file:///x"}, LOCAL) == (P,)
    assert infer_labels("resource_template", {"uriTemplate": "file:///{x}"}, LOCAL) == (P,)
    assert infer_labels("prompt", {"name": "review"}, LOCAL) == ()
    docs = build_label_context("http", ["untrusted-content"])
    assert infer_labels("resource", {"uri": "docs://x"}, docs) == (U,)


def test_the_catalog_declares_the_labels_of_a_server():
    github = build_label_context("http", ["private-data", "untrusted-content", "sends-out"])
    assert labels("get_file_contents", context=github, repo=TEXT) == {P, U}
    assert labels("create_or_update_file", context=github, repo=TEXT) == {P, U, S}
    memory = build_label_context("stdio", ["private-data"])
    assert labels("search_nodes", context=memory, query=TEXT) == {P}
    assert labels("get_current_time", context=github) == set()


def test_the_catalog_can_declare_the_labels_of_each_tool():
    context = build_label_context("stdio", {"reply": ["sends-out"], "peek": []})
    assert labels("reply", context=context) == {S}
    assert labels("peek", context=context) == set()
    assert labels("read_mail", context=context) == {P, U}


def test_only_labels_beyond_the_set_ones_are_suggested():
    assert list_missing_labels((P, S), ["private_data"]) == (S,)
    assert list_missing_labels((P, S), None) == ()
    assert list_missing_labels((), ["sends_out"]) == ()


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    st.sampled_from(["tool", "resource", "prompt", "instructions"]),
    st.dictionaries(
        st.sampled_from(["name", "description", "inputSchema", "annotations", "x"]), ANY
    ),
    st.sampled_from(["stdio", "http", "openapi"]),
    ANY,
)
def test_any_declaration_gets_labels(kind, payload, transport, preset):
    labels_found = infer_labels(kind, payload, build_label_context(transport, preset))
    assert list(labels_found) == [label for label in FlowLabel if label in labels_found]


@given(st.text(max_size=60), st.booleans())
def test_hints_never_remove_a_label(name, only_reads):
    bare = labels(name)
    hinted = labels(name, annotations={"readOnlyHint": only_reads, "openWorldHint": False})
    assert hinted >= bare
