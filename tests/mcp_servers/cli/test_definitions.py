"""`bonobot mcp label`."""

from tests import admin_client


def test_labels_are_shown_and_set(bonobot, acme):
    server = admin_client.create_web_server(acme)
    admin_client.declare_tool(server, "read_mail")
    admin_client.declare_tool(server, "get_current_time")
    (clock, mail) = bonobot("mcp", "label", "web", "--json").json
    assert (clock["labels"], clock["labels_suggested"]) == (None, [])
    assert mail["labels_suggested"] == ["private_data", "untrusted_content"]
    (mail,) = bonobot("mcp", "label", "web", "read_mail", "--private", "--sends", "--json").json
    assert mail["labels"] == ["private_data", "sends_out"]
    assert "set" in bonobot("mcp", "label", "web", "read_mail", "--none").out
    assert server.definitions.get(name="read_mail").labels == []
    assert "suggested" in bonobot("mcp", "label", "web", "read_mail", "--suggested").out
    assert server.definitions.get(name="read_mail").labels is None
