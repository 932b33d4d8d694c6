"""A signed-in client of the admin that checks each page and reads it as text."""

import json
import re
from functools import cache
from html import unescape
from itertools import pairwise
from typing import Any

import re2
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from bonobot.accounts.models import Organization, User
from bonobot.accounts.principals import Principal, build_user_principal
from bonobot.accounts.roles import Role
from bonobot.core.text.canonical_json import compute_json_digest
from mcp_servers.models import Definition, Server
from mcp_servers.scanning import ScanFinding, scan_definition
from tests import factories

# Scripts in the page, handlers in attributes and assets of other hosts are all forbidden.
SCRIPT = re.compile(r"<script[^>]*>")
INLINE = re2.compile(
    r"\son[a-z]+\s*=\s*[\"']|(?:src|srcset|action)=[\"'](?:https?:)?//|"
    r"<link[^>]+href=[\"'](?:https?:)?//|javascript:"
)
FORMS = re.compile(r"<(/?)form\b", re.IGNORECASE)
# Opening tags with line breaks or several spaces, and spaces beside tags.
TAG_WITH_LAYOUT = re.compile(r"<[a-z][^<>\s]*+(?: [^<>\s]++)*+\s[^<>]*>")
AFTER_OPENING_TAG = re.compile(r"(<[a-z][^<>]*>)\s+")
BESIDE_TAG = re.compile(r"\s++(?=</)|(?<=>)\s++(?=<)")
SPACES = re.compile(r"\s+")
HEADER_CELL = re.compile(r"<th\b(?![^>]*aria-hidden)[^>]*>(.*?)</th>", re.DOTALL)


class AdminClient:
    """A client of the admin that is signed in as one user."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.client = Client(raise_request_exception=True)
        self.client.force_login(user)

    def get(self, name: str, /, *args: Any, status: int = 200, **query: Any) -> str:
        """Open a page by its URL name and return it."""
        return self.open(build_url(name, *args), status=status, **query)

    def open(self, address: str, /, *, status: int = 200, **query: Any) -> str:
        """Open a URL and return the page."""
        response = self.client.get(address, query)
        assert response.status_code == status, (response.status_code, address)
        return check_page(response)

    def post(self, name: str, /, *args: Any, status: int = 200, **fields: Any) -> str:
        """Submit a form, follow redirects, and return the page."""
        return self.send(build_url(name, *args), fields, status=status)

    def send(self, address: str, fields: dict[str, Any], *, status: int = 200) -> str:
        """Submit a form to a URL, follow redirects, and return the page."""
        response = self.client.post(address, fields, follow=True)
        assert response.status_code == status, (response.status_code, address)
        self.messages = [str(message) for message in get_messages(response.wsgi_request)] or [
            str(message) for message in (response.context or {}).get("messages", ())
        ]
        return check_page(response)


def is_signed_in(client: Client, *, secure: bool = False) -> bool:
    """Return whether the browser may see pages of the admin.

    The texts of its scripts are its smallest page: the dashboard takes a hundred times as long.
    """
    response = client.get(reverse("admin:jsi18n"), secure=secure)
    assert response.status_code in (200, 302), response.status_code
    return bool(response.status_code == 200)


def build_url(name: str, *args: Any) -> str:
    """Return the URL of an admin view."""
    return reverse(f"admin:{name}", args=args)


def check_page(response: Any) -> str:
    """Return a page; fail if it contains inline scripts, foreign assets or nested forms."""
    if response.streaming:
        return ""  # a file, not a page
    text = str(response.content.decode())
    check_markup(text)
    return remove_layout(text)


def check_markup(text: str) -> None:
    """Fail if a page contains inline scripts, foreign assets, nested forms or empty headers."""
    lower = text.lower()
    assert all("src=" in tag for tag in SCRIPT.findall(lower)), "an inline script"
    assert not (match := INLINE.search(lower)), lower[max(0, match.start() - 80) : match.end() + 80]
    # Browsers ignore a nested form: its buttons would submit the outer one.
    marks = list(FORMS.finditer(text))
    for mark, next_mark in pairwise(marks):
        assert mark[1] or next_mark[1], text[next_mark.start() : next_mark.end() + 200]
    for header in HEADER_CELL.finditer(text):
        assert get_text(header[1]).strip() or "aria-label=" in header[1], text[header.start() :][
            :400
        ]


def remove_layout(page: str) -> str:
    """Return a page without the line breaks and indentation of its templates."""
    page = TAG_WITH_LAYOUT.sub(lambda match: SPACES.sub(" ", match[0]), page)
    return BESIDE_TAG.sub("", AFTER_OPENING_TAG.sub(r"\1", page))


def get_text(page: str) -> str:
    """Return the visible text of a page."""
    text = re.sub(r"<(script|style|template)\b.*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(text))


def find_links(page: str, prefix: str) -> list[str]:
    """Return the URLs of a page's links that start with `prefix`."""
    addresses = re.findall(r'href="([^"]*)"', page)
    return [address for address in map(unescape, addresses) if address.startswith(prefix)]


def sign_in(organization: Organization, role: Role | None, name: str = "") -> AdminClient:
    """Create a user with a role (None: a platform administrator) and sign them in."""
    if role is None:
        return AdminClient(
            User.objects.create_superuser(name or f"root-{organization.slug}", password="pw")
        )
    principal = factories.create_member(organization, role, name)
    return AdminClient(User.objects.get(pk=principal.id))


def build_principal(client: AdminClient, organization: Organization) -> Principal:
    """Return the principal of the signed-in user."""
    return build_user_principal(client.user, organization)


def create_web_server(organization: Organization, name: str = "web") -> Server:
    """Create an HTTP server that nothing connects to."""
    return factories.create_http_server(organization, "http://127.0.0.1:9/mcp", name)


@cache
def _scan_json(text: str) -> tuple[ScanFinding, ...]:
    """Scan a definition; tests declare the same few tools again and again."""
    return scan_definition(json.loads(text))


def list_form_fields(page: str) -> list[str]:
    """Return the fields that people could change in the content of a page, without searches."""
    content = page.partition("<main")[2].partition("</main>")[0]
    fields = re.findall(r"<(?:input|select|textarea)[^>]*>", content)
    other = re.compile(r'type="(?:hidden|search)"|data-find=')
    return [field for field in fields if not other.search(field)]


def declare_tool(server: Server, name: str = "add", **fields: Any) -> Definition:
    """Create a tool definition of a server, as discovery would."""
    payload = {"name": name, "inputSchema": {"type": "object", "properties": {}}} | fields
    row: Definition = Definition.objects.create(
        organization_id=server.organization_id,
        server=server,
        kind=fields.pop("kind", Definition.Kind.TOOL),
        name=name,
        description=str(payload.get("description", "")),
        payload=payload,
        digest=compute_json_digest(payload),
        schema_verdict="inline",
        findings=[finding.as_dict() for finding in _scan_json(json.dumps(payload, sort_keys=True))],
    )
    return row
