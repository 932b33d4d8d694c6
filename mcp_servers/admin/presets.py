"""Presets as rows: the platform's, loaded from the catalogue, and the organization's own."""

from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Exists, Model, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.lib.admin import (
    DropdownFilter,
    MultipleChoicesDropdownFilter,
    TextInput,
    display,
    register,
)
from bonobot.lib.highlighting import highlighted
from bonobot.lib.problems import Problem
from bonobot.lib.untrusted import visible
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import ScopedAdmin, Visit, refuse, screen
from bonobot.tenancy.templatetags.bonobot import badge_html
from mcp_servers.admin.preset_availability import disable_view, enable_view, switch_of
from mcp_servers.admin.preset_forms import PresetEditForm, PresetPlainForm, initial, place_of
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.models import Preset, Server
from mcp_servers.presets import telling
from mcp_servers.presets.own import PresetSpec, add_preset, alter_in_part, remove_preset
from mcp_servers.presets.saving import preset_of, save_as_preset


class CategoryFilter(DropdownFilter):
    """Presets of one category, by what it is called."""

    title = _("category")
    parameter_name = "category"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the categories of what is offered there (a query)."""
        offered = model_admin.get_queryset(request).exclude(category="").order_by()
        found = offered.values_list("category", flat=True).distinct()
        return sorted(((one, telling.category(one)) for one in found), key=lambda one: one[1])

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        """Keep the presets of the one that was chosen."""
        return queryset.filter(category=self.value()) if self.value() else queryset


NOT_ENABLED = _("A platform administrator has to enable it for this organization.")


@register(Preset)
class PresetAdmin(ScopedAdmin):
    """What is offered to the active organization: its own can be changed, the catalogue's read."""

    list_display = ("preset", "kind", "transport", "signs_in", "whose", "enabled", "proven")
    list_filter = (CategoryFilter, ("auth_type", MultipleChoicesDropdownFilter), "transport_type")
    search_fields = ("name", "slug", "description", "category")
    fieldsets = (
        (None, {"fields": ("name", "slug", "about", "kind", "documentation_url", "enabled")}),
        (_("How it is reached"), {"fields": ("transport_type", "endpoint", "auth_type", "auth")}),
        (_("What is filled in"), {"fields": ("filled_in",)}),
        (_("Why we believe that it exists"), {"fields": ("stands_in", "evidence")}),
    )
    needs_to_view = (Action.VIEW,)
    needs_to_change = Action.MANAGE_SERVERS
    removing = _("Servers that were made from it stay.")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Preset]:
        """Return the platform's presets and the organization's own, each with its state there."""
        here = self.principal(request).organization_id
        enabled = Preset.objects.enabled_for(here).filter(pk=OuterRef("pk"))
        rows: Any = Preset.objects.offered_to(here)
        found: QuerySet[Preset] = rows.annotate(enabled_here=Exists(enabled))
        return found

    def get_object(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Return a preset with what a platform administrator switches there, if anything."""
        found: Any = super().get_object(request, *args, **kwargs)
        if found is not None:
            found.switch = switch_of(self.principal(request), found)
        return found

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Add the button to whoever may press it."""
        found = super().get_fieldsets(request, obj)
        if getattr(obj, "switch", None) is None:
            return found
        (title, first), *others = found
        return [(title, {**first, "fields": (*first["fields"], "enabling")}), *others]

    def get_urls(self) -> list[URLPattern]:
        """Add what platform administrators switch."""
        own = [
            path(
                f"<uuid:object_id>/{slug}/",
                self.admin_site.admin_view(view),
                name=f"mcp_servers_preset_{slug}",
            )
            for slug, view in (("enable", enable_view), ("disable", disable_view))
        ]
        return [*own, *super().get_urls()]

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Offer none: presets are changed one by one."""
        return {}

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Keep the catalogue's presets as the release has them."""
        return _is_own(obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Let go of the organization's own alone."""
        return _is_own(obj) and super().has_delete_permission(request, obj)

    def delete_model(self, request: HttpRequest, obj: Preset) -> None:
        """Remove by the operation."""
        remove_preset(self.principal(request), obj)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show our own form, or make the preset."""
        principal = self.principal(request)
        principal.require(Action.MANAGE_SERVERS)
        form = PresetEditForm(principal, request.POST if request.method == "POST" else None)
        if form.is_bound and form.is_valid():
            try:
                preset = add_preset(principal, PresetSpec(**form.said()))
            except Problem as problem:
                refuse(form, problem, place_of(problem))
            else:
                return _saved(request, preset)
        return self._form(request, form)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Show the form of the organization's own; one of the catalogue is read."""
        preset: Any = self.get_object(request, object_id)
        if preset is None or not self.has_change_permission(request, preset):
            return super().change_view(request, object_id, form_url, extra_context)
        principal = self.principal(request)
        locked = preset.transport_type != Server.Transport.HTTP and not principal.platform_admin
        form = _edit_form(request, principal, preset, locked=locked)
        if form.is_bound and form.is_valid():
            try:
                alter_in_part(principal, preset, form.said())
            except Problem as problem:
                refuse(form, problem, place_of(problem))
            else:
                return _saved(request, preset)
        return self._form(request, form, preset, locked=locked)

    def _form(
        self,
        request: HttpRequest,
        form: forms.Form,
        preset: Preset | None = None,
        *,
        locked: bool = False,
    ) -> HttpResponseBase:
        return screen(
            request,
            "servers/preset_edit.html",
            title=visible(preset.name) if preset else _("New preset"),
            opts=self.opts,
            form=form,
            preset=preset,
            locked=locked,
            may_delete=preset is not None,
        )

    @display(description=_("stands in for"))
    def stands_in(self, preset: Preset) -> str:
        """Return the names in use elsewhere that don't exist."""
        return ", ".join(map(visible, preset.replaces)) or "–"

    @display(description=_("preset"), ordering="name", header=True)
    def preset(self, preset: Preset) -> tuple[str, str]:
        """Return the name and what it is."""
        return visible(preset.name), visible(telling.description(preset), 100)

    @display(description=_("category"), ordering="category")
    def kind(self, preset: Preset) -> str:
        """Return what its category is called."""
        return visible(telling.category(preset.category), 64)

    @display(description=_("description"))
    def about(self, preset: Preset) -> str:
        """Return what it is."""
        return visible(telling.description(preset), 1_000)

    @display(description=_("whose"))
    def whose(self, preset: Preset) -> str:
        """Return who made it."""
        return _t("the organization's") if preset.organization_id else _t("Bonobot's catalogue")

    @display(description=_("enabled"), ordering="enabled_here")
    def enabled(self, preset: Any) -> SafeString:
        """Return whether the organization may add servers from it."""
        if preset.enabled_here:
            return badge_html("ok", _t("enabled"))
        return badge_html("pending", _t("not enabled"), NOT_ENABLED)

    @display(description=_("for organizations"))
    def enabling(self, preset: Any) -> SafeString:
        """Return the button that enables or disables it for the active organization."""
        switch = preset.switch
        text = (
            _t("Disable for %(organization)s")
            if switch.enabled
            else _t("Enable for %(organization)s")
        )
        said = text % {"organization": visible(switch.organization.name, 80)}
        # The page is a form already, which sends its token along.
        button = '<button class="bb-button bb-slim" formaction="{}">{}</button>'
        return format_html(button, switch.url, said)

    @display(description=_("checked"))
    def proven(self, preset: Preset) -> SafeString | str:
        """Return what its registry said last, or when its proof was looked up."""
        if preset.gone:
            return badge_html("error", _t("no longer resolves"), preset.resolution.get("detail"))
        if preset.resolution:
            return badge_html("ok", _t("resolves"), preset.resolution.get("asked_at"))
        proof: Any = preset.proof
        return str(proof.get("checked") or proof.get("checked_at") or "–")

    @display(description=_("transport"), ordering="transport_type")
    def transport(self, preset: Preset) -> str:
        """Return the transport as people say it."""
        return str(dict(Server.Transport.choices).get(preset.transport_type, preset.transport_type))

    @display(description=_("sign-in"), ordering="auth_type")
    def signs_in(self, preset: Preset) -> str:
        """Return how it signs in, in words."""
        return str(dict(Server.Auth.choices).get(preset.auth_type, preset.auth_type))

    @display(description=_("endpoint"))
    def endpoint(self, preset: Preset) -> SafeString:
        """Return the endpoint with its parameters."""
        return _code(preset.endpoint_config)

    @display(description=_("sign-in details"))
    def auth(self, preset: Preset) -> SafeString:
        """Return how it signs in."""
        return _code(preset.auth_config)

    @display(description=_("parameters"))
    def filled_in(self, preset: Preset) -> SafeString:
        """Return the parameters."""
        return _code(telling.parameters(preset))

    @display(description=_("proof"))
    def evidence(self, preset: Preset) -> SafeString:
        """Return where it was found."""
        return _code(preset.proof)


def _code(value: Any) -> SafeString:
    return format_html('<pre class="bb-code">{}</pre>', highlighted(value))


def _is_own(preset: Any) -> bool:
    return preset is None or preset.organization_id is not None


def _edit_form(
    request: HttpRequest, principal: Principal, preset: Preset, *, locked: bool
) -> PresetPlainForm:
    posted = request.POST if request.method == "POST" else None
    if locked:
        return PresetPlainForm(posted, initial=initial(preset))
    return PresetEditForm(principal, posted, initial=initial(preset))


def _saved(request: HttpRequest, preset: Preset) -> HttpResponseRedirect:
    messages.success(request, _t("%(preset)s was saved.") % {"preset": visible(preset.name)})
    return HttpResponseRedirect(reverse("admin:mcp_servers_preset_change", args=[preset.pk]))


class SavePresetForm(forms.Form):
    """What a preset that is made of a server is called."""

    name = forms.CharField(label=_("Name"), widget=TextInput(attrs={"autocomplete": "off"}))


@ServerAdmin.add_page("save_preset", needs=Action.MANAGE_SERVERS)
def save_preset(visit: Visit) -> HttpResponseBase:
    """Show what a preset of this server would hold, or save it."""
    server: Server = visit.object
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = SavePresetForm(posted, initial={"name": server.name})
    draft = preset_of(visit.principal, server, server.name)
    if posted is not None and form.is_valid():
        try:
            preset = save_as_preset(visit.principal, server, form.cleaned_data["name"])
        except Problem as problem:
            refuse(form, problem)
        else:
            return _saved(visit.request, preset)
    return visit.show("servers/save_preset.html", server=server, form=form, draft=draft)
