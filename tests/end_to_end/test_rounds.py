"""A deed upon many servers in a real browser: a real worker goes it, dies, and another goes on."""

import re
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from bonobot.tenancy.models import Organization
from bonobot.tenancy.roles import Role
from mcp_servers.models import Round, Stop
from mcp_servers.tasks import carry_out_round
from tests import desk
from tests.agents import casting
from tests.processes import Process

pytestmark = [pytest.mark.browser, pytest.mark.worker]
PATIENCE_MS = 60_000


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    return casting.organization()


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Listen somewhere, and never say a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def sign_in(page: Page, name: str) -> None:
    page.goto("/admin/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill("pw-for-tests")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Acme")).to_be_visible()


def test_a_round_goes_on_after_a_reload_and_after_its_worker_died(
    acme: Organization,
    page: Page,
    silent: socket.socket,
    start_worker: Callable[..., Process],
) -> None:
    casting.person(acme, Role.OWNER, "ann")
    for number in range(4):
        desk.web_server(acme, f"web{number}")
    casting.http_server(acme, f"http://127.0.0.1:{silent.getsockname()[1]}/mcp", "silent")
    first = start_worker()
    sign_in(page, "ann")
    page.goto("/admin/mcp_servers/server/")
    page.locator("#action-toggle").check()
    page.locator("select[name=action]").select_option("refresh_chosen")
    page.get_by_role("button", name="Run").click()
    done = page.get_by_role("status").first
    expect(done).to_have_text("4 of 5 servers are done", timeout=PATIENCE_MS)
    page.reload()
    expect(done).to_have_text("4 of 5 servers are done")
    expect(page.locator("tr", has_text="web2")).to_contain_text("server_unreachable")
    expect(page.locator("tr", has_text="web2")).to_contain_text("Start the server there")

    first.kill()
    round_id = Round.objects.get().pk
    assert Stop.objects.get(server_name="silent").state == Stop.State.RUNNING
    Round.objects.update(held_until=timezone.now() - timedelta(seconds=1))  # its lease is over
    expect(page.locator("[data-part=round]")).to_contain_text("No worker is going this round")
    silent.close()
    start_worker()
    carry_out_round.delay(str(round_id))
    expect(done).to_have_text("5 of 5 servers are done", timeout=PATIENCE_MS)
    expect(page.locator("[data-part=round]")).to_contain_text("Finished")
    expect(page.locator("[data-part=round]")).not_to_contain_text("No worker")

    page.get_by_role("button", name="Do the 5 failed servers again").click()
    expect(page).not_to_have_url(re.compile(str(round_id)))
    expect(done).to_have_text("5 of 5 servers are done", timeout=PATIENCE_MS)
