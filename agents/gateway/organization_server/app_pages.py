"""Bonobot's own pages as MCP Apps (SEP-1865): approvals, elicitation requests, and sessions.

A page is static and has no access to the network. It shows the result of its tool, and calls other
tools through its host. Answers need a key from the metadata of the tool's result, which hosts give
to the page and not to the model, so that a model can't answer in place of the person.
"""

import base64
import hashlib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from mcp.shared.exceptions import MCPError

from agents.gateway.client_request import GatewayRequest
from agents.gateway.request_state import decrypt_state, encrypt_state
from agents.models import Approval
from bonobot.accounts.models import Token
from bonobot.accounts.principals import Principal
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden
from bonobot.core.process_cache import compute_once
from mcp_servers.client.mcp_extensions import APP_MIME_TYPE, UI_EXTENSION

FOLDER = Path(__file__).with_name("pages")
PAGES = {
    "approvals": "Approvals",
    "elicitation_requests": "Elicitation requests",
    "session": "Session",
}
ANSWER_KEY = "answer_key"
ANSWER_KEY_META = "bonobot/answer_key"
ANSWER_KEY_SCHEMA = {"type": "string", "description": "Only the page of an MCP App has it."}
KEY_LIFETIME = timedelta(hours=1)
KEY_SUBJECT = "app answer"


def build_page_uri(name: str) -> str:
    """Return the URI of a page."""
    return f"ui://bonobot/{name}.html"


def build_page_meta(name: str, *, app_only: bool = False) -> dict[str, Any]:
    """Return the metadata of a tool with a page, or of one that only a page calls."""
    if app_only:
        return {"ui": {"visibility": ["app"]}}
    return {"ui": {"resourceUri": build_page_uri(name), "visibility": ["model", "app"]}}


def read_page(uri: str) -> dict[str, Any] | None:
    """Return the contents of a page; None for another URI.

    Pages are named by their tools, and aren't listed.
    """
    html = _build_pages().get(uri)
    if html is None:
        return None
    content = {"uri": uri, "mimeType": APP_MIME_TYPE, "text": html}
    policy: dict[str, list[str]] = {"connectDomains": [], "resourceDomains": []}
    return {"contents": [{**content, "_meta": {"ui": {"csp": policy, "prefersBorder": True}}}]}


@compute_once
def _build_pages() -> dict[str, str]:
    return {build_page_uri(name): _build_html(name, title) for name, title in PAGES.items()}


def _build_html(name: str, title: str) -> str:
    style = (FOLDER / "app.css").read_text(encoding="utf-8")
    script = "".join(
        (FOLDER / file).read_text(encoding="utf-8") for file in ("host.js", f"{name}.js")
    )
    policy = (
        f"default-src 'none'; script-src {_hash_source(script)}; style-src {_hash_source(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<main aria-live="polite"></main>\n<script>{script}</script>\n</body>\n</html>\n'
    )


def _hash_source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def supports_apps(inbound: GatewayRequest) -> bool:
    """Tell whether the client declares that it renders MCP Apps."""
    extensions = inbound.capabilities.get("extensions")
    declared = extensions.get(UI_EXTENSION) if isinstance(extensions, Mapping) else None
    types = declared.get("mimeTypes") if isinstance(declared, Mapping) else None
    return isinstance(types, list) and APP_MIME_TYPE in types


def build_answer_key(inbound: GatewayRequest) -> dict[str, Any]:
    """Return the metadata with which a page can answer; none if the client has no pages."""
    if not supports_apps(inbound):
        return {}
    key = encrypt_state(inbound.caller, KEY_SUBJECT, {}, lifetime=KEY_LIFETIME)
    return {ANSWER_KEY_META: key}


def check_answer_key(inbound: GatewayRequest, key: Any) -> None:
    """Raise `Forbidden` (`needs_app`) for an answer that doesn't come from a page."""
    try:
        if supports_apps(inbound):
            decrypt_state(inbound.caller, KEY_SUBJECT, key)
            return
    except MCPError:
        pass
    raise Forbidden(
        "Only a person can answer, on the page of an MCP App.",
        code="needs_app",
        rule="app:answer_key",
        remedy="Open the list again in a client that supports MCP Apps, or answer at its URL.",
    )


def check_not_own_call(principal: Principal, approval_id: str) -> None:
    """Raise `Forbidden` (`own_call`) for an approval of one's own call, also without four eyes.

    A client that made a call, and the person who authorized it, can't approve it through a client.
    """
    approvals = Approval.objects.for_organization(principal.organization_id)
    approval = approvals.filter(pk=approval_id).first()
    if approval is None or not _is_own(principal, approval):
        return
    raise Forbidden(
        format_message("You requested this call."),
        code="own_call",
        rule="app:own_call",
        remedy="Someone else who can approve calls must answer, or answer it in Bonobot.",
    )


def _is_own(principal: Principal, approval: Approval) -> bool:
    kind, requester_id = approval.requested_by_kind, approval.requested_by_id
    person = str(principal.granted_by_id) if principal.granted_by_id else ""
    if (kind, requester_id) == (principal.kind, principal.id):
        return True
    if not person:
        return False
    if kind == "token":
        return Token.objects.filter(pk=requester_id, user_id=person).exists()
    return (kind, requester_id) == ("user", person)
