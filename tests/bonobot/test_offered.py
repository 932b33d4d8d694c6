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
        self.locked = 0  # how many fieldsets that are switched off are open here
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what is followed or sent; what is switched off is offered to nobody."""
        said = dict(attrs)
        if tag == "a" and said.get("href"):
            self.found.add(("POST" if "data-post" in said else "GET", str(said["href"])))
        elif tag == "form":
            self.form = ((said.get("method") or "get").upper(), said.get("action") or "")
        elif tag == "fieldset" and (self.locked or "disabled" in said):
            self.locked += 1
        elif self.form and not self.locked and "disabled" not in said and _sends(tag, said):
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


@pytest.mark.parametrize("role", [*Role, None])
def test_nothing_that_is_offered_is_refused(role: Role | None) -> None:
    acme = casting.organization()
    ids = fill(acme)
    seat = desk.sit(acme, role)
    refused: set[str] = set()
    asked: set[tuple[str, str]] = set()
    for name, parameters in ADDRESSES:
        here = address(name, parameters, ids)
        answer = seat.client.get(here)
        if answer.status_code != 200 or answer.streaming:
            continue
        for method, to in sorted(Offers(answer.content.decode()).found):
            path = urldefrag(urljoin(here, to))[0]
            kind = IDS.sub("…", path.partition("?")[0])
            if (method, kind) in asked or not path.startswith("/admin/") or "/logout/" in path:
                continue
            asked.add((method, kind))
            if (status := answered(seat, method, path)) in REFUSED:
                refused.add(f"{status} {method} {path} at {here}")
    assert asked
    assert not refused, "\n".join(sorted(refused))


def answered(seat: desk.Desk, method: str, path: str) -> int:
    """Return what a link, or a form that nothing was entered into, leads to; nothing stays done."""
    if method == "GET":
        return int(seat.client.get(path).status_code)
    with transaction.atomic():
        status = int(seat.client.post(path, {}).status_code)
        transaction.set_rollback(True)
    return status
