"""The gallery of presets, and the form that adds a server from one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseNotAllowed
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base import add_problem_to_form, redirect_back
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import Checkbox, SecretInput, TextInput
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.admin.add_servers import ServerDestination, redirect_after_add
from mcp_servers.models import Preset, Server
from mcp_servers.presets import catalog as preset_catalog
from mcp_servers.presets.allowed_folders import FOLDER_KINDS, list_allowed_folders
from mcp_servers.presets.enabled_presets import (
    can_use,
    disable_preset,
    enable_preset,
    is_enabled,
    list_enabled_ids,
)
from mcp_servers.presets.services import build_server_spec, get_preset
from mcp_servers.sandbox_settings import DEFAULT_NETWORKS, get_default_sandbox
from mcp_servers.server_config import ServerSpec, list_allowed_launchers

# What most organizations connect first, in this order; the other presets follow by name.
MOST_USED = (
    *("github", "slack", "linear", "atlassian"),
    *("notion", "sentry", "postgresql", "playwright"),
)
# Presets that need neither an account nor a value, for the first steps.
STARTERS = ("time", "microsoft-learn", "aws-knowledge", "cloudflare-documentation")
View = Callable[..., HttpResponseBase]


def list_preset_cards(principal: Principal, destination: "ServerDestination") -> list["PresetCard"]:
    """Return the presets of the gallery by name (four queries)."""
    organization_id = principal.organization_id
    launchers, enabled = list_allowed_launchers(), list_enabled_ids(organization_id)
    servers = Server.objects.in_scope(destination.scope_id or organization_id)
    added = set(servers.exclude(preset=None).values_list("preset_id", flat=True))
    cards = [
        PresetCard(
            preset,
            destination.url("preset", preset.slug),
            may_start=_can_start(preset, launchers),
            enabled=preset.pk in enabled,
            may_use=principal.platform_admin or preset.pk in enabled,
            added=preset.pk in added,
        )
        for preset in Preset.objects.available_to(organization_id)
    ]
    return sorted(cards, key=lambda card: card.preset.name.casefold())


def list_starter_cards(
    principal: Principal, destination: "ServerDestination"
) -> list["PresetCard"]:
    """Return the presets that a new organization can try without an account, enabled ones first."""
    usable = {
        card.preset.slug: card
        for card in list_preset_cards(principal, destination)
        if card.may_use and card.may_start and card.preset.slug in STARTERS and not card.added
    }
    cards = [usable[slug] for slug in STARTERS if slug in usable]
    return sorted(cards, key=lambda card: not card.enabled)


def _group_cards(cards: Sequence["PresetCard"]) -> list[tuple[Any, list["PresetCard"]]]:
    """Return the cards under titles: those that are used most, and the others."""
    by_slug = {card.preset.slug: card for card in cards if card.preset.organization_id is None}
    most_used = [by_slug[slug] for slug in MOST_USED if slug in by_slug]
    other_cards = [card for card in cards if card not in most_used]
    groups = [(_("Most used"), most_used), (_("All others"), other_cards)]
    return [(title, members) for title, members in groups if members]


def choose_preset(
    request: HttpRequest, principal: Principal, destination: ServerDestination
) -> HttpResponseBase:
    """Show the preset gallery, filtered by category."""
    principal.require(destination.required_action)
    all_cards = list_preset_cards(principal, destination)
    category_slugs = {card.category_slug for card in all_cards}
    selected_category = request.GET.get("category", "")
    cards = [card for card in all_cards if selected_category in ("", card.category_slug)]
    return destination.render_page(
        request,
        "presets",
        "presets/gallery.html",
        groups=_group_cards(cards),
        categories=sorted(
            ((category, preset_catalog.format_category(category)) for category in category_slugs),
            key=lambda item: item[1],
        ),
        category=selected_category,
        other_ways=(destination.url("paste"), destination.url("form")),
    )


@dataclass(frozen=True)
class PresetCard:
    """A preset in the gallery, with its form URL and whether its launcher is allowed.

    `enabled` is the organization's state, `may_use` the current user's; `added` means that there is
    a server of it.
    """

    preset: Preset
    url: str
    may_start: bool
    enabled: bool
    may_use: bool
    added: bool

    @property
    def requirement(self) -> tuple[Any, str]:
        """Return what a person needs to connect it, in words, with an icon."""
        parameters = self.preset.parameters
        required = [p for p in parameters if p.get("required", True) and not p.get("default")]
        if self.preset.auth_type == Server.Auth.OAUTH2:
            return _("Sign-in"), "person"
        if any(p.get("secret") for p in required):
            return _("Token"), "lock"
        if required:
            return _("Settings"), "tune"
        if any(p.get("secret") for p in parameters):
            return _("Token optional"), "lock_open"
        return _("No account"), "check_circle"

    @property
    def secrets(self) -> list[str]:
        parameters = preset_catalog.localize_parameters(self.preset)
        required_parameters = (p for p in parameters if p.get("secret") and p.get("required", True))
        return [make_visible(str(p.get("label") or p["name"]), 60) for p in required_parameters]

    @property
    def description(self) -> str:
        return preset_catalog.localize_description(self.preset)

    @property
    def category_slug(self) -> str:
        return self.preset.category or preset_catalog.OTHER_CATEGORY

    @property
    def category(self) -> str:
        """Return the label of the category."""
        return preset_catalog.format_category(self.category_slug)

    @property
    def transport(self) -> Any:
        """Return the label of the transport."""
        return Server.Transport(self.preset.transport_type).label

    @property
    def command(self) -> str:
        """Return the launcher, or an empty string."""
        return make_visible(str(self.preset.endpoint_config.get("command", "")), 60)

    @property
    def words(self) -> str:
        """Return the text that the search matches, localized and English."""
        preset = self.preset
        parts = (
            preset.name,
            preset.slug,
            preset.description,
            preset.category,
            *preset.replaces,
            *preset.labels,
        )
        return make_visible(" ".join((*parts, self.description, self.category)), 2_000)


def _can_start(preset: Preset, launchers: frozenset[str]) -> bool:
    return preset.endpoint_config.get("command", "") in {"", *launchers}


class AddPresetForm(forms.Form):
    """A name, and the preset's parameters."""

    name = forms.CharField(label=_("Name"), widget=TextInput(attrs={"autocomplete": "off"}))

    def __init__(self, principal: Principal, preset: Preset, *args: Any, **kwargs: Any) -> None:
        """Add a field for each parameter."""
        kwargs["initial"] = {"name": preset.slug}
        super().__init__(*args, **kwargs)
        for parameter in preset_catalog.localize_parameters(preset):
            self.fields[_build_field_name(parameter["name"])] = _build_parameter_field(parameter)
        if preset.transport_type == Server.Transport.HTTP:
            self.fields["allow_private"] = forms.BooleanField(
                label=_("Allow private or loopback address"),
                required=False,
                widget=Checkbox,
                disabled=not principal.may(Action.ALLOW_PRIVATE_ADDRESS),
                help_text=_("Only a platform administrator can allow it."),
            )

    def get_values(self, preset: Preset) -> dict[str, str]:
        """Return the non-blank values by parameter name."""
        filled_values = {
            p["name"]: self.cleaned_data[_build_field_name(p["name"])] for p in preset.parameters
        }
        return {name: value for name, value in filled_values.items() if value}


def add_by_preset(
    request: HttpRequest, principal: Principal, destination: ServerDestination, slug: str
) -> HttpResponseBase:
    """Show a preset's parameters, or create the server."""
    principal.require(destination.required_action)
    preset = get_preset(principal, slug)
    form = AddPresetForm(principal, preset, request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        try:
            spec = _build_spec(principal, preset, form)
            server = destination.create_server(principal, spec, preset)
        except Problem as problem:
            add_problem_to_form(
                form, problem, {p["name"]: _build_field_name(p["name"]) for p in preset.parameters}
            )
        else:
            return redirect_after_add(request, destination, server)
    return destination.render_page(
        request,
        "presets",
        "presets/add_by_preset.html",
        preset=preset,
        about=preset_catalog.localize_description(preset),
        transport=Server.Transport(preset.transport_type).label,
        sign_in_text=Server.Auth(preset.auth_type).label,
        form=form,
        may_start=_can_start(preset, list_allowed_launchers()),
        may_use=can_use(principal, preset),
        switch=build_preset_switch(principal, preset),
        folders=_list_allowed_folders(principal, preset),
        sandbox=_describe_sandbox(preset),
    )


def _describe_sandbox(preset: Preset) -> str:
    """Describe the sandbox that the program runs in."""
    defaults = get_default_sandbox()
    kind = Server.SandboxMode(preset.sandbox or defaults.mode or "")
    if kind == Server.SandboxMode.NONE:
        return _t(
            "none: runs with Bonobot's own permissions. You can choose a sandbox "
            "on the Configuration page of the server."
        )
    network = Server.Network(preset.network or DEFAULT_NETWORKS[kind])
    access = (
        _t("Access only to the organization's own folders")
        if kind == Server.SandboxMode.SANDBOX  # its label begins with the word of the row
        else kind.label
    )
    return f"{access}; {network.label}"


def _list_allowed_folders(principal: Principal, preset: Preset) -> list[str]:
    """Return the folders that a stdio preset's file parameters may point into."""
    is_stdio = preset.transport_type == Server.Transport.STDIO
    if not is_stdio or not any(p.get("kind") in FOLDER_KINDS for p in preset.parameters):
        return []
    return [str(folder) for folder in list_allowed_folders(principal.organization_id)]


def _build_spec(principal: Principal, preset: Preset, form: AddPresetForm) -> ServerSpec:
    cleaned = form.cleaned_data
    overrides = {"allow_private": True} if cleaned.get("allow_private") else {}
    return build_server_spec(
        principal, preset, form.get_values(preset), name=cleaned["name"], **overrides
    )


def _build_field_name(name: str) -> str:
    return f"parameter-{name}"


def _build_parameter_field(parameter: dict[str, Any]) -> forms.Field:
    secret = bool(parameter.get("secret"))
    default = str(parameter.get("default") or "")
    widget: Any = (
        SecretInput()
        if secret
        else TextInput(attrs={"autocomplete": "off", "placeholder": parameter.get("example", "")})
    )
    return forms.CharField(
        label=make_visible(str(parameter.get("label") or parameter["name"])),
        required=bool(parameter.get("required", True)) and not default,
        initial=default,
        help_text=make_visible(str(parameter.get("help") or parameter.get("description") or "")),
        widget=widget,
    )


@dataclass(frozen=True)
class PresetSwitch:
    """The state and URL of the button that enables or disables a preset."""

    organization: Organization
    enabled: bool
    url: str


def build_preset_switch(principal: Principal, preset: Preset) -> PresetSwitch | None:
    """Return the button for a preset (2 queries), or None if it can't be switched."""
    if not principal.platform_admin or not preset.needs_enabling:
        return None
    organization = Organization.objects.get(pk=principal.organization_id)
    enabled = is_enabled(organization.pk, preset)
    action = "disable" if enabled else "enable"
    url = reverse(f"admin:mcp_servers_preset_{action}", args=[preset.pk])
    return PresetSwitch(organization, enabled, url)


def enable_preset_view(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Enable a preset for the active organization."""
    return _set_preset_enabled(request, object_id, enabled=True)


def disable_preset_view(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Disable a preset for the active organization."""
    return _set_preset_enabled(request, object_id, enabled=False)


def _set_preset_enabled(
    request: HttpRequest, object_id: UUID, *, enabled: bool
) -> HttpResponseBase:
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    principal = resolve_principal(request)
    presets = Preset.objects.available_to(principal.organization_id)
    preset: Preset | None = presets.filter(pk=object_id).first()
    if preset is None:
        raise NotFound(
            format_message("The preset {slug!r} doesn't exist.", slug=str(object_id)),
            remedy="Check the organization you are working in.",
        )
    names: dict[str, Any] = {
        "preset": make_visible(preset.name),
        "organization": Organization.objects.get(pk=principal.organization_id).name,
    }
    if enabled:
        enable_preset(principal, preset)
        messages.success(request, _t("%(preset)s is enabled for %(organization)s.") % names)
    else:
        disable_preset(principal, preset)
        text = _t("%(preset)s is disabled for %(organization)s. Existing servers aren't affected.")
        messages.success(request, text % names)
    return redirect_back(request, reverse("admin:mcp_servers_preset_change", args=[preset.pk]))
