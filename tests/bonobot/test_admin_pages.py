"""Every page of the admin as each role sees it: visited once and checked for everything.

No page fails or has invalid content; every form refuses an outdated version; no link and no button
leads to a 403; everything is translated to German; no secret of an organization is shown.

`TEST_SUITE=whole`, which CI sets, opens all pages as each role. Otherwise, owners, operators and
reviewers open none: their pages are those of platform administrators or, without buttons, of
auditors.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from html.parser import HTMLParser
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any
from urllib.parse import urldefrag, urljoin
from uuid import UUID

import pytest
import pytest_django
from django.contrib.admin import site
from django.contrib.admin.utils import flatten_fieldsets
from django.db import transaction
from django.test import Client

import bonobot.urls
from agents.models import AccessRequest, Agent, Approval, ElicitationRequest, Session
from bonobot.accounts.admin_base import ScopedAdmin
from bonobot.accounts.admin_base.form_versions import VERSION_FIELD, Form, parse_forms
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action, Role
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Server
from tests import admin_client, factories
from tests.bonobot.canaries import (
    Needles,
    build_needles,
    create_canaries,
    find_leaks,
    store_canaries,
)
from tests.bonobot.test_admin_versions import TOKEN, build_outdated_version, read_fields
from tests.bonobot.test_principal_matrix_admin import (
    NOBODY,
    READ_ONLY,
    get_table_name,
    list_expected_roles,
    list_roles,
)
from tests.screens import (
    ABSENT,
    ADDRESSES,
    Visit,
    build_address,
    create_objects,
    render_without_signals,
    share_rows,
    visit_page,
    visit_pages,
)
from tests.selection import WHOLE

ROLES = (None, Role.OWNER, Role.OPERATOR, Role.REVIEWER, Role.AUDITOR, Role.MEMBER)
# Whose pages are those of others, with more or fewer buttons.
SIMILAR_ROLES = (Role.OWNER, Role.OPERATOR, Role.REVIEWER)
VISITORS = ROLES if WHOLE else tuple(role for role in ROLES if role not in SIMILAR_ROLES)
# IDs, and slugs of presets except where servers are added: there each preset has its own page.
IDS = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|\b\d+\b|(?<=/first-run/preset/)[^/]+|(?<=/servers/presets/)[^/]+"
)
REFUSED = (403, 500)
CLOSED = (403, 404, 405)
# Inputs that differ from page to page.
UNSENT_INPUTS = frozenset({"csrfmiddlewaretoken", "_version"})
# A number with a comma in a style or an SVG attribute.
COMMA = re.compile(r'(?:style|points|x|y|width|height)="[^"]*\d,\d+(?:%|px|em|rem)')


@dataclass(frozen=True)
class Target:
    """Where a link or a button leads; `values` are those of the button and of hidden inputs."""

    method: str
    path: str
    values: tuple[tuple[str, str], ...] = ()


@dataclass
class PageForm:
    """A form of a page."""

    method: str
    path: str
    hidden: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class AdminVisits:
    """An organization with one of everything and a secret of each kind, and the visits of each
    role."""

    organization: Organization
    ids: dict[str, UUID]
    servers: list[Server]
    needles: Needles
    browsers: dict[Role | None, admin_client.AdminClient] = field(default_factory=dict)
    visits: dict[Role | None, list[Visit]] = field(default_factory=dict)

    def get_browser(self, role: Role | None) -> admin_client.AdminClient:
        """Return the browser of a role (None: the platform administrator)."""
        if role not in self.browsers:
            self.browsers[role] = admin_client.sign_in(self.organization, role)
        return self.browsers[role]

    def list_visits(self, role: Role | None) -> list[Visit]:
        """Return the responses of all pages for a role; the platform administrator gets German."""
        if role not in self.visits:
            language = "de" if role is None else "en"
            client = self.get_browser(role).client
            self.visits[role] = visit_pages(client, self.ids, ADDRESSES, accept_language=language)
        return self.visits[role]


@cache
def compute_expected_roles() -> dict[str, frozenset[Role]]:
    """Return the roles that REST admits to what each page shows, by its name in the table."""
    return list_expected_roles()


def is_expected_open(name: str, role: Role) -> bool:
    """Return whether a page, by its URL name, is one that the role may open."""
    page = get_table_name(name)
    return role in compute_expected_roles().get(page, NOBODY) or role in READ_ONLY.get(page, NOBODY)


@pytest.fixture(scope="module")
def admin_visits(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[AdminVisits]:
    """Fill an organization for all tests of this module."""
    with share_rows(django_db_blocker):
        acme, canaries = factories.create_organization(), create_canaries()
        servers = store_canaries(acme, canaries)
        yield AdminVisits(acme, create_objects(acme), servers, build_needles(canaries))


# Forms that must be among those of the test below.
IMPORTANT_FORMS = {
    "agents_agent_policy",
    "agents_agent_configuration",
    "agents_agent_builtin",
    "organization_policy",
    "profile",
    "agents_budget_change",
    "agents_modelendpoint_change",
    "agents_skill_edit",
    "agents_workflow_edit",
    "agents_workflow_triggers",
    "mcp_servers_server_configuration",
    "mcp_servers_preset_change",
    "notices_notificationchannel_change",
    "tenancy_membership_change",
    "tenancy_organization_change",
    "tenancy_user_change",
    "tenancy_token_change",
    "tenancy_issuer_change",
    "tenancy_provider_change",
    "django_celery_beat_periodictask_change",
}


@pytest.mark.whole
def test_every_form_has_a_version_and_refuses_an_outdated_one(admin_visits: AdminVisits) -> None:
    """This test is the first one: members whom other tests create would change some forms."""
    client, names = admin_visits.get_browser(None).client, set()
    for visit in admin_visits.list_visits(None):
        page = visit.content.decode() if visit.is_page else ""
        for form in parse_forms(page, visit.path.partition("?")[0]) if page else []:
            names.add(visit.name)
            with render_without_signals(), transaction.atomic():
                check_form_version(client, visit, form)
                transaction.set_rollback(True)
    assert names >= IMPORTANT_FORMS


def check_form_version(client: Client, visit: Visit, form: Form) -> None:
    """Post a form of a page with an outdated version, and unchanged."""
    values = read_fields(visit.content.decode(), form)
    assert VERSION_FIELD in values, f"{visit.path}: a form without a version"
    outdated = {VERSION_FIELD: build_outdated_version(values[VERSION_FIELD], form)}
    before = AuditRow.objects.count()
    headers = {"Accept-Language": "de"}  # as for the visits

    conflict = client.post(visit.path, values | outdated, headers=headers)

    assert conflict.status_code == 409, (visit.path, conflict.status_code)
    assert b"version_conflict" in conflict.content, visit.path
    # The message says what changed; the page's own note about the error would repeat it.
    links = re.findall(rb'href="[^"]*version_conflict', conflict.content)
    assert len(links) == 1, visit.path
    assert AuditRow.objects.count() == before, visit.path
    assert TOKEN.search(conflict.content.decode()), visit.path
    # The version still matches, so the refused request changed nothing that the form shows.
    response = client.post(visit.path, values, headers=headers)
    assert response.status_code != 409, f"{visit.path}: refused though nothing changed"


@pytest.mark.parametrize("role", VISITORS)
def test_no_page_fails_for_any_role(admin_visits: AdminVisits, role: Role | None) -> None:
    visits = admin_visits.list_visits(role)
    assert len(visits) == len(ADDRESSES)
    for visit in visits:
        # For a member, an object without access is like a missing one.
        absent = role == Role.MEMBER or visit.name in ABSENT
        expected = (200, 204, 302, 403, 405, *((404,) if absent else ()))
        assert visit.status_code in expected, (visit.name, visit.status_code)
        admin_client.check_markup(visit.content.decode() if not visit.streaming else "")


def test_no_page_fails_without_oauth(
    admin_visits: AdminVisits, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OAuth is off by default. Its pages have no address then."""
    settings.BONOBOT_OAUTH = False
    spec = spec_from_file_location("urls_without_oauth", bonobot.urls.__file__)
    assert spec
    assert spec.loader
    urls = module_from_spec(spec)
    spec.loader.exec_module(urls)
    monkeypatch.setitem(sys.modules, spec.name, urls)
    settings.ROOT_URLCONF = spec.name
    addresses = [entry for entry in ADDRESSES if not entry[1] and entry[0] not in OAUTH_PAGES]
    for role in (None, Role.MEMBER) if WHOLE else (Role.MEMBER,):
        client = admin_visits.get_browser(role).client
        for visit in visit_pages(client, admin_visits.ids, addresses):
            assert visit.status_code in (200, 204, 302, 403, 405), visit.name


def test_each_field_of_a_form_has_a_value_for_people_who_only_view_it() -> None:
    """Django shows "-" for a field that neither the model nor the admin has."""
    missing = []
    for model, model_admin in site._registry.items():
        if not isinstance(model_admin, ScopedAdmin) or model_admin.platform_only:
            continue
        views, changes = model_admin.needs_to_view, model_admin.needs_to_change
        if changes is None or not list_roles(*views) - list_roles(changes):
            continue
        names = (
            flatten_fieldsets(model_admin.fieldsets)
            if model_admin.fieldsets
            else model_admin.fields or ()
        )
        own_names = {field.name for field in model._meta.get_fields()}
        missing += [
            f"{model.__name__}.{name}"
            for name in names
            if name not in own_names and not hasattr(model_admin, name)
        ]
    assert not missing


OAUTH_PAGES = ("authorized_clients", "oauth_clients")


@pytest.mark.parametrize("role", VISITORS[1:])
def test_a_page_is_closed_to_roles_that_rest_refuses(admin_visits: AdminVisits, role: Role) -> None:
    """The GET of each page, and a POST to each address that only has POST."""
    expected, faults = compute_expected_roles(), []
    for visit in admin_visits.list_visits(role):
        page, status = get_table_name(visit.name), visit.status_code
        if is_expected_open(visit.name, role) or page.endswith(".history"):
            continue
        if status == 405:
            with transaction.atomic():
                status = admin_visits.get_browser(role).client.post(visit.path).status_code
                transaction.set_rollback(True)
        is_visible_object = page.endswith(".change") and page not in expected
        faults += [f"{page}: {status}"] * (status not in CLOSED and not is_visible_object)
    assert not faults, (
        "add these pages to docs/making/surface_table, in a row with the REST operation that has "
        "the same roles, or close them: " + ", ".join(faults)
    )


@pytest.mark.parametrize("role", VISITORS)
def test_the_highlighted_entry_the_breadcrumbs_and_the_title_agree(
    admin_visits: AdminVisits, role: Role | None
) -> None:
    pages = [visit for visit in admin_visits.list_visits(role) if visit.status_code == 200]
    checked = [visit.name for visit in pages if check_navigation(visit)]
    assert len(checked) > (90 if role in (None, Role.OWNER) else 5)


# Pages of the account belong to no entry; so do those that a role opens by a link only.
OUTSIDE_NAVIGATION = ("profile", "password_change", "authorized_clients", "switch_organization")


def check_navigation(visit: Visit) -> bool:
    """Compare what a page says about its place; return False for fragments and files."""
    page = "" if visit.streaming else admin_client.remove_layout(visit.content.decode())
    if 'id="nav-sidebar"' not in page:
        return False
    sidebar = page.split('id="nav-sidebar"', 1)[1].split('class="bb-scrim"', 1)[0]
    crumbs = page.split('class="bb-crumbs"', 1)[1].split("</nav>", 1)[0]
    titles = re.findall(r">([^<>]+)</(?:a|h1)>", crumbs)
    entries = re.findall(r'aria-current="page"><span[^>]*>[^<]*</span>([^<]+)<', sidebar)
    # Screen readers jump between landmarks: all of the page is in one.
    assert '<aside id="nav-sidebar"' in page, visit.name
    assert sidebar.count("<li>") <= 12, visit.name
    assert crumbs.count("<h1") == 1, visit.name
    document_title = re.findall(r"<title>([^<]*)</title>", page)[0].strip()
    assert document_title == " · ".join([*reversed(titles), "Bonobot"]), visit.name
    if not entries or visit.name.startswith(OUTSIDE_NAVIGATION):
        assert (entries, len(titles)) == ([], 1), visit.name
    else:
        assert [entry.strip() for entry in entries] == titles[:1], visit.name
    return bool(entries)


def test_every_page_opens_in_german(admin_visits: AdminVisits) -> None:
    pages = [visit for visit in admin_visits.list_visits(None) if visit.is_page]
    assert len(pages) > 80
    for visit in pages:
        page = visit.content.decode()
        assert '<html lang="de"' in page, visit.name
        assert "Genehmigungen" in page, visit.name
        assert not COMMA.search(page), (visit.name, COMMA.search(page))


def test_no_page_shows_a_secret(admin_visits: AdminVisits) -> None:
    client = admin_visits.get_browser(None).client
    visits = [visit for role in VISITORS for visit in admin_visits.list_visits(role)]
    server_pages = [
        (name, parameters)
        for name, parameters in ADDRESSES
        if name.startswith("mcp_servers_server_") and "object_id" in parameters
    ]
    with render_without_signals():
        for server in admin_visits.servers:
            ids = admin_visits.ids | {"mcp_servers_server": server.pk}
            visits += [
                visit_page(client, name, build_address(name, parameters, ids))
                for name, parameters in server_pages
            ]
    leaks = [
        (visit.path, kinds)
        for visit in visits
        if (kinds := find_leaks(visit.text, admin_visits.needles))
    ]
    assert leaks == []


@pytest.mark.parametrize("role", [role for role in VISITORS if role not in (None, Role.OWNER)])
def test_no_shown_link_or_button_is_refused(admin_visits: AdminVisits, role: Role) -> None:
    visits = admin_visits.list_visits(role)
    assert list_refused_targets(admin_visits.get_browser(role), visits) == {}


def test_no_shown_link_or_button_is_refused_to_a_member_with_own_objects(
    admin_visits: AdminVisits,
) -> None:
    browser = admin_visits.get_browser(Role.MEMBER)
    person = {"kind": "user", "id": str(browser.user.pk)}
    requester = {f"requested_by_{name}": value for name, value in person.items()}
    starter = {f"started_by_{name}": value for name, value in person.items()}
    with transaction.atomic():
        Agent.objects.get(pk=admin_visits.ids["agents_agent"]).members.add(browser.user)
        for model, owner in (
            (Session, starter),
            *((model, requester) for model in (Approval, AccessRequest, ElicitationRequest)),
        ):
            model.objects.filter(organization=admin_visits.organization).update(**owner)
        visits = [
            visit
            for visit in visit_pages(browser.client, admin_visits.ids)
            if visit.status_code == 200
        ]
        refused = list_refused_targets(browser, visits)
        transaction.set_rollback(True)
    opened = {visit.name for visit in visits}
    assert opened >= {
        "agents_agent_change",
        "agents_session_change",
        "agents_approval_change",
        "agents_accessrequest_change",
        "agents_elicitationrequest_change",
        "agents_skill_change",
        "agents_workflow_change",
    }
    assert refused == {}


@pytest.mark.parametrize("role", sorted({Role.OWNER, *VISITORS} - {None}, key=ROLES.index))
def test_no_shown_link_or_button_is_refused_in_an_empty_organization(
    admin_visits: AdminVisits, role: Role
) -> None:
    addresses = [address for address in ADDRESSES if not address[1]]
    with transaction.atomic():
        browser = admin_client.sign_in(factories.create_organization("empty"), role)
        visits = visit_pages(browser.client, admin_visits.ids, addresses)
        refused = list_refused_targets(browser, visits)
        transaction.set_rollback(True)
    assert refused == {}


def list_refused_targets(
    browser: admin_client.AdminClient, visits: list[Visit]
) -> dict[Target, str]:
    """Return the links and buttons of pages that lead to a 403 or 500, with a page of each."""
    targets: dict[Target, tuple[str, str]] = {}  # an address and its page, for each kind of target
    refused: dict[Target, bool] = {}
    for visit in visits:
        opened = Target("GET", normalize_path(visit.path))
        refused[opened] = visit.status_code in REFUSED
        if visit.status_code != 200 or visit.streaming:
            continue
        for target in LinkCollector(visit.content.decode()).targets:
            path = urldefrag(urljoin(visit.path, target.path))[0]
            if path.startswith("/admin/") and "/logout/" not in path:
                kind = replace(target, path=normalize_path(path))
                targets.setdefault(kind, (path, visit.path))
    for target, (path, _source) in targets.items():
        if target not in refused:
            refused[target] = is_refused(browser, replace(target, path=path))
    assert targets
    return {target: source for target, (_path, source) in targets.items() if refused[target]}


def normalize_path(path: str) -> str:
    """Return the common part of paths of the same kind."""
    return IDS.sub("…", path.partition("?")[0])


def is_refused(browser: admin_client.AdminClient, target: Target) -> bool:
    """Return whether a link, or a button with the hidden values of its form, needs a permission
    that the role doesn't have, even if the page says so in a message; changes are rolled back."""
    refusals: list[Action] = []
    require = Principal.require

    def record_refusal(principal: Principal, action: Action) -> None:
        if not principal.may(action):
            refusals.append(action)
        require(principal, action)

    with pytest.MonkeyPatch.context() as patch, transaction.atomic():
        patch.setattr(Principal, "require", record_refusal)
        if target.method == "GET":
            response = browser.client.get(target.path)
        else:
            response = browser.client.post(target.path, dict(target.values))
        transaction.set_rollback(True)
    return bool(refusals) or response.status_code in REFUSED


class LinkCollector(HTMLParser):
    """Collects the targets of the links and buttons of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: set[Target] = set()
        self.form: PageForm | None = None
        self.forms: dict[str, PageForm] = {}  # by ID, for buttons outside of their form
        self.buttons: list[tuple[PageForm | str, dict[str, str | None]]] = []
        self.disabled_depth = 0  # number of open disabled fieldsets
        self.feed(page)
        self.targets |= {
            _build_target(form, button)
            for owner, button in self.buttons
            if (form := self.forms.get(owner) if isinstance(owner, str) else owner)
        }

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record links and submit buttons that aren't disabled."""
        attributes = dict(attrs)
        if address := attributes.get("data-goes"):
            self.targets.add(Target("GET", address))
        if tag == "a" and attributes.get("href"):
            method = "POST" if "data-post" in attributes else "GET"
            self.targets.add(Target(method, str(attributes["href"])))
        elif tag == "form":
            self.form = PageForm(
                (attributes.get("method") or "get").upper(), attributes.get("action") or ""
            )
            self.forms[attributes.get("id") or ""] = self.form
        elif tag == "fieldset" and (self.disabled_depth or "disabled" in attributes):
            self.disabled_depth += 1
        elif self.disabled_depth or "disabled" in attributes:
            return
        elif tag == "input" and attributes.get("type") == "hidden" and self.form:
            name, value = attributes.get("name") or "", attributes.get("value") or ""
            if name not in UNSENT_INPUTS:
                self.form.hidden.append((name, value))
        elif _is_submit_button(tag, attributes) and (owner := attributes.get("form") or self.form):
            self.buttons.append((owner, attributes))

    def handle_endtag(self, tag: str) -> None:
        """Record the end of a form or a disabled fieldset."""
        if tag == "form":
            self.form = None
        elif tag == "fieldset" and self.disabled_depth:
            self.disabled_depth -= 1


def _build_target(form: PageForm, button: dict[str, str | None]) -> Target:
    path = button.get("formaction") or form.path
    if form.method == "GET":
        return Target("GET", path)
    own = [(button.get("name") or "", button.get("value") or "")] if button.get("name") else []
    return Target(form.method, path, tuple(form.hidden + own))


def _is_submit_button(tag: str, attributes: dict[str, str | None]) -> bool:
    default = "submit" if tag == "button" else ""
    return tag in ("button", "input") and (attributes.get("type") or default) == "submit"
