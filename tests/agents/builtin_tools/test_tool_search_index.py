"""Searching tools by words: the best match first, deterministic."""

from hypothesis import given
from hypothesis import strategies as st

from agents.builtin_tools.toolsets.find_tools import (
    MAX_INDEXED_LENGTH,
    SearchableTool,
    ToolSearchIndex,
    split_words,
)


def build_tool(name, description="", **parameters):
    schema = {
        name: {"type": "string", "description": parameter_description}
        for name, parameter_description in parameters.items()
    }
    return SearchableTool(name, description, {"type": "object", "properties": schema})


TOOLS = (
    build_tool("mcp_web_send_mail", "Sends a message to somebody.", address="Who gets it."),
    build_tool(
        "mcp_web_listInvoices", "Lists invoices of a customer.", customer="The customer's number."
    ),
    build_tool("mcp_web_delete_invoice", "Deletes one for ever.", number="Which invoice."),
    build_tool("mcp_web_weather", "How warm it is somewhere.", city="The town."),
)
INDEX = ToolSearchIndex(TOOLS)


def test_a_match_in_the_name_ranks_higher_than_in_the_description():
    assert INDEX.search("delete an invoice", 5)[:2] == [
        "mcp_web_delete_invoice",
        "mcp_web_listInvoices",
    ]


def test_words_are_found_in_names_descriptions_and_parameters():
    assert INDEX.search("warm", 5) == ["mcp_web_weather"]
    assert INDEX.search("city", 5) == ["mcp_web_weather"]
    assert INDEX.search("town", 5) == ["mcp_web_weather"]
    assert INDEX.search("address", 5) == ["mcp_web_send_mail"]


def test_word_forms_and_camel_case_match():
    assert split_words("listInvoices, LISTING_invoice") == ["list", "invoice", "list", "invoice"]
    assert INDEX.search("listing INVOICES", 1) == ["mcp_web_listInvoices"]


def test_stop_words_find_nothing():
    assert INDEX.search("please do the thing for me", 5) == []
    assert INDEX.search("", 5) == []
    assert ToolSearchIndex(()).search("mail", 5) == []


def test_a_word_in_all_tools_doesnt_affect_the_ranking():
    """Every name begins with the server's name, so that prefix must not affect the order."""
    assert INDEX.search("web mail", 1) == ["mcp_web_send_mail"]


def test_a_long_description_doesnt_rank_higher():
    spam = build_tool("mcp_web_spam", "mail " * MAX_INDEXED_LENGTH)
    assert ToolSearchIndex((*TOOLS, spam)).search("send mail", 1) == ["mcp_web_send_mail"]


def test_unusual_schemas_are_indexed_as_far_as_possible():
    odd = SearchableTool(
        "odd_one", "x", {"properties": {"a": True, "b": {"description": 7}, "c": None}}
    )
    other_tool = SearchableTool("strange_one", "y", {"properties": ["mail"]})
    assert ToolSearchIndex((odd, other_tool)).search("strange mail", 5) == ["strange_one"]


@given(
    st.dictionaries(st.text(min_size=1, max_size=12), st.text(max_size=60), max_size=8),
    st.text(max_size=40),
    st.integers(1, 5),
)
def test_a_search_is_bounded_deterministic_and_independent_of_order(descriptions, query, limit):
    tools = [build_tool(name, description) for name, description in descriptions.items()]
    results = ToolSearchIndex(tools).search(query, limit)
    assert results == ToolSearchIndex(reversed(tools)).search(query, limit)
    assert len(results) <= limit
    assert len(set(results)) == len(results)
    assert set(results) <= descriptions.keys()


def test_synonyms_are_found_but_rank_lower_than_the_word():
    tools = (build_tool("mcp_a_remove_page"), build_tool("mcp_a_delete_page"))
    assert ToolSearchIndex(tools).search("erase page", 2) == [
        "mcp_a_delete_page",
        "mcp_a_remove_page",
    ]
    assert ToolSearchIndex(tools).search("remove", 2)[0] == "mcp_a_remove_page"


def test_the_servers_name_is_searched():
    tool = SearchableTool("list_pages", "", {}, "Wiki of the sales team")
    assert ToolSearchIndex((*TOOLS, tool)).search("wiki", 1) == ["list_pages"]


def test_successful_calls_rank_a_tool_higher_among_equals_only():
    tools = (build_tool("mcp_a_read_page"), build_tool("mcp_b_read_page"), *TOOLS)
    index = ToolSearchIndex(tools)
    assert index.search("read page", 1, {"mcp_b_read_page": 3}) == ["mcp_b_read_page"]
    assert index.search("weather", 1, {"mcp_b_read_page": 9}) == ["mcp_web_weather"]
    assert index.search("read page", 1, {"gone": 9}) == ["mcp_a_read_page"]
