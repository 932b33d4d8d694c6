"""Forms of REST APIs whose operations are declared by hand, and pages that add one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base import add_problem_to_form, render_fragment
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import Select, Textarea, TextInput
from bonobot.core.problems import Problem
from mcp_servers.admin.add_servers import ServerDestination
from mcp_servers.admin.openapi import ApiServerForm
from mcp_servers.admin.server_forms import PROBLEM_FIELDS
from mcp_servers.flow_labels.effective_labels import LABEL_NAMES
from mcp_servers.models import Server
from mcp_servers.openapi.declared_operations import (
    DECLARED_FIELD,
    METHODS,
    format_value,
    parse_value,
)
from mcp_servers.openapi.services import (
    build_operation_preview,
)
from mcp_servers.server_config import ServerSpec

PARAMETER_LOCATIONS = (
    ("path", _("in the path")),
    ("query", _("in the query string, after ?")),
    ("header", _("in a header")),
    ("body", _("in the body")),
)
TYPE_NAMES = (
    ("string", _("string")),
    ("integer", _("integer")),
    ("number", _("number")),
    ("boolean", _("boolean")),
    ("string[]", _("list of strings")),
    ("integer[]", _("list of integers")),
    ("number[]", _("list of numbers")),
    ("boolean[]", _("list of booleans")),
    ("object", _("any JSON object")),
)
COLUMNS = ("name", "in", "type", "required", "description", "default", "enum")


class OperationParametersWidget(forms.Widget):
    """One row of inputs per parameter; a script adds and removes rows."""

    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None
    ) -> SafeString:
        """Render the rows with the project's templates."""
        context = {
            "rows": list(value or ()),
            "empty_row": {"in": "query"},
            "row_template": "admin/openapi/operation_parameter.html",
            "places": PARAMETER_LOCATIONS,
            "types": TYPE_NAMES,
        }
        return render_to_string("admin/servers/editable_rows.html", context)

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[dict[str, str]]:
        """Return the rows that aren't blank."""
        columns = [data.getlist(f"p-{column}") for column in COLUMNS]
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=False)]
        texts = ("name", "description", "default", "enum")
        return [row for row in rows if any(row[text].strip() for text in texts)]

    def id_for_label(self, id_: str) -> str:
        """Return an empty string, since there is no single input for the label."""
        return ""


class OperationParametersField(forms.Field):
    """A list of parameters, checked by `declared_operations`."""

    widget: Any = OperationParametersWidget


class OperationForm(forms.Form):
    """One operation; the prefix lets it share a page with the server form."""

    prefix = "op"

    name = forms.CharField(
        label=_("Tool name"),
        required=False,
        widget=TextInput(attrs={"autocomplete": "off", "placeholder": "get_order"}),
    )
    description = forms.CharField(
        label=_("Description"),
        required=False,
        widget=Textarea(attrs={"rows": 2}),
        help_text=_(
            "Models select tools by their description. Describe what the tool "
            "returns and when to use it."
        ),
    )
    method = forms.ChoiceField(
        label=_("Method"),
        choices=[(method, method) for method in METHODS],
        initial="GET",
        widget=Select(attrs={"aria-label": _("Method")}),
    )
    path = forms.CharField(
        label=_("Path"),
        required=False,
        widget=TextInput(
            attrs={"autocomplete": "off", "placeholder": "/orders/{id}", "inputmode": "url"}
        ),
        help_text=_(
            "Relative to the base URL. Use {id} for a parameter. You can also paste the full URL."
        ),
    )
    parameters = OperationParametersField(label=_("Parameters"), required=False)
    body = forms.ChoiceField(
        label=_("Body format"),
        choices=[("json", "JSON"), ("form", _("form"))],
        required=False,
        widget=Select,
        help_text=_("In JSON, customer.email is the field email of the object customer."),
    )
    result = forms.CharField(
        label=_("Result path"),
        required=False,
        widget=TextInput(attrs={"autocomplete": "off", "placeholder": "data.items"}),
        help_text=_("If empty, the whole response. For JSON, the path to a field: data.items."),
    )
    labelled = forms.ChoiceField(
        label=_("Labels"),
        choices=[("", _("suggested by Bonobot")), ("chosen", _("selected labels"))],
        required=False,
        widget=Select,
        help_text=_("How the tool treats the data it handles. Approved together with the tool."),
    )
    labels = forms.MultipleChoiceField(
        label=_("Selected labels"),
        choices=[(label.value, label_name) for label, label_name in LABEL_NAMES.items()],
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )

    def build_operation(self) -> dict[str, Any]:
        """Return the operation in the format of `declared_operations`; raises `InvalidInput`."""
        cleaned = self.cleaned_data
        text_fields = ("name", "description", "method", "path", "body", "result")
        operation: dict[str, Any] = {name: cleaned[name] for name in text_fields}
        rows = enumerate(cleaned["parameters"])
        operation["parameters"] = [
            _parse_parameter(row, f"parameters[{index}]") for index, row in rows
        ]
        if cleaned["labelled"]:
            operation["labels"] = cleaned["labels"]
        return operation

    def add_problem(self, problem: Problem) -> None:
        """Add a problem to its field; problems of a parameter go to `parameters`."""
        name = problem.field.removeprefix("endpoint_config.declared[0].")
        form_field = "parameters" if name.startswith("parameters") else name.partition("[")[0]
        add_problem_to_form(self, problem, {problem.field: form_field})


def build_operation_initial(declared: Mapping[str, Any]) -> dict[str, Any]:
    labels = declared.get("labels")
    return {
        **declared,
        "parameters": [_build_parameter_initial(parameter) for parameter in declared["parameters"]],
        "labelled": "" if labels is None else "chosen",
        "labels": labels or [],
    }


def _build_parameter_initial(parameter: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **parameter,
        "required": "1" if parameter["required"] else "",
        "default": format_value(parameter.get("default")),
        "enum": format_value(parameter.get("enum")),
    }


def _parse_parameter(row: Mapping[str, str], field: str) -> dict[str, Any]:
    parameter: dict[str, Any] = {
        "name": row["name"].strip(),
        "in": row["in"],
        "type": row["type"],
        "required": row["required"] == "1",
        "description": row["description"],
    }
    if row["default"].strip():
        parameter["default"] = parse_value(row["type"], row["default"], field=f"{field}.default")
    if row["enum"].strip():
        parameter["enum"] = parse_value(
            row["type"], row["enum"], as_list=True, field=f"{field}.enum"
        )
    return parameter


class DeclaredApiForm(ApiServerForm):
    """The settings of an API whose operations are declared by hand."""

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Remove the document field."""
        super().__init__(principal, *args, **kwargs)
        del self.fields["document_url"]
        self.fields["url"].widget.attrs["placeholder"] = "https://api.example.com/v1"
        self.fields["url"].help_text = _t(
            "The base URL of the API. The paths of all operations are relative to it."
        )

    @property
    def address_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in ("url", "headers", "allow_private")]

    def build_declared_spec(self, declared: Sequence[Any]) -> ServerSpec:
        """Return the server specification with these operations."""
        cleaned = self.cleaned_data
        cleaned["transport_type"] = Server.Transport.OPENAPI
        spec = self.build_spec()
        config = {**spec.endpoint_config, "declared": list(declared)}
        return replace(spec, endpoint_config=config, allow_private=cleaned["allow_private"])


def add_declared_api(
    request: HttpRequest, principal: Principal, destination: ServerDestination
) -> HttpResponseBase:
    """Ask for a server and its first operation, or create them."""
    principal.require(destination.required_action)
    posted = request.POST if request.method == "POST" else None
    form, operation = DeclaredApiForm(principal, posted), OperationForm(posted)
    if posted is not None and all([form.is_valid(), operation.is_valid()]):
        try:
            server = destination.create_server(
                principal, form.build_declared_spec([operation.build_operation()])
            )
        except Problem as problem:
            add_problem_to_forms(form, operation, problem)
        else:
            messages.success(request, _t("%(server)s was added.") % {"server": server})
            return HttpResponseRedirect(destination.build_next_url(server))
    return destination.render_page(
        request,
        "operations",
        "openapi/declare_api.html",
        form=form,
        operation=operation,
        example=build_example_request(request),
    )


def add_problem_to_forms(form: DeclaredApiForm, operation: OperationForm, problem: Problem) -> None:
    if problem.field.startswith((DECLARED_FIELD, "parameters[")):
        operation.add_problem(problem)
    else:
        add_problem_to_form(form, problem, PROBLEM_FIELDS)


def render_operation_preview(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Render the request that the operation in the form would send, without sending it."""
    principal.require(Action.MANAGE_SERVERS)
    return render_fragment(
        request, "openapi/operation_request.html", example=build_example_request(request)
    )


def build_example_request(request: HttpRequest) -> dict[str, Any]:
    """Return an example request of the posted operation, a problem, or nothing if incomplete."""
    url, form = request.POST.get("url", "").strip(), OperationForm(request.POST)
    if not (url and request.POST.get("op-path", "").strip()) or not form.is_valid():
        return {}
    try:
        operation = form.build_operation()
        # The name and description don't affect the request.
        preview = build_operation_preview(operation | {"name": "x", "description": "x"}, url)
    except Problem as problem:
        return {"problem": problem}
    return dict(preview["request"])
