"""The form of an organization's preset: configuration with `${PARAMETER}`, and the parameters."""

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from bonobot.lib.admin import Select, Textarea, TextInput
from bonobot.lib.problems import Problem
from bonobot.tenancy.principals import Principal
from mcp_servers.configuration import AUTH_FIELDS
from mcp_servers.models import Preset, Server
from mcp_servers.presets.declaring import KINDS
from mcp_servers.presets.own import PLAIN

ICONS = (
    *("book", "box", "branch", "bug", "chart", "chat", "checklist", "clock", "cloud", "code"),
    *("coins", "database", "flask", "folder", "function", "globe", "graph", "terminal"),
)
# What kinds of values are called.
KIND_NAMES = {"": _("text"), "folder": _("folder"), "file": _("file"), "url": _("address")}
TEXTS = ("name", "label", "default", "help", "pattern")
FLAGS = ("secret", "required")
# The form's fields for those that the operations name.
PLACES = {
    "endpoint_config.url": "url",
    "endpoint_config.command": "command",
    "endpoint_config.args": "args",
    "endpoint_config": "url",
    "auth_config.type": "auth_type",
}


def place_of(problem: Problem) -> dict[str, str]:
    """Return the form's fields by the problem's: what is wrong in a row is said at the rows."""
    row = {problem.field: "parameters"} if problem.field.startswith("parameters") else {}
    return PLACES | row


class ParametersWidget(forms.Widget):
    """Rows of inputs, one for each parameter; a script adds and removes rows."""

    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None
    ) -> SafeString:
        """Return the rows, from the project's own templates."""
        rows = list(value or ())
        context = {
            "rows": rows,
            "spare": [{"required": True}],
            "kinds": [(kind, KIND_NAMES[kind]) for kind in KINDS],
            "bare": not rows,
        }
        return render_to_string("admin/servers/parameters.html", context)

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[dict[str, Any]]:
        """Return the rows that have a name or a label."""
        columns = {member: data.getlist(f"p-{member}") for member in (*TEXTS, *FLAGS, "kind")}
        rows = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)
        ]
        return [_row(row) for row in rows if row["name"].strip() or row["label"].strip()]

    def id_for_label(self, id_: str) -> str:
        """Return nothing: there is no single input that the label could name."""
        return ""


def _row(row: dict[str, str]) -> dict[str, Any]:
    texts = {name: row[name].strip() for name in (*TEXTS, "kind")}
    return texts | {name: row[name] == "1" for name in FLAGS}


class ParametersField(forms.Field):
    """A list of parameters, as `declaring` checks them."""

    widget: Any = ParametersWidget


class LinesField(forms.CharField):
    """`NAME=value` on each line, as a mapping."""

    def __init__(self, label: Any, help_text: Any, hint: str) -> None:
        area = Textarea(attrs={"rows": 2, "placeholder": hint, "spellcheck": "false"})
        super().__init__(label=label, help_text=help_text, required=False, widget=area)

    def clean(self, value: Any) -> dict[str, str]:
        """Return the mapping; raises ValidationError for a line that is none."""
        found = {}
        for line in str(super().clean(value) or "").splitlines():
            name, equals, text = line.partition("=")
            if line.strip() and not (equals and name.strip()):
                raise ValidationError(_("Write NAME=value on each line."), code="invalid")
            if line.strip():
                found[name.strip()] = text.strip()
        return found


def _text(label: Any, help_text: Any = "", *, required: bool = False, **attrs: str) -> Any:
    return forms.CharField(
        label=label, required=required, help_text=help_text, widget=TextInput(attrs=attrs)
    )


class PresetPlainForm(forms.Form):
    """What anybody who manages servers may change of a preset."""

    name = _text(_("Name"), required=True)
    description = _text(_("Description"))
    category = forms.SlugField(label=_("Category"), initial="own", widget=TextInput)
    icon = forms.ChoiceField(
        label=_("Icon"), choices=[(one, one) for one in ICONS], initial="box", widget=Select
    )
    documentation_url = _text(_("Documentation"), placeholder="https://docs.example.com/")

    def said(self) -> dict[str, Any]:
        """Return what was filled in, as the operations take it."""
        return {name: self.cleaned_data[name] for name in PLAIN}


class PresetEditForm(PresetPlainForm):
    """Everything about a preset; `${NAME}` in a value stands for a parameter."""

    transport_type = forms.ChoiceField(
        label=_("Transport"), choices=[("http", "HTTP"), ("stdio", "stdio")], widget=Select
    )
    url = _text(_("URL"), placeholder="https://${TEAM}.example.com/mcp")
    headers = LinesField(_("Headers"), _("NAME=value on each line."), "X-Api-Key=${TOKEN}")
    command = _text(_("Command"), _("A launcher on the allow-list, such as npx or uvx."))
    args = forms.CharField(
        label=_("Arguments"),
        required=False,
        help_text=_("One on each line, with a version: server@1.2.3."),
        widget=Textarea(attrs={"rows": 3, "spellcheck": "false"}),
    )
    env = LinesField(_("Environment"), _("NAME=value on each line."), "API_TOKEN=${TOKEN}")
    auth_type = forms.ChoiceField(label=_("Sign-in"), choices=Server.Auth.choices, widget=Select)
    auth = LinesField(
        _("Sign-in details"),
        "; ".join(
            f"{kind}: {', '.join(sorted(p | s))}" for kind, (p, s) in AUTH_FIELDS.items() if s
        ),
        "token=${TOKEN}",
    )
    parameters = ParametersField(label=_("Parameters"), required=False)

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Offer programs to platform administrators alone."""
        super().__init__(*args, **kwargs)
        if not principal.platform_admin:
            choices: Any = self.fields["transport_type"]
            choices.choices = [("http", "HTTP")]

    def said(self) -> dict[str, Any]:
        """Return what was filled in, as the operations take it."""
        given = self.cleaned_data
        if given["transport_type"] == Server.Transport.HTTP:
            endpoint = {"url": given["url"], "headers": given["headers"]}
        else:
            args = [line.strip() for line in given["args"].splitlines() if line.strip()]
            endpoint = {"command": given["command"], "args": args, "env": given["env"]}
        return super().said() | {
            "transport_type": given["transport_type"],
            "endpoint_config": {name: value for name, value in endpoint.items() if value},
            "auth_config": {"type": given["auth_type"], **given["auth"]},
            "parameters": given["parameters"],
        }


def initial(preset: Preset) -> dict[str, Any]:
    """Return a preset as the form shows it."""
    config = preset.endpoint_config
    return {
        **{name: getattr(preset, name) for name in PLAIN},
        "icon": preset.icon or "box",
        "transport_type": preset.transport_type,
        "url": config.get("url", ""),
        "command": config.get("command", ""),
        "args": "\n".join(config.get("args", ())),
        "headers": _lines(config.get("headers", {})),
        "env": _lines(config.get("env", {})),
        "auth_type": preset.auth_type,
        "auth": _lines(preset.auth_config),
        "parameters": preset.parameters,
    }


def _lines(pairs: dict[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in pairs.items())
