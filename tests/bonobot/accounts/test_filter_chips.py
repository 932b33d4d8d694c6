"""The active filters of a list."""

import re

import pytest

from bonobot.accounts.roles import Role
from tests import admin_client, factories

CHIP = re.compile(r'<span class="bb-filter-chip">(.*?)<a href="\?([^"]*)">', re.S)


@pytest.mark.django_db
def test_each_active_filter_of_a_list_is_shown_and_can_be_removed() -> None:
    acme = factories.create_organization()
    admin_client.create_web_server(acme)
    owner = admin_client.sign_in(acme, Role.OWNER)
    assert not CHIP.search(owner.get("mcp_servers_server_changelist"))
    query = {"waiting": "yes", "q": "web", "status__exact": "error"}
    page = owner.get("mcp_servers_server_changelist", **query)
    chips = {admin_client.get_text(text).strip(): query for text, query in CHIP.findall(page)}
    assert chips == {
        "Status Failed": "q=web&amp;waiting=yes",
        "Definitions Pending review": "q=web&amp;status__exact=error",
    }
    page = owner.get("agents_agent_changelist", enabled__exact="1")
    assert "Enabled <b" in " ".join(CHIP.findall(page)[0][0].split())
    assert ">Yes</b>" in page
