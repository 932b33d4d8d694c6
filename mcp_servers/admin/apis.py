"""REST APIs: read an OpenAPI document, choose its operations, add them; and choose anew later."""

from collections.abc import Collection
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.lib.admin import Select, TextInput
from bonobot.lib.problems import Invalid, Problem
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit, onward, refuse
from mcp_servers import registration
from mcp_servers.admin.adding import Destination
from mcp_servers.admin.forms import PLACES, ServerForm, initial_of
from mcp_servers.configuration import ServerSpec
from mcp_servers.models import Server
from mcp_servers.naming import slugify
from mcp_servers.openapi.choosing import Offer, chosen, look_at, offer_of, reading
from mcp_servers.openapi.documents import document_of
from mcp_servers.openapi.reading import LONGEST_TEXT

KEY_PLACES = (
    ("header", _("in a header")),
    ("query", _("in the query")),
    ("cookie", _("in a cookie")),
)


class ApiForm(ServerForm):
    """Everything about an API that people set, beside its operations."""

    document_url = forms.CharField(
        label=_("Address of the document"),
        required=False,
        widget=TextInput(
            attrs={"inputmode": "url", "placeholder": "https://api.example.com/openapi.json"}
        ),
        help_text=_("Read again once a day, and at each refresh: what changed waits for approval."),
    )

    SIGN_IN = {**ServerForm.SIGN_IN, "api_key": ("in", "header", "key")}

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Ask for an API's members instead of a server's."""
        super().__init__(principal, *args, **kwargs)
        self.fields["transport_type"] = forms.CharField(required=False)
        del self.fields["only_tools"]  # an API's operations are chosen one by one
        self.fields["url"].label = _("Base address")
        self.fields["header"].label = _("Name of the key")
        self.fields["in"] = forms.ChoiceField(
            label=_("Where the key goes"), choices=KEY_PLACES, required=False, widget=Select
        )

    @property
    def address_fields(self) -> list[forms.BoundField]:
        """Return what says where the API and its document are."""
        return [self[name] for name in ("url", "document_url", "headers", "allow_private")]

    def api_spec(self, offer: Offer, operations: list[str], document: str | None) -> ServerSpec:
        """Return what was said; raises what `chosen` does."""
        self.cleaned_data["transport_type"] = Server.Transport.OPENAPI
        said, spec = self.cleaned_data, self.spec()
        config = {**spec.endpoint_config, "operations": chosen(offer, operations)}
        if said["document_url"]:
            config["document_url"] = said["document_url"]
        if document is not None:
            config["document"] = document
        return ServerSpec(
            **{**vars(spec), "endpoint_config": config, "allow_private": said["allow_private"]}
        )


def add_api(
    request: HttpRequest, principal: Principal, destination: Destination
) -> HttpResponseBase:
    """Ask for the document, show what it offers, or add what is ticked."""
    principal.require(destination.needs)
    if request.method != "POST":
        return _document_page(request, destination)
    try:
        document, url = _given(request), request.POST.get("document_url", "").strip()
        offer = look_at(
            principal,
            document=document or None,
            document_url=url,
            allow_private=_allowed(request, principal),
        )
    except Problem as problem:
        return _document_page(request, destination, problem, status=400)
    adding = request.POST.get("do") == "add"
    form = ApiForm(principal, request.POST if adding else None, initial=_initial(request, offer))
    ticked = request.POST.getlist("operation") if adding else reading(offer)
    if adding and form.is_valid():
        try:
            spec = form.api_spec(offer, ticked, offer.text)
            server = destination.add(principal, spec)
        except Problem as problem:
            refuse(form, problem, PLACES)
        else:
            messages.success(request, _t("%(server)s was added.") % {"server": server})
            return HttpResponseRedirect(destination.after(server))
    return destination.screen(
        request,
        "openapi",
        "servers/api.html",
        form=form,
        document=document,
        **picker(offer, ticked),
    )


def picker(offer: Offer, ticked: Collection[str]) -> dict[str, Any]:
    """Return what the template of the picker shows."""
    told, wanted = offer.as_dict(), frozenset(ticked)
    rows = [(one, one["key"] in wanted) for one in told["operations"]]
    tags = sorted({tag for one in told["operations"] for tag in one["tags"] if " " not in tag})
    return {"told": told, "rows": rows, "tags": tags, "ticked": sum(1 for _one, on in rows if on)}


def api_configuration(visit: Visit) -> HttpResponseBase:
    """Show an API's form with the operations of its document, or change it."""
    server: Server = visit.object
    request, posted = visit.request, visit.request.method == "POST"
    form = ApiForm(visit.principal, request.POST if posted else None, initial=_stored(server))
    problem, offer, given = None, None, ""
    ticked: list[str] = server.endpoint_config.get("operations", [])
    try:
        given = _given(request) if posted else ""
        offer = offer_of(given or _text_of(server), server.endpoint_config.get("document_url", ""))
        if posted and form.is_valid():
            ticked = request.POST.getlist("operation")
            registration.alter(visit.principal, server, form.api_spec(offer, ticked, given or None))
            messages.success(request, _t("Saved. The server is asked anew."))
            return onward(visit, "change", "?connect=1" if server.enabled else "")
    except Problem as found:
        server.refresh_from_db()
        problem = found
    return visit.show(
        "servers/api_configuration.html",
        server=server,
        form=form,
        problem=problem,
        may_manage=visit.principal.may(Action.MANAGE_SERVERS),
        **(picker(offer, ticked) if offer else {}),
    )


def _document_page(
    request: HttpRequest,
    destination: Destination,
    problem: Problem | None = None,
    status: int = 200,
) -> HttpResponseBase:
    return destination.screen(
        request,
        "openapi",
        "servers/document.html",
        status=status,
        problem=problem,
        document=request.POST.get("document", ""),
        document_url=request.POST.get("document_url", ""),
    )


def _given(request: HttpRequest) -> str:
    """Return the document that came with the request: a file, or text."""
    file: Any = request.FILES.get("file")
    if file is None:
        return request.POST.get("document", "")
    if file.size > LONGEST_TEXT:
        raise Invalid(
            say(
                "The file is larger than {longest_text} MiB.", longest_text=LONGEST_TEXT // 1024**2
            ),
            code="too_large",
            field="document",
            remedy="Cut the document down to the operations that you need.",
        )
    text: str = file.read().decode("utf-8", "replace")
    return text


def _allowed(request: HttpRequest, principal: Principal) -> bool:
    return "allow_private" in request.POST and principal.may(Action.ALLOW_PRIVATE_ADDRESS)


def _initial(request: HttpRequest, offer: Offer) -> dict[str, Any]:
    """Return what the document says for the form, as far as it does."""
    told = offer.told
    found: dict[str, Any] = {
        "name": slugify(told["title"])[:40],
        "description": visible(told["title"], 200),
        "url": offer.base_url,
        "document_url": request.POST.get("document_url", ""),
        "allow_private": "allow_private" in request.POST,
    }
    if told["sign_ins"]:
        sign_in = dict(told["sign_ins"][0])
        found["auth_type"] = sign_in.pop("type")
        found |= sign_in
    return found


def _stored(server: Server) -> dict[str, Any]:
    config = server.endpoint_config
    return {**initial_of(server), "document_url": config.get("document_url", "")}


def _text_of(server: Server) -> str:
    row = document_of(server)
    if row is None:
        raise Invalid(
            "The document hasn't been read yet.",
            code="document_missing",
            remedy="Refresh the server, or give its document here.",
        )
    text: str = row.text
    return text
