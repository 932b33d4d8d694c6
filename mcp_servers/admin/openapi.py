"""Forms and pages that add REST APIs by their OpenAPI document, and choose operations."""

from collections.abc import Collection
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base import (
    ObjectRequest,
    add_problem_to_form,
    name_address_checkbox,
    redirect_to_page,
)
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import Select, TextInput
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers import services
from mcp_servers.admin.add_servers import ServerDestination
from mcp_servers.admin.server_forms import PROBLEM_FIELDS, ServerForm, build_initial
from mcp_servers.models import Server
from mcp_servers.models.servers import find_document
from mcp_servers.openapi.document import MAX_DOCUMENT_BYTES
from mcp_servers.openapi.select_operations import (
    DocumentOutline,
    inspect_document,
    list_read_operations,
    parse_document_outline,
    select_operations,
)
from mcp_servers.server_config import ServerSpec
from mcp_servers.server_names import slugify

KEY_LOCATIONS = (
    ("header", _("in a header")),
    ("query", _("in the query string")),
    ("cookie", _("in a cookie")),
)


class ApiServerForm(ServerForm):
    """The settings of an API server, without its operations."""

    document_url = forms.CharField(
        label=_("Document URL"),
        required=False,
        widget=TextInput(
            attrs={"inputmode": "url", "placeholder": "https://api.example.com/openapi.json"}
        ),
        help_text=_("Read again daily and at each refresh. Changes must be reviewed."),
    )

    SIGN_IN = {**ServerForm.SIGN_IN, "api_key": ("in", "header", "key")}

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Replace the fields of an MCP server with those of an API."""
        super().__init__(principal, *args, **kwargs)
        self.fields["transport_type"] = forms.CharField(required=False)
        del self.fields["only_tools"]  # an API's operations are chosen one by one
        self.fields["url"].label = _("Base URL")
        self.fields["header"].label = _("Key name")
        self.fields["in"] = forms.ChoiceField(
            label=_("Key location"), choices=KEY_LOCATIONS, required=False, widget=Select
        )

    @property
    def address_fields(self) -> list[forms.BoundField]:
        """Return the fields with the addresses of the API and its document."""
        return [self[name] for name in ("url", "document_url", "headers", "allow_private")]

    def build_api_spec(
        self, outline: DocumentOutline, operations: list[str], document: str | None
    ) -> ServerSpec:
        """Return the server specification; raises what `select_operations` raises."""
        self.cleaned_data["transport_type"] = Server.Transport.OPENAPI
        cleaned, spec = self.cleaned_data, self.build_spec()
        config = {**spec.endpoint_config, "operations": select_operations(outline, operations)}
        if cleaned["document_url"]:
            config["document_url"] = cleaned["document_url"]
        if document is not None:
            config["document"] = document
        return ServerSpec(
            **{**vars(spec), "endpoint_config": config, "allow_private": cleaned["allow_private"]}
        )


def add_api(
    request: HttpRequest, principal: Principal, destination: ServerDestination
) -> HttpResponseBase:
    """Ask for the document, show its operations, or create the server."""
    principal.require(destination.required_action)
    if request.method != "POST":
        return _render_document_page(request, destination)
    try:
        document, url = _read_document(request), request.POST.get("document_url", "").strip()
        outline = inspect_document(
            principal,
            document=document or None,
            document_url=url,
            allow_private=_is_private_allowed(request, principal),
        )
    except Problem as problem:
        if principal.may(Action.ALLOW_PRIVATE_ADDRESS):
            name_address_checkbox(problem, _t("Allow private or loopback address"))
        return _render_document_page(request, destination, problem, status=400)
    is_adding = request.POST.get("do") == "add"
    form = ApiServerForm(
        principal, request.POST if is_adding else None, initial=_build_initial(request, outline)
    )
    selected = request.POST.getlist("operation") if is_adding else list_read_operations(outline)
    if is_adding and form.is_valid():
        try:
            spec = form.build_api_spec(outline, selected, outline.text)
            server = destination.create_server(principal, spec)
        except Problem as problem:
            add_problem_to_form(form, problem, PROBLEM_FIELDS)
        else:
            messages.success(request, _t("%(server)s was added.") % {"server": server})
            return HttpResponseRedirect(destination.build_next_url(server))
    return destination.render_page(
        request,
        "openapi",
        "openapi/add_operations.html",
        form=form,
        document=document,
        **build_operation_picker(outline, selected),
    )


def build_operation_picker(outline: DocumentOutline, selected: Collection[str]) -> dict[str, Any]:
    preview, selected_keys = outline.as_dict(), frozenset(selected)
    rows = [(operation, operation["key"] in selected_keys) for operation in preview["operations"]]
    tags = sorted(
        {tag for operation in preview["operations"] for tag in operation["tags"] if " " not in tag}
    )
    return {
        "preview": preview,
        "rows": rows,
        "tags": tags,
        "selected_count": sum(is_selected for _operation, is_selected in rows),
    }


def show_api_configuration(visit: ObjectRequest) -> HttpResponseBase:
    """Show an API's form with the operations of its document, or update the server."""
    server: Server = visit.object
    request, is_post = visit.request, visit.request.method == "POST"
    form = ApiServerForm(
        visit.principal, request.POST if is_post else None, initial=_build_stored_initial(server)
    )
    problem, outline, document = None, None, ""
    selected: list[str] = server.endpoint_config.get("operations", [])
    try:
        document = _read_document(request) if is_post else ""
        outline = parse_document_outline(
            document or _load_document_text(server), server.endpoint_config.get("document_url", "")
        )
        if is_post and form.is_valid():
            selected = request.POST.getlist("operation")
            services.update_server(
                visit.principal, server, form.build_api_spec(outline, selected, document or None)
            )
            messages.success(request, _t("Saved. The server is being checked again."))
            return redirect_to_page(visit, "change", "?connect=1" if server.enabled else "")
    except Problem as exc:
        server.refresh_from_db()
        problem = exc
    return visit.render_tab(
        "openapi/server_operations.html",
        server=server,
        form=form,
        problem=problem,
        may_manage=visit.principal.may(Action.MANAGE_SERVERS),
        **(build_operation_picker(outline, selected) if outline else {}),
    )


def _render_document_page(
    request: HttpRequest,
    destination: ServerDestination,
    problem: Problem | None = None,
    status: int = 200,
) -> HttpResponseBase:
    return destination.render_page(
        request,
        "openapi",
        "openapi/choose_document.html",
        status=status,
        problem=problem,
        document=request.POST.get("document", ""),
        document_url=request.POST.get("document_url", ""),
    )


def _read_document(request: HttpRequest) -> str:
    """Return the uploaded or pasted document."""
    file: Any = request.FILES.get("file")
    if file is None:
        return request.POST.get("document", "")
    if file.size > MAX_DOCUMENT_BYTES:
        raise InvalidInput(
            format_message(
                "The file is larger than {limit} MiB.",
                limit=MAX_DOCUMENT_BYTES // 1024**2,
            ),
            code="too_large",
            field="document",
            remedy="Reduce the document to the operations you need.",
        )
    text: str = file.read().decode("utf-8", "replace")
    return text


def _is_private_allowed(request: HttpRequest, principal: Principal) -> bool:
    return "allow_private" in request.POST and principal.may(Action.ALLOW_PRIVATE_ADDRESS)


def _build_initial(request: HttpRequest, outline: DocumentOutline) -> dict[str, Any]:
    """Return initial form values taken from the document."""
    details = outline.data
    initial: dict[str, Any] = {
        "name": slugify(details["title"])[:40],
        "description": make_visible(details["title"], 200),
        "url": outline.base_url,
        "document_url": request.POST.get("document_url", ""),
        "allow_private": "allow_private" in request.POST,
    }
    if details["sign_ins"]:
        sign_in = dict(details["sign_ins"][0])
        initial["auth_type"] = sign_in.pop("type")
        initial |= sign_in
    return initial


def _build_stored_initial(server: Server) -> dict[str, Any]:
    config = server.endpoint_config
    return {**build_initial(server), "document_url": config.get("document_url", "")}


def _load_document_text(server: Server) -> str:
    row = find_document(server)
    if row is None:
        raise InvalidInput(
            "The document hasn't been read yet.",
            code="document_missing",
            remedy="Refresh the server, or provide its document here.",
        )
    text: str = row.text
    return text
