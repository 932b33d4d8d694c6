"""Every page of the admin as each role sees it: one visit to each, looked at for everything.

No page fails or holds what no page may; no link and no button ends in a 403; all of it is there in
German; no secret of an organization is shown.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin
from uuid import UUID

import pytest
import pytest_django
from django.db import transaction

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.models import Server
from tests import admin_client, factories
from tests.bonobot.canaries import (
    Needles,
    build_needles,
    create_canaries,
    find_leaks,
    store_canaries,
)
from tests.screens import (
    ABSENT,
    ADDRESSES,
    Visit,
    address,
    fill,
    only_answers,
    shared_rows,
    visit_page,
    visit_pages,
)

ROLES = (None, Role.OWNER, Role.OPERATOR, Role.REVIEWER, Role.AUDITOR, Role.MEMBER)
# Ids, and slugs of presets but where servers are added: there the page of each one is opened.
IDS = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|\b\d+\b|(?<=/first-run/preset/)[^/]+|(?<=/servers/presets/)[^/]+"
)
REFUSED = (403, 500)
# A number with a comma where a browser reads a style or a picture.
COMMA = re.compile(r'(?:style|points|x|y|width|height)="[^"]*\d,\d+(?:%|px|em|rem)')


@dataclass
class Tour:
    """An organization with one of everything and a secret of each kind, and who visits it."""

    organization: Organization
    ids: dict[str, UUID]
    servers: list[Server]
    sought: Needles
    seats: dict[Role | None, admin_client.Desk] = field(default_factory=dict)
    visits: dict[Role | None, list[Visit]] = field(default_factory=dict)

    def seat(self, role: Role | None) -> admin_client.Desk:
        """Return the desk of a role (None: the platform administrator)."""
        if role not in self.seats:
            self.seats[role] = admin_client.sit(self.organization, role)
        return self.seats[role]

    def visited(self, role: Role | None) -> list[Visit]:
        """Return what a role was answered at each address; platform administrators read German."""
        if role not in self.visits:
            language = "de" if role is None else "en"
            client = self.seat(role).client
            self.visits[role] = visit_pages(client, self.ids, accept_language=language)
        return self.visits[role]


@pytest.fixture(scope="module")
def tour(django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker) -> Iterator[Tour]:
    """Fill an organization that all tests of this module visit."""
    with shared_rows(django_db_blocker):
        acme, canaries = factories.create_organization(), create_canaries()
        servers = store_canaries(acme, canaries)
        yield Tour(acme, fill(acme), servers, build_needles(canaries))


@pytest.mark.parametrize("role", ROLES)
def test_no_page_fails_for_any_role(tour: Tour, role: Role | None) -> None:
    visits = tour.visited(role)
    assert len(visits) == len(ADDRESSES)
    for visit in visits:
        # A member finds what wasn't given to them as little as what doesn't exist.
        absent = role == Role.MEMBER or visit.name in ABSENT
        expected = (200, 302, 403, 405, *((404,) if absent else ()))
        assert visit.status_code in expected, (visit.name, visit.status_code)
        admin_client.page_of(visit)


def test_every_page_opens_in_german(tour: Tour) -> None:
    pages = [visit for visit in tour.visited(None) if visit.is_page]
    assert len(pages) > 80
    for visit in pages:
        page = visit.content.decode()
        assert '<html lang="de"' in page, visit.name
        assert "Genehmigungen" in page, visit.name
        assert not COMMA.search(page), (visit.name, COMMA.search(page))


def test_no_page_shows_a_secret(tour: Tour) -> None:
    client = tour.seat(None).client
    visits = [visit for role in ROLES for visit in tour.visited(role)]
    of_servers = [
        (name, parameters)
        for name, parameters in ADDRESSES
        if name.startswith("mcp_servers_server_") and "object_id" in parameters
    ]
    with only_answers():
        for server in tour.servers:
            ids = tour.ids | {"mcp_servers_server": server.pk}
            visits += [
                visit_page(client, name, address(name, parameters, ids))
                for name, parameters in of_servers
            ]
    found = [
        (visit.path, kinds) for visit in visits if (kinds := find_leaks(visit.text, tour.sought))
    ]
    assert found == []


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.REVIEWER, Role.AUDITOR, Role.MEMBER])
def test_no_shown_link_or_button_is_refused(tour: Tour, role: Role) -> None:
    seat = tour.seat(role)
    offers: dict[tuple[str, str], tuple[str, str]] = {}  # by kind: where to, and where it was
    statuses: dict[tuple[str, str], int] = {}
    for visit in tour.visited(role):
        statuses["GET", kind_of(visit.path)] = visit.status_code
        if visit.status_code != 200 or visit.streaming:
            continue
        for method, to in Offers(visit.content.decode()).found:
            path = urldefrag(urljoin(visit.path, to))[0]
            if path.startswith("/admin/") and "/logout/" not in path:
                offers.setdefault((method, kind_of(path)), (path, visit.path))
    for offer, (path, _here) in offers.items():
        if offer not in statuses:
            statuses[offer] = answered(seat, offer[0], path)
    refused = {offer: offers[offer] for offer in offers if statuses[offer] in REFUSED}
    assert offers
    assert not refused, refused


def kind_of(path: str) -> str:
    """Return what addresses of the same kind have in common."""
    return IDS.sub("…", path.partition("?")[0])


def answered(seat: admin_client.Desk, method: str, path: str) -> int:
    """Return what a link, or a form that nothing was entered into, leads to; nothing stays done."""
    if method == "GET":
        return int(seat.client.get(path).status_code)
    with transaction.atomic():
        status = int(seat.client.post(path, {}).status_code)
        transaction.set_rollback(True)
    return status


class Offers(HTMLParser):
    """Collects where the links and buttons of a page lead: (method, address)."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[tuple[str, str]] = set()
        self.form: tuple[str, str] | None = None
        self.forms: dict[str, tuple[str, str]] = {}  # by their ids, for buttons elsewhere
        self.apart: set[str] = set()
        self.locked = 0  # how many fieldsets that are switched off are open here
        self.feed(page)
        self.found |= {self.forms[one] for one in self.apart if one in self.forms}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what is followed or sent; what is switched off is offered to nobody."""
        said = dict(attrs)
        if tag == "a" and said.get("href"):
            self.found.add(("POST" if "data-post" in said else "GET", str(said["href"])))
        elif tag == "form":
            self.form = ((said.get("method") or "get").upper(), said.get("action") or "")
            self.forms[said.get("id") or ""] = self.form
        elif tag == "fieldset" and (self.locked or "disabled" in said):
            self.locked += 1
        elif self.locked or "disabled" in said or not _sends(tag, said):
            return
        elif "form" in said:
            self.apart.add(str(said["form"]))
        elif self.form:
            self.found.add((self.form[0], said.get("formaction") or self.form[1]))

    def handle_endtag(self, tag: str) -> None:
        """Note where a form, or what is switched off, ends."""
        if tag == "form":
            self.form = None
        elif tag == "fieldset" and self.locked:
            self.locked -= 1


def _sends(tag: str, said: dict[str, str | None]) -> bool:
    default = "submit" if tag == "button" else ""
    return tag in ("button", "input") and (said.get("type") or default) == "submit"
