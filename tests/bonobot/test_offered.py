"""What a role is shown, it may open and do: no link and no button of any screen ends in a 403."""

import re
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin

import pytest
from django.db import transaction

from bonobot.tenancy.roles import Role
from tests import desk
from tests.agents import casting
from tests.screens import ADDRESSES, address, fill

pytestmark = pytest.mark.django_db
IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\b\d+\b")
REFUSED = (403, 500)


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


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.REVIEWER, Role.AUDITOR, Role.MEMBER])
def test_nothing_that_is_offered_is_refused(role: Role) -> None:
    acme = casting.organization()
    ids = fill(acme)
    seat = desk.sit(acme, role)
    offers: dict[tuple[str, str], tuple[str, str]] = {}  # by kind: where to, and where it was
    statuses: dict[tuple[str, str], int] = {}
    for name, parameters in ADDRESSES:
        here = address(name, parameters, ids)
        answer = seat.client.get(here)
        statuses["GET", kind_of(here)] = answer.status_code
        if answer.status_code != 200 or answer.streaming:
            continue
        for method, to in Offers(answer.content.decode()).found:
            path = urldefrag(urljoin(here, to))[0]
            if path.startswith("/admin/") and "/logout/" not in path:
                offers.setdefault((method, kind_of(path)), (path, here))
    for offer, (path, _here) in offers.items():
        if offer not in statuses:
            statuses[offer] = answered(seat, offer[0], path)
    refused = {offer: offers[offer] for offer in offers if statuses[offer] in REFUSED}
    assert offers
    assert not refused, refused


def kind_of(path: str) -> str:
    """Return what addresses of the same kind have in common."""
    return IDS.sub("…", path.partition("?")[0])


def answered(seat: desk.Desk, method: str, path: str) -> int:
    """Return what a link, or a form that nothing was entered into, leads to; nothing stays done."""
    if method == "GET":
        return int(seat.client.get(path).status_code)
    with transaction.atomic():
        status = int(seat.client.post(path, {}).status_code)
        transaction.set_rollback(True)
    return status
