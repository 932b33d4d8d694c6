"""Read a server's resources and fill its prompts, through the door like every call."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.http import QueryDict
from django.http.response import HttpResponseBase
from django.utils.translation import gettext_lazy as _

from agents import calls
from agents.governance.results import text_in
from agents.requests import Method
from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.tenancy.active import client_of
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.models import Definition, Server
from mcp_servers.uri_templates import expand, variables

# Shown as pictures; anything else that isn't text is only named.
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
CHOICES = (
    ("resources", _("Resource"), (Definition.Kind.RESOURCE, Definition.Kind.RESOURCE_TEMPLATE)),
    ("prompts", _("Prompt"), (Definition.Kind.PROMPT,)),
)


@dataclass(frozen=True)
class Input:
    """One value that is asked for: a template's variable, or a prompt's argument."""

    name: str
    value: str
    required: bool = False
    description: str = ""


@dataclass(frozen=True)
class Piece:
    """One piece of what came back: a text, a picture, or something only named."""

    who: str = ""
    text: str = ""
    mime: str = ""
    data: str = ""
    size: int = 0

    @property
    def picture(self) -> bool:
        """Tell whether it can be shown as a picture."""
        return bool(self.data) and self.mime in PICTURES


@ServerAdmin.add_page("ask", needs=Action.CALL_TOOLS)
def ask(visit: Visit) -> HttpResponseBase:
    """Show the form of a resource or prompt, or ask for it and show what came."""
    server: Server = visit.object
    posted = visit.request.POST if visit.request.method == "POST" else None
    query = posted if posted is not None else visit.request.GET
    slug, title, kinds = next(
        (one for one in CHOICES if one[0] == query.get("kind", "")), CHOICES[0]
    )
    offers = list(server.definitions.filter(kind__in=kinds, present=True).order_by("kind", "name"))
    wanted = query.get("name", "")
    offer = next((one for one in offers if wanted in ("", one.name)), None)
    inputs = _inputs(offer, query) if offer else []
    outcome: calls.Outcome | None = None
    problem: Problem | None = None
    if wanted and offer is None:
        problem = not_offered(wanted)
    elif posted is not None and offer is not None:
        try:
            outcome = _ask(visit, offer, inputs, unapproved="unapproved" in posted)
        except Problem as refusal:
            problem = refusal
    return replace(visit, page="try").show(
        "servers/ask.html",
        server=server,
        kind=slug,
        title_of_kind=title,
        offers=offers,
        offer=offer,
        inputs=inputs,
        uri=_uri(offer, inputs) if offer and slug == "resources" else "",
        outcome=outcome,
        problem=problem,
        pieces=list(pieces(outcome.result)) if outcome and not outcome.is_error else [],
        waits=offer is not None and offer.state in ("pending", "changed"),
        may_approve=visit.principal.may(Action.APPROVE_DEFINITIONS),
    )


def not_offered(name: str) -> NotFound:
    """Return that a link or a form of another time names what isn't offered any more."""
    return NotFound(
        say("The server offers no {name!r} now.", name=name),
        remedy=say("Choose something else, or refresh the server."),
    )


def _inputs(offer: Definition, given: QueryDict) -> list[Input]:
    if offer.kind == Definition.Kind.RESOURCE_TEMPLATE:
        return [Input(name, given.get(f"in-{name}", "")) for name in variables(offer.name)]
    declared = offer.payload.get("arguments")
    listed = declared if isinstance(declared, list) else []
    return [
        Input(
            name=one["name"],
            value=given.get(f"in-{one['name']}", ""),
            required=one.get("required") is True,
            description=str(one.get("description") or one.get("title") or ""),
        )
        for one in listed
        if isinstance(one, dict) and isinstance(one.get("name"), str)
    ]


def _uri(offer: Definition, inputs: Iterable[Input]) -> str:
    if offer.kind == Definition.Kind.RESOURCE:
        return offer.name
    return expand(offer.name, {one.name: one.value for one in inputs})


def _ask(
    visit: Visit, offer: Definition, inputs: list[Input], *, unapproved: bool
) -> calls.Outcome:
    method: Method = "resources/read"
    name, arguments = _uri(offer, inputs), {}
    if offer.kind == Definition.Kind.PROMPT:
        method, name = "prompts/get", offer.name
        arguments = {one.name: one.value for one in inputs if one.value or one.required}
    request = calls.Request(
        principal=visit.principal,
        method=method,
        tool=name,
        arguments=arguments,
        via="admin",
        client=client_of(visit.request),
        holder=f"server:{offer.server_id}:{visit.principal.id}",
        server_id=offer.server_id,
        unapproved=unapproved,
    )
    return runtime().call(calls.call, request)


def pieces(result: dict[str, Any]) -> Iterable[Piece]:
    """Yield what a resource's contents or a prompt's messages are made of."""
    for one in _dicts(result.get("contents")):
        yield _resource(one, str(one.get("uri", "")))
    for message in _dicts(result.get("messages")):
        content = message.get("content")
        for part in _dicts(content if isinstance(content, list) else [content]):
            yield _part(part, str(message.get("role", "")))


def _part(part: dict[str, Any], who: str) -> Piece:
    if isinstance(part.get("resource"), dict):
        return _resource(part["resource"], f"{who} {part['resource'].get('uri', '')}".strip())
    if "data" in part:
        return _data(who, part, part["data"])
    text = part.get("text", part.get("uri", ""))
    return Piece(who=who, text=str(text), mime=str(part.get("mimeType") or ""))


def _resource(resource: dict[str, Any], who: str) -> Piece:
    text = text_in(resource)
    if "blob" in resource and text is None:
        return _data(who, resource, resource["blob"])
    mime = str(resource.get("mimeType") or "")
    return Piece(who=who, text=str(resource.get("text", text or "")), mime=mime)


def _data(who: str, holder: dict[str, Any], data: Any) -> Piece:
    said = data if isinstance(data, str) else ""
    mime = str(holder.get("mimeType") or "")
    return Piece(who=who, mime=mime, data=said, size=len(said.rstrip("=")) * 3 // 4)


def _dicts(found: Any) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
