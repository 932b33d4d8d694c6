"""The audit's page in a real browser: a real worker verifies the chain, filters are kept."""

import re

import pytest
from django.db import connection
from playwright.sync_api import Page, expect

from bonobot.ledger.models import AuditRow
from bonobot.tenancy.models import Organization
from bonobot.tenancy.roles import Role
from tests.agents import casting
from tests.processes import Process

pytestmark = [pytest.mark.browser, pytest.mark.worker]
PATIENCE_MS = 60_000
AUDIT = "/admin/ledger/auditrow/"


@pytest.fixture
def acme(transactional_db: None) -> Organization:
    made = casting.organization()
    casting.http_server(made, "https://mcp.example.com/mcp", "web")
    return made


@pytest.fixture
def ann(acme: Organization, page: Page) -> Page:
    """An owner's browser, signed in."""
    casting.person(acme, Role.OWNER, "ann")
    page.goto("/admin/")
    page.get_by_label("Username").fill("ann")
    page.get_by_label("Password").fill("pw-for-tests")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Acme")).to_be_visible()
    return page


def test_a_worker_verifies_the_chain_and_a_fault_leads_to_its_row(
    ann: Page, worker: Process
) -> None:
    ann.goto(AUDIT)
    verification = ann.locator("#verification")
    verification.get_by_role("button", name="Verify").click()
    expect(verification).to_contain_text("Verified up to entry", timeout=PATIENCE_MS)
    expect(verification).to_contain_text("whole")

    altered = AuditRow.objects.latest("seq")
    with connection.cursor() as cursor:  # past the product, as an intruder would
        cursor.execute(
            "UPDATE ledger_auditrow SET actor_label = %s WHERE seq = %s", ["nobody", altered.seq]
        )
    verification.get_by_role("button", name="From the beginning").click()
    expect(verification.get_by_role("alert")).to_contain_text("altered", timeout=PATIENCE_MS)
    verification.get_by_role("link", name="See the row").first.click()
    expect(ann).to_have_url(re.compile(str(altered.pk)))


def test_a_filter_is_kept_used_and_removed(ann: Page) -> None:
    ann.goto(f"{AUDIT}?event_type__exact=change")
    saved = ann.locator("details.bb-saved")
    saved.locator("summary").click()
    saved.get_by_label("Name of the filter").fill("What changed")
    saved.get_by_role("button", name="Keep this filter").click()
    expect(ann.get_by_text("The filter What changed is kept.")).to_be_visible()

    ann.goto(AUDIT)
    saved.locator("summary").click()
    saved.get_by_role("link", name="What changed").click()
    expect(ann).to_have_url(re.compile("event_type__exact=change"))
    saved.locator("summary").click()
    saved.get_by_role("button", name="Remove").click()
    expect(saved.get_by_role("link", name="What changed")).to_have_count(0)
