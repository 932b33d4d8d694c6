"""Definitions grouped by risk, as lists and confirmations show them."""

import pytest
from django.template.loader import render_to_string

from mcp_servers.admin.risk_groups import group_by_risk
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import load_label_context
from tests import admin_client, factories


@pytest.mark.django_db
def test_tools_with_an_external_effect_say_how_many_are_declared_read_only() -> None:
    server = admin_client.create_web_server(factories.create_organization())
    rows = [
        admin_client.declare_tool(server, name, annotations={"readOnlyHint": is_read_only})
        for name, is_read_only in (("search", True), ("publish", False), ("look_up", True))
    ]
    for row in rows:
        row.labels = [FlowLabel.SENDS_OUT]
    rows[2].labels = []
    external, read_only = group_by_risk(rows, load_label_context(server))
    assert (external.names, external.read_only_names) == (["search", "publish"], ["search"])
    assert (read_only.names, read_only.read_only_names) == (["look_up"], [])
    html = render_to_string("admin/definitions/risk_groups.html", {"groups": [external, read_only]})
    text = admin_client.get_text(html)
    assert "1 is read-only according to its server" in text
    assert "publish Read-only according to the server search" in text
    assert text.count("Read-only according to the server") == 1
