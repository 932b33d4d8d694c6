"""The admin as a person sees it: signed in, pages read as text, each looked over."""

import re
from html import unescape
from itertools import pairwise
from typing import Any

from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from bonobot.accounts.models import Organization, User
from bonobot.accounts.principals import Principal, build_user_principal
from bonobot.accounts.roles import Role
from bonobot.core.text.canonical_json import compute_json_digest
from mcp_servers.models import Definition, Server
from mcp_servers.scanning import scan_definition
from tests import factories

# Scripts in the page, handlers in attributes and assets of other hosts are all forbidden.
INLINE = re.compile(
    r"<script(?![^>]*\bsrc=)|\son[a-z]+\s*=\s*[\"']|(?:src|srcset|action)=[\"'](?:https?:)?//|"
    r"<link[^>]+href=[\"'](?:https?:)?//|javascript:",
    re.IGNORECASE,
)


FORMS = re.compile(r"<(/?)form\b", re.IGNORECASE)


class Desk:
    """A browser's worth of the admin for one person."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.client = Client(raise_request_exception=True)
        self.client.force_login(user)

    def get(self, name: str, /, *args: Any, status: int = 200, **query: Any) -> str:
        """Open a page by the name of its address and return it."""
        return self.open(url(name, *args), status=status, **query)

    def open(self, address: str, /, *, status: int = 200, **query: Any) -> str:
        """Open an address and return the page."""
        response = self.client.get(address, query)
        assert response.status_code == status, (response.status_code, address)
        return page_of(response)

    def post(self, name: str, /, *args: Any, status: int = 200, **fields: Any) -> str:
        """Send a form, follow where it leads, and return the page."""
        return self.send(url(name, *args), fields, status=status)

    def send(self, address: str, fields: dict[str, Any], *, status: int = 200) -> str:
        """Send a form to an address, follow where it leads, and return the page."""
        response = self.client.post(address, fields, follow=True)
        assert response.status_code == status, (response.status_code, address)
        self.messages = [str(message) for message in get_messages(response.wsgi_request)] or [
            str(message) for message in (response.context or {}).get("messages", ())
        ]
        return page_of(response)


def url(name: str, *args: Any) -> str:
    """Return an address of the admin."""
    return reverse(f"admin:{name}", args=args)


def page_of(response: Any) -> str:
    """Return a page, after a look at what no page may hold."""
    if response.streaming:
        return ""  # a file, not a page
    text = str(response.content.decode())
    assert not (found := INLINE.search(text)), text[max(0, found.start() - 80) : found.end() + 80]
    # A browser leaves out a form that begins within another: its buttons would send the outer one.
    marks = list(FORMS.finditer(text))
    for one, next_one in pairwise(marks):
        assert one[1] or next_one[1], text[next_one.start() : next_one.end() + 200]
    return without_layout(text)


def without_layout(page: str) -> str:
    """Return a page without the line breaks and indentation of its templates."""
    page = re.sub(r"<[a-z][^<>]*>", lambda tag: re.sub(r"\s+", " ", tag[0]), page)
    page = re.sub(r">\s+<", "><", page)
    return re.sub(r"\s+(</)", r"\1", re.sub(r"(<[a-z][^<>]*>)\s+", r"\1", page))


def words(page: str) -> str:
    """Return what a reader sees of a page."""
    without = re.sub(r"<(script|style|template)\b.*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(without))


def links(page: str, to: str) -> list[str]:
    """Return the addresses of a page's links that begin so."""
    found = re.findall(r'href="([^"]*)"', page)
    return [one for one in map(unescape, found) if one.startswith(to)]


def sit(where: Organization, role: Role | None, name: str = "") -> Desk:
    """Make a person with a role (None: the platform administrator) and sit them down."""
    if role is None:
        return Desk(User.objects.create_superuser(name or f"root-{where.slug}", password="pw"))
    principal = factories.create_member(where, role, name)
    return Desk(User.objects.get(pk=principal.id))


def principal_at(desk: Desk, where: Organization) -> Principal:
    """Return the principal of whoever sits there."""
    return build_user_principal(desk.user, where)


def web_server(where: Organization, name: str = "web") -> Server:
    """Register an HTTP server that nobody asks."""
    return factories.create_http_server(where, "http://127.0.0.1:9/mcp", name)


def offer(server: Server, name: str = "add", **declared: Any) -> Definition:
    """Let a server offer a tool, as a discovery would have written it."""
    payload = {"name": name, "inputSchema": {"type": "object", "properties": {}}} | declared
    row: Definition = Definition.objects.create(
        organization_id=server.organization_id,
        server=server,
        kind=declared.pop("kind", Definition.Kind.TOOL),
        name=name,
        description=str(payload.get("description", "")),
        payload=payload,
        digest=compute_json_digest(payload),
        schema_verdict="inline",
        findings=[finding.as_dict() for finding in scan_definition(payload)],
    )
    return row
