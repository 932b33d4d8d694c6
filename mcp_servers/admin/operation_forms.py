"""The form of an HTTP operation that is declared by hand, for people who know no OpenAPI."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from bonobot.lib.admin import Select, Textarea, TextInput
from bonobot.lib.problems import Problem
from bonobot.tenancy.screens import refuse
from mcp_servers.admin.label_names import WORDS
from mcp_servers.openapi.declaring import METHODS
from mcp_servers.openapi.values import typed, written

PLACE_NAMES = (
    ("path", _("in the path")),
    ("query", _("in the query, after ?")),
    ("header", _("as a header")),
    ("body", _("in the body")),
)
TYPE_NAMES = (
    ("string", _("text")),
    ("integer", _("whole number")),
    ("number", _("number")),
    ("boolean", _("yes or no")),
    ("string[]", _("list of texts")),
    ("integer[]", _("list of whole numbers")),
    ("number[]", _("list of numbers")),
    ("boolean[]", _("list of yes or no")),
    ("object", _("any JSON object")),
)
COLUMNS = ("name", "in", "type", "required", "description", "default", "enum")


class InputsWidget(forms.Widget):
    """Rows of inputs, one for each parameter; a script adds and removes rows."""

    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None
    ) -> SafeString:
        """Return the rows, from the project's own templates."""
        context = {
            "rows": list(value or ()),
            "spare": [{"in": "query"}],
            "places": PLACE_NAMES,
            "types": TYPE_NAMES,
        }
        return render_to_string("admin/servers/inputs.html", context)

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[dict[str, str]]:
        """Return the rows in which something stands."""
        columns = [data.getlist(f"p-{column}") for column in COLUMNS]
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=False)]
        texts = ("name", "description", "default", "enum")
        return [row for row in rows if any(row[text].strip() for text in texts)]

    def id_for_label(self, id_: str) -> str:
        """Return nothing: there is no single input that the label could name."""
        return ""


class InputsField(forms.Field):
    """A list of parameters, as `declaring` checks them."""

    widget: Any = InputsWidget


class OperationForm(forms.Form):
    """One operation; its fields are called `op-…`, so that it can stand beside a server's."""

    prefix = "op"

    name = forms.CharField(
        label=_("Name of the tool"),
        required=False,
        widget=TextInput(attrs={"autocomplete": "off", "placeholder": "get_order"}),
    )
    description = forms.CharField(
        label=_("What it does"),
        required=False,
        widget=Textarea(attrs={"rows": 2}),
        help_text=_("A model chooses by this: say what comes back, and when to use it."),
    )
    method = forms.ChoiceField(
        label=_("Method"),
        choices=[(one, one) for one in METHODS],
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
            "Below the base address. {id} stands for a parameter; the whole address may be pasted."
        ),
    )
    parameters = InputsField(label=_("Parameters"), required=False)
    body = forms.ChoiceField(
        label=_("Fields in the body are sent as"),
        choices=[("json", "JSON"), ("form", _("a form"))],
        required=False,
        widget=Select,
        help_text=_("In JSON, customer.email is the field email within customer."),
    )
    result = forms.CharField(
        label=_("Part of the answer that is the result"),
        required=False,
        widget=TextInput(attrs={"autocomplete": "off", "placeholder": "data.items"}),
        help_text=_("Empty: all of it. Of a JSON answer, the members on the way: data.items."),
    )
    labelled = forms.ChoiceField(
        label=_("Labels"),
        choices=[("", _("as Bonobot suggests")), ("chosen", _("these"))],
        required=False,
        widget=Select,
        help_text=_("What the tool does with what it touches; approved together with it."),
    )
    labels = forms.MultipleChoiceField(
        label=_("Labels that hold"),
        choices=[(label.value, words) for label, words in WORDS.items()],
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )

    def said(self) -> dict[str, Any]:
        """Return what was filled in, as `declaring` takes it; raises `Invalid`."""
        given = self.cleaned_data
        texts = ("name", "description", "method", "path", "body", "result")
        found: dict[str, Any] = {name: given[name] for name in texts}
        rows = enumerate(given["parameters"])
        found["parameters"] = [_input(row, f"parameters[{index}]") for index, row in rows]
        if given["labelled"]:
            found["labels"] = given["labels"]
        return found

    def refuse(self, problem: Problem) -> None:
        """Show a problem at its field; what is wrong in a row is said at the rows."""
        name = problem.field.removeprefix("endpoint_config.declared[0].")
        spot = "parameters" if name.startswith("parameters") else name.partition("[")[0]
        refuse(self, problem, {problem.field: spot})


def initial_of_operation(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the form shows of a declared operation."""
    labels = declared.get("labels")
    return {
        **declared,
        "parameters": [_row(one) for one in declared["parameters"]],
        "labelled": "" if labels is None else "chosen",
        "labels": labels or [],
    }


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **one,
        "required": "1" if one["required"] else "",
        "default": written(one.get("default")),
        "enum": written(one.get("enum")),
    }


def _input(row: Mapping[str, str], field: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": row["name"].strip(),
        "in": row["in"],
        "type": row["type"],
        "required": row["required"] == "1",
        "description": row["description"],
    }
    if row["default"].strip():
        found["default"] = typed(row["type"], row["default"], field=f"{field}.default")
    if row["enum"].strip():
        found["enum"] = typed(row["type"], row["enum"], many=True, field=f"{field}.enum")
    return found
