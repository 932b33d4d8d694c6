"""The navigation: its counts of what is pending, and its names in the documentation."""

import re
from collections.abc import Iterator

import pytest
from django.utils import timezone

from agents.admin.navigation import (
    SETTINGS_AREA,
    SIDEBAR,
    Groups,
    NavigationEntry,
    load_pending_counts,
)
from agents.elicitations.services import can_answer
from agents.models import Approval, ElicitationRequest
from agents.sessions.services import start_session
from bonobot.accounts.roles import Action, Role
from tests import admin_client, factories
from tests.parts import ROOT

PAGE_PATH = re.compile(r"\*([A-Z][\w -]+(?: → [^*→]+)+)\*")
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]


def list_entries(groups: Groups) -> dict[str, NavigationEntry]:
    return {str(entry.title): entry for _title, entries in groups for entry in entries}


def find_wrong_names(text: str) -> Iterator[str]:
    """Yield each path of a page, such as *Settings → Tokens*, that the navigation doesn't have."""
    for match in PAGE_PATH.finditer(text):
        first, second, *_others = match[1].split(" → ")
        is_right = second in settings if first == "Settings" else first in sidebar
        if not is_right:
            yield match[0]


sidebar, settings = list_entries(SIDEBAR), list_entries(SETTINGS_AREA)


@pytest.mark.parametrize(
    "text", ["*Governance → Rules*", "*Settings → Policies*", "*Tokens → Create token*"]
)
def test_a_page_that_the_navigation_doesnt_have_is_found(text: str) -> None:
    assert [*find_wrong_names(f"See {text}.")] == [text]


def test_the_documentation_names_pages_as_the_navigation_does() -> None:
    wrong = {str(page): [*find_wrong_names(page.read_text("utf-8"))] for page in PAGES}
    assert {page: names for page, names in wrong.items() if names} == {}


ALL_COUNTS = {"inbox": "2", "calls": "1", "access_requests": "1", "definitions": "1"}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("role", "answered", "only_viewed", "title_count"),
    [
        (Role.OWNER, ALL_COUNTS, {}, "inbox"),
        (Role.OPERATOR, {"inbox": "1", "access_requests": "1"}, {"calls": "1"}, "inbox"),
        (Role.REVIEWER, ALL_COUNTS, {}, "inbox"),
        (Role.AUDITOR, {}, {"calls": "1", "access_requests": "1"}, ""),
    ],
)
def test_badges_and_titles_count_what_the_person_can_answer_and_tabs_also_what_they_view(
    role: Role, answered: dict[str, str], only_viewed: dict[str, str], title_count: str
) -> None:
    acme = factories.create_organization()
    factories.create_approval(factories.create_agent(acme))
    factories.create_access_request(acme)
    admin_client.declare_tool(admin_client.create_web_server(acme))
    page = admin_client.sign_in(acme, role).get("agents_approval_changelist")
    sidebar, tabs = page.split('class="bb-tabs"', 1)[0], page.split('class="bb-tabs"', 1)[1]
    own_counts = re.findall(
        r'data-tone="warn"\s+data-live-count="(\w+)"\s+title="[^"]+"\s*>(\d+)<', page
    )
    other_counts = re.findall(
        r'"bb-count"\s+data-live-count="(\w+)"\s+title="[^"]+"\s*>(\d+)<', page
    )
    assert dict(own_counts) == answered
    assert dict(other_counts) == only_viewed
    # The title has the number of the sidebar's entry.
    assert f'data-title-count="{title_count}"' in page
    approvals = sidebar.split(admin_client.build_url("agents_approval_changelist"), 1)[1]
    assert re.findall(r'data-live-count="(\w+)"', approvals.split("</a>", 1)[0]) == (
        [title_count] if title_count else []
    )
    assert ("data-live-count" in tabs) == bool(answered or only_viewed)


@pytest.mark.django_db
def test_each_organization_gets_its_own_counts_of_what_is_pending_now() -> None:
    acme, other_organization = (
        factories.create_organization("acme"),
        factories.create_organization("other"),
    )
    _session, approval = factories.create_waiting_session(factories.create_agent(acme), "hello")
    factories.create_access_request(other_organization)
    for _ in range(2):  # the second time with the query of the first
        counts, other_counts = (
            load_pending_counts(acme.pk).select_for(factories.build_administrator(acme)),
            load_pending_counts(other_organization.pk).select_for(
                factories.build_administrator(other_organization)
            ),
        )
        assert (counts.calls, counts.access_requests, counts.inbox) == (1, 0, 1)
        assert (other_counts.calls, other_counts.access_requests, other_counts.inbox) == (0, 1, 1)
    Approval.objects.filter(pk=approval.pk).update(expires_at=timezone.now())
    administrator = factories.build_administrator(acme)
    assert load_pending_counts(acme.pk).select_for(administrator).inbox == 0


@pytest.mark.django_db
def test_elicitation_requests_are_counted_for_who_can_answer_them() -> None:
    acme = factories.create_organization()
    helper, server = factories.create_agent(acme), admin_client.create_web_server(acme)
    roles = (Role.MEMBER, Role.OPERATOR, Role.OWNER, Role.REVIEWER, Role.AUDITOR)
    people = {role: factories.create_member(acme, role) for role in roles}
    helper.members.add(people[Role.MEMBER].id)
    for _ in range(2):
        factories.create_elicitation(start_session(people[Role.MEMBER], helper, "hi"), server)
    by_token = factories.create_elicitation(start_session(people[Role.OWNER], helper, "hi"), server)
    type(by_token).objects.filter(pk=by_token.pk).update(requested_by_kind="token")
    organization_counts = load_pending_counts(acme.pk)
    counts = {role: organization_counts.select_for(person) for role, person in people.items()}
    assert {role: (count.questions, count.inbox) for role, count in counts.items()} == {
        Role.MEMBER: (2, 2),
        Role.OPERATOR: (0, 0),
        Role.OWNER: (1, 1),
        Role.REVIEWER: (3, 0),  # they view the requests, and can't answer them
        Role.AUDITOR: (3, 0),
    }
    for role, person in people.items():
        pending = ElicitationRequest.objects.visible_to(person).pending()
        if person.may(Action.RUN_AGENTS):
            pending = [request for request in pending if can_answer(person, request)]
        assert len(pending) == counts[role].questions, role


@pytest.mark.django_db
def test_the_page_of_the_settings_is_their_only_navigation() -> None:
    browser = admin_client.sign_in(factories.create_organization(), Role.OWNER)
    assert "bb-settings-navigation" not in browser.get("settings")
    assert "bb-settings-navigation" in browser.get("agents_modelendpoint_changelist")


@pytest.mark.django_db
def test_the_search_of_a_list_names_its_rows() -> None:
    acme = factories.create_organization()
    factories.create_agent(acme)
    page = admin_client.sign_in(acme, Role.OWNER).get("agents_agent_changelist")
    assert 'placeholder="Search agents"' in page
