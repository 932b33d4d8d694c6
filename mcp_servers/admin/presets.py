"""The admin of presets, and saving a server as a preset."""

from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Exists, Model, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base import (
    ObjectRequest,
    ScopedAdmin,
    add_problem_to_form,
    render_screen,
)
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import render_badge
from bonobot.core.admin.theme import (
    ChoicesCheckboxFilter,
    DropdownFilter,
    Select,
    Textarea,
    TextInput,
    display,
    register,
)
from bonobot.core.problems import Problem
from bonobot.core.text.syntax_highlighting import highlight_json
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.admin.list_fields import KeyValueLinesField, StringListField
from mcp_servers.admin.preset_gallery import (
    build_preset_switch,
    disable_preset_view,
    enable_preset_view,
)
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.auth_config import AUTH_FIELDS
from mcp_servers.models import Preset, Server
from mcp_servers.presets import catalog as preset_catalog
from mcp_servers.presets.save_as_preset import build_preset, save_as_preset
from mcp_servers.presets.services import (
    DISPLAY_FIELDS,
    PresetSpec,
    create_preset,
    delete_preset,
    patch_preset,
)
from mcp_servers.presets.validation import PARAMETER_KINDS

ICONS = (
    *("book", "box", "branch", "bug", "chart", "chat", "checklist", "clock", "cloud", "code"),
    *("coins", "database", "flask", "folder", "function", "globe", "graph", "terminal"),
)
# Labels of the parameter kinds.
KIND_NAMES = {"": _("text"), "folder": _("folder"), "file": _("file"), "url": _("URL")}
TEXTS = ("name", "label", "default", "help", "pattern")
FLAGS = ("secret", "required")
# Form fields by the field name of a problem.
PROBLEM_FIELDS = {
    "endpoint_config.url": "url",
    "endpoint_config.command": "command",
    "endpoint_config.args": "args",
    "endpoint_config": "url",
    "auth_config.type": "auth_type",
}
PAIRS_HELP = _("One NAME=value per line, or a JSON object if a value has line breaks.")
NOT_ENABLED = _("A platform administrator must enable this preset for your organization.")


def map_problem_fields(problem: Problem) -> dict[str, str]:
    """Map problem fields to form fields; problems of a parameter go to `parameters`."""
    parameter_fields = (
        {problem.field: "parameters"} if problem.field.startswith("parameters") else {}
    )
    return PROBLEM_FIELDS | parameter_fields


class PresetParametersWidget(forms.Widget):
    """One row of inputs per parameter; a script adds and removes rows."""

    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None
    ) -> SafeString:
        """Render the rows with the project's templates."""
        rows = list(value or ())
        context = {
            "rows": rows,
            "empty_row": {"required": True},
            "row_template": "admin/presets/parameter.html",
            "kinds": [(kind, KIND_NAMES[kind]) for kind in PARAMETER_KINDS],
            "note": ""
            if rows
            else _t("No parameters yet. Users of this preset only enter a name."),
        }
        return render_to_string("admin/servers/editable_rows.html", context)

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[dict[str, Any]]:
        columns = {field: data.getlist(f"p-{field}") for field in (*TEXTS, *FLAGS, "kind")}
        rows = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)
        ]
        return [
            _parse_parameter(row) for row in rows if row["name"].strip() or row["label"].strip()
        ]

    def id_for_label(self, id_: str) -> str:
        """Return an empty string, since there is no single input for the label."""
        return ""


def _parse_parameter(row: dict[str, str]) -> dict[str, Any]:
    texts = {name: row[name].strip() for name in (*TEXTS, "kind")}
    return texts | {name: row[name] == "1" for name in FLAGS}


class PresetParametersField(forms.Field):
    """A list of parameters, checked by `presets.validation`."""

    widget: Any = PresetParametersWidget


def _build_text_field(
    label: Any, help_text: Any = "", *, required: bool = False, **attrs: str
) -> Any:
    return forms.CharField(
        label=label, required=required, help_text=help_text, widget=TextInput(attrs=attrs)
    )


class PresetDetailsForm(forms.Form):
    """The preset fields that every server manager may change."""

    name = _build_text_field(_("Name"), required=True)
    description = _build_text_field(_("Description"))
    category = forms.SlugField(label=_("Category"), initial="own", widget=TextInput)
    icon = forms.ChoiceField(
        label=_("Icon"), choices=[(name, name) for name in ICONS], initial="box", widget=Select
    )
    documentation_url = _build_text_field(
        _("Documentation"), placeholder="https://docs.example.com/"
    )

    def get_values(self) -> dict[str, Any]:
        """Return the values in the format of the preset services."""
        return {name: self.cleaned_data[name] for name in DISPLAY_FIELDS}


class PresetEditForm(PresetDetailsForm):
    """All fields of a preset; `${NAME}` in a value stands for a parameter."""

    transport_type = forms.ChoiceField(
        label=_("Transport"), choices=[("http", "HTTP"), ("stdio", "stdio")], widget=Select
    )
    url = _build_text_field(_("URL"), placeholder="https://${TEAM}.example.com/mcp")
    headers = KeyValueLinesField(_("Headers"), PAIRS_HELP, "X-Api-Key=${TOKEN}")
    command = _build_text_field(_("Command"), _("A launcher on the allowlist, such as npx or uvx."))
    args = StringListField(
        label=_("Arguments"),
        required=False,
        help_text=_(
            "One per line, or a JSON array of strings if an argument has line breaks. With a "
            "version: server@1.2.3."
        ),
        widget=Textarea(attrs={"rows": 3, "spellcheck": "false"}),
    )
    env = KeyValueLinesField(_("Environment"), PAIRS_HELP, "API_TOKEN=${TOKEN}")
    auth_type = forms.ChoiceField(label=_("Sign-in"), choices=Server.Auth.choices, widget=Select)
    auth = KeyValueLinesField(
        _("Authentication settings"),
        "; ".join(
            f"{kind}: {', '.join(sorted(p | s))}" for kind, (p, s) in AUTH_FIELDS.items() if s
        ),
        "token=${TOKEN}",
    )
    parameters = PresetParametersField(label=_("Parameters"), required=False)

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Offer stdio to platform administrators only."""
        super().__init__(*args, **kwargs)
        if not principal.platform_admin:
            choices: Any = self.fields["transport_type"]
            choices.choices = [("http", "HTTP")]

    def get_values(self) -> dict[str, Any]:
        """Return the values in the format of the preset services."""
        cleaned = self.cleaned_data
        if cleaned["transport_type"] == Server.Transport.HTTP:
            endpoint = {"url": cleaned["url"], "headers": cleaned["headers"]}
        else:
            endpoint = {name: cleaned[name] for name in ("command", "args", "env")}
        return super().get_values() | {
            "transport_type": cleaned["transport_type"],
            "endpoint_config": {name: value for name, value in endpoint.items() if value},
            "auth_config": {"type": cleaned["auth_type"], **cleaned["auth"]},
            "parameters": cleaned["parameters"],
        }


def build_initial(preset: Preset) -> dict[str, Any]:
    config = preset.endpoint_config
    return {
        **{name: getattr(preset, name) for name in DISPLAY_FIELDS},
        "icon": preset.icon or "box",
        "transport_type": preset.transport_type,
        "url": config.get("url", ""),
        "command": config.get("command", ""),
        "args": list(config.get("args", ())),
        "headers": config.get("headers", {}),
        "env": config.get("env", {}),
        "auth_type": preset.auth_type,
        "auth": preset.auth_config,
        "parameters": preset.parameters,
    }


class PresetCategoryFilter(DropdownFilter):
    """Filter presets by category."""

    title = _("category")
    parameter_name = "category"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the categories of the listed presets (1 query)."""
        presets = model_admin.get_queryset(request).exclude(category="").order_by()
        slugs = presets.values_list("category", flat=True).distinct()
        return sorted(
            ((category, preset_catalog.format_category(category)) for category in slugs),
            key=lambda item: item[1],
        )

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        return queryset.filter(category=self.value()) if self.value() else queryset


@register(Preset)
class PresetAdmin(ScopedAdmin):
    """The presets of the active organization; those of the catalog are read-only."""

    add_label = _("Create preset")
    list_display = (
        "preset",
        "kind",
        "transport",
        "authentication",
        "owner_name",
        "enabled",
        "last_check",
    )
    list_filter = (
        PresetCategoryFilter,
        ("auth_type", ChoicesCheckboxFilter),
        "transport_type",
    )
    search_fields = ("name", "slug", "description", "category")
    ordering = ("name",)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "name",
                    "slug",
                    "localized_description",
                    "kind",
                    "documentation_url",
                    "enabled",
                )
            },
        ),
        (_("Connection"), {"fields": ("transport_type", "endpoint", "auth_type", "auth")}),
        (_("Parameters"), {"fields": ("parameter_values",)}),
        (_("Evidence"), {"fields": ("replaced_packages", "evidence")}),
    )
    needs_to_view = (Action.VIEW,)
    needs_to_change = Action.MANAGE_SERVERS
    has_bulk_actions = False
    delete_note = _("Servers created from it are kept.")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Preset]:
        """Return the catalog's and the organization's presets, annotated with `enabled_here`."""
        organization_id = self.get_principal(request).organization_id
        enabled = Preset.objects.enabled_for(organization_id).filter(pk=OuterRef("pk"))
        rows: Any = Preset.objects.available_to(organization_id)
        presets: QuerySet[Preset] = rows.annotate(enabled_here=Exists(enabled))
        return presets

    def get_object(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Return a preset with its enable button, if the user may use it."""
        preset: Any = super().get_object(request, *args, **kwargs)
        if preset is not None:
            preset.switch = build_preset_switch(self.get_principal(request), preset)
        return preset

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Add the enable button if the user may use it."""
        fieldsets = super().get_fieldsets(request, obj)
        if getattr(obj, "switch", None) is None:
            return fieldsets
        (title, first), *other_fieldsets = fieldsets
        return [(title, {**first, "fields": (*first["fields"], "availability")}), *other_fieldsets]

    def get_urls(self) -> list[URLPattern]:
        """Add the URLs that enable and disable a preset."""
        preset_urls = [
            path(
                f"<uuid:object_id>/{slug}/",
                self.admin_site.admin_view(view),
                name=f"mcp_servers_preset_{slug}",
            )
            for slug, view in (("enable", enable_preset_view), ("disable", disable_preset_view))
        ]
        return [*preset_urls, *super().get_urls()]

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Make presets of the catalog read-only."""
        return _is_own(obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Allow deleting the organization's own presets only."""
        return _is_own(obj) and super().has_delete_permission(request, obj)

    def delete_model(self, request: HttpRequest, obj: Preset) -> None:
        """Delete the preset through the service."""
        request.deletion = delete_preset(self.get_principal(request), obj)  # type: ignore[attr-defined]

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show the form, or create the preset."""
        principal = self.get_principal(request)
        principal.require(Action.MANAGE_SERVERS)
        form = PresetEditForm(principal, request.POST if request.method == "POST" else None)
        if form.is_bound and form.is_valid():
            try:
                preset = create_preset(principal, PresetSpec(**form.get_values()))
            except Problem as problem:
                add_problem_to_form(form, problem, map_problem_fields(problem))
            else:
                return _redirect_after_save(request, preset)
        return self._render_form(request, form)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Show the form of an own preset; presets of the catalog are read-only."""
        preset: Any = self.get_object(request, object_id)
        if preset is None or not self.has_change_permission(request, preset):
            return super().change_view(request, object_id, form_url, extra_context)
        principal = self.get_principal(request)
        is_locked = preset.transport_type != Server.Transport.HTTP and not principal.platform_admin
        form = _build_edit_form(request, principal, preset, is_locked=is_locked)
        if form.is_bound and form.is_valid():
            try:
                patch_preset(principal, preset, form.get_values())
            except Problem as problem:
                add_problem_to_form(form, problem, map_problem_fields(problem))
            else:
                return _redirect_after_save(request, preset)
        return self._render_form(request, form, preset, is_locked=is_locked)

    def _render_form(
        self,
        request: HttpRequest,
        form: forms.Form,
        preset: Preset | None = None,
        *,
        is_locked: bool = False,
    ) -> HttpResponseBase:
        return render_screen(
            request,
            "presets/edit.html",
            title=make_visible(preset.name) if preset else _("Create preset"),
            opts=self.opts,
            form=form,
            preset=preset,
            locked=is_locked,
            may_delete=preset is not None,
        )

    @display(description=_("replaces"))
    def replaced_packages(self, preset: Preset) -> str:
        """Return the names, used elsewhere, of packages that don't exist."""
        return ", ".join(map(make_visible, preset.replaces)) or "–"

    @display(description=_("preset"), ordering="name", header=True)
    def preset(self, preset: Preset) -> tuple[str, str]:
        return make_visible(preset.name), make_visible(
            preset_catalog.localize_description(preset), 100
        )

    @display(description=_("category"), ordering="category")
    def kind(self, preset: Preset) -> str:
        return make_visible(preset_catalog.format_category(preset.category), 64)

    @display(description=_("description"))
    def localized_description(self, preset: Preset) -> str:
        """Return the localized description."""
        return make_visible(preset_catalog.localize_description(preset), 1_000)

    @display(description=_("belongs to"))
    def owner_name(self, preset: Preset) -> str:
        return _t("the organization") if preset.organization_id else _t("Bonobot")

    @display(description=_("enabled"), ordering="enabled_here")
    def enabled(self, preset: Any) -> SafeString:
        """Return whether the organization may add servers from it."""
        if preset.enabled_here:
            return render_badge("ok", _t("enabled"))
        return render_badge("disabled", _t("not enabled"), NOT_ENABLED)

    @display(description=_("availability"))
    def availability(self, preset: Any) -> SafeString:
        """Return the button that enables or disables it for the active organization."""
        switch = preset.switch
        text = (
            _t("Disable for %(organization)s")
            if switch.enabled
            else _t("Enable for %(organization)s")
        )
        label = text % {"organization": make_visible(switch.organization.name, 80)}
        # The button submits the surrounding form, which carries the CSRF token.
        button = '<button class="bb-button bb-slim" formaction="{}">{}</button>'
        return format_html(button, switch.url, label)

    @display(description=_("checked"))
    def last_check(self, preset: Preset) -> SafeString | str:
        """Return the last registry check, or when the proof was checked."""
        if preset.gone:
            return render_badge("error", _t("package not found"), preset.resolution.get("detail"))
        if preset.resolution:
            return render_badge("ok", _t("package found"), preset.resolution.get("asked_at"))
        proof: Any = preset.proof
        return str(proof.get("checked") or proof.get("checked_at") or "–")

    @display(description=_("transport"), ordering="transport_type")
    def transport(self, preset: Preset) -> str:
        return str(dict(Server.Transport.choices).get(preset.transport_type, preset.transport_type))

    @display(description=_("authentication"), ordering="auth_type")
    def authentication(self, preset: Preset) -> str:
        return capfirst(str(dict(Server.Auth.choices).get(preset.auth_type, preset.auth_type)))

    @display(description=_("endpoint"))
    def endpoint(self, preset: Preset) -> SafeString:
        """Return the endpoint configuration with unfilled parameters."""
        return _render_code(preset.endpoint_config)

    @display(description=_("authentication settings"))
    def auth(self, preset: Preset) -> SafeString:
        """Return the sign-in configuration."""
        return _render_code(preset.auth_config)

    @display(description=_("parameters"))
    def parameter_values(self, preset: Preset) -> SafeString:
        return _render_code(preset_catalog.localize_parameters(preset))

    @display(description=_("evidence"))
    def evidence(self, preset: Preset) -> SafeString:
        """Return the proof that the server exists."""
        return _render_code(preset.proof)


def _render_code(value: Any) -> SafeString:
    return format_html('<pre class="bb-code">{}</pre>', highlight_json(value))


def _is_own(preset: Any) -> bool:
    return preset is None or preset.organization_id is not None


def _build_edit_form(
    request: HttpRequest, principal: Principal, preset: Preset, *, is_locked: bool
) -> PresetDetailsForm:
    posted = request.POST if request.method == "POST" else None
    if is_locked:
        return PresetDetailsForm(posted, initial=build_initial(preset))
    return PresetEditForm(principal, posted, initial=build_initial(preset))


def _redirect_after_save(request: HttpRequest, preset: Preset) -> HttpResponseRedirect:
    messages.success(request, _t("%(preset)s was saved.") % {"preset": make_visible(preset.name)})
    return HttpResponseRedirect(reverse("admin:mcp_servers_preset_change", args=[preset.pk]))


class SavePresetForm(forms.Form):
    """The name of a preset saved from a server."""

    name = forms.CharField(label=_("Name"), widget=TextInput(attrs={"autocomplete": "off"}))


@ServerAdmin.add_page("save_preset", required_actions=Action.MANAGE_SERVERS)
def save_preset(visit: ObjectRequest) -> HttpResponseBase:
    """Preview a preset of this server, or save it."""
    server: Server = visit.object
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = SavePresetForm(posted, initial={"name": server.name})
    draft = build_preset(visit.principal, server, server.name)
    if posted is not None and form.is_valid():
        try:
            preset = save_as_preset(visit.principal, server, form.cleaned_data["name"])
        except Problem as problem:
            add_problem_to_form(form, problem)
        else:
            return _redirect_after_save(visit.request, preset)
    return visit.render_tab(
        "presets/save_server_as_preset.html",
        server=server,
        form=form,
        draft=draft,
        sign_in=server.get_auth_type_display(),
    )
