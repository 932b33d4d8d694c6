"""Presets: list, create, update, delete, enable and disable."""

from contextlib import suppress
from typing import Any
from uuid import UUID

import django_filters
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ, ResourceView, require_row
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictFilterSet
from bonobot.core.api.serializers import VersionedBody, VersionedSerializer
from mcp_servers.api.serializers import (
    ENDPOINT_CONFIG,
    JSON_OBJECT,
    UNFILLED_AUTH_CONFIG,
    AuthConfigField,
    EndpointConfigField,
)
from mcp_servers.models import Preset, Server
from mcp_servers.presets import catalog as preset_catalog
from mcp_servers.presets.enabled_presets import disable_preset, enable_preset, list_enabled_ids
from mcp_servers.presets.services import (
    PresetSpec,
    build_server_spec,
    create_preset,
    delete_preset,
    get_preset,
    patch_preset,
)
from mcp_servers.presets.validation import MAX_PARAMETERS
from mcp_servers.services import create_server


class PresetFilter(StrictFilterSet):
    """Filters for the list of presets."""

    category = django_filters.CharFilter()
    q = django_filters.CharFilter(
        field_name="name", lookup_expr="icontains", label="Part of the name"
    )


class PresetSerializer(VersionedSerializer):
    """A preset with its parameters."""

    id = serializers.UUIDField()
    slug = serializers.CharField()
    name = serializers.CharField()
    description = serializers.SerializerMethodField(help_text="In the language of the request.")
    category = serializers.CharField()
    documentation_url = serializers.CharField()
    transport_type = serializers.CharField()
    endpoint_config = serializers.SerializerMethodField(help_text="`${NAME}` is a parameter.")
    auth_config = serializers.SerializerMethodField()
    parameters = serializers.SerializerMethodField()
    replaces = serializers.ListField(
        child=serializers.CharField(),
        help_text="Package names that are used elsewhere but don't exist.",
    )
    gone = serializers.BooleanField(
        help_text="True if the package registry didn't find the package at the last check."
    )
    own = serializers.SerializerMethodField(help_text="True if the organization created it.")
    enabled = serializers.SerializerMethodField(
        help_text=(
            "True if the organization can add servers from it. A platform administrator must "
            "enable stdio presets of the catalog; all other presets are always enabled."
        )
    )

    def get_description(self, preset: Preset) -> str:
        return preset_catalog.localize_description(preset)

    @extend_schema_field(ENDPOINT_CONFIG)
    def get_endpoint_config(self, preset: Preset) -> Any:
        """Return the configuration with its parameters unfilled."""
        return preset.endpoint_config

    @extend_schema_field(UNFILLED_AUTH_CONFIG)
    def get_auth_config(self, preset: Preset) -> Any:
        """Return the sign-in configuration with its parameters unfilled."""
        return {"type": preset.auth_type, **preset.auth_config}

    @extend_schema_field({"type": "array", "items": JSON_OBJECT})
    def get_parameters(self, preset: Preset) -> Any:
        """Return the localized parameters."""
        return preset_catalog.localize_parameters(preset)

    def get_own(self, preset: Preset) -> bool:
        """Return whether the organization owns it."""
        return preset.organization_id is not None

    def get_enabled(self, preset: Preset) -> bool:
        """Return whether the caller's organization may use it."""
        return preset.pk in self.context["enabled"]


class PresetBody(VersionedBody):
    """A preset of the organization to create or update; `${NAME}` is a parameter."""

    name = serializers.CharField(max_length=255)
    description = serializers.CharField(required=False, allow_blank=True, max_length=1_000)
    category = serializers.SlugField(required=False, max_length=64)
    icon = serializers.SlugField(required=False, allow_blank=True, max_length=64)
    documentation_url = serializers.CharField(required=False, allow_blank=True, max_length=500)
    transport_type = serializers.ChoiceField(["stdio", "http"])
    endpoint_config = EndpointConfigField()
    auth_config = AuthConfigField(required=False)
    parameters = serializers.ListField(
        child=serializers.DictField(), required=False, max_length=MAX_PARAMETERS
    )


PresetSerializer.body_classes = (PresetBody,)


class PresetView(ResourceView):
    """Base class for the presets of the organization."""

    def build_preset_response(self, preset: Preset, *, status: int = 200) -> Response:
        return self.respond_row(
            preset, PresetSerializer, status=status, enabled=self.load_enabled_ids()
        )

    def load_enabled_ids(self) -> frozenset[UUID]:
        """Return the ids of the presets that the caller's organization may use."""
        return list_enabled_ids(self.organization_id)

    def get_preset(self, preset_id: str) -> Preset:
        """Return the preset with this id or slug; raises `NotFound`."""
        presets = Preset.objects.available_to(self.organization_id)
        with suppress(ValueError):
            if preset := presets.filter(pk=UUID(preset_id)).first():
                return preset
        preset_by_slug = Preset.objects.find_by_slug(self.organization_id, preset_id)
        return require_row(preset_by_slug, "preset", preset_id, field="preset_id")


class PresetListView(PresetView):
    """The preset catalog."""

    rules = {"GET": READ, "POST": Action.MANAGE_SERVERS}
    queryset = Preset.objects.none()
    filterset_class = PresetFilter
    ordering = ("name", "pk")
    orderings = ("name", "slug", "category")

    @describe_operation("list_presets", answer=PresetSerializer(many=True))
    def get(self, request: object) -> Response:
        """List presets: the platform's and the organization's."""
        presets = Preset.objects.available_to(self.organization_id)
        return self.respond_page(presets, PresetSerializer, enabled=self.load_enabled_ids())

    @describe_operation("create_preset", body=PresetBody, answer=PresetSerializer, status=201)
    def post(self, request: object) -> Response:
        """Create a preset of the organization; stdio requires a platform administrator."""
        preset = create_preset(self.principal, PresetSpec(**self.read_body(PresetBody)))
        return self.build_preset_response(preset, status=201)


class PresetDetailView(PresetView):
    """One preset, by ID or slug."""

    rules = {"GET": READ, "PATCH": Action.MANAGE_SERVERS, "DELETE": Action.MANAGE_SERVERS}

    @describe_operation("get_preset", answer=PresetSerializer)
    def get(self, request: object, preset_id: str) -> Response:
        """Get a preset."""
        return self.build_preset_response(self.get_preset(preset_id))

    @describe_operation("update_preset", body=PresetBody, answer=PresetSerializer)
    def patch(self, request: object, preset_id: str) -> Response:
        """Update a preset of the organization; existing servers are unchanged."""
        preset = self.get_preset(preset_id)
        patch_preset(self.principal, preset, self.read_body(PresetBody, partial=True))
        return self.build_preset_response(preset)

    @describe_operation("delete_preset", status=204)
    def delete(self, request: object, preset_id: str) -> Response:
        """Delete a preset of the organization; existing servers are kept."""
        delete_preset(self.principal, self.get_preset(preset_id))
        return Response(status=204)


class EnablePresetView(PresetView):
    """Enable a preset for the organization."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation("enable_preset", answer=PresetSerializer)
    def post(self, request: object, preset_id: str) -> Response:
        """Enable a stdio preset of the catalog for the organization.

        Requires a platform administrator. Problems: `platform_admin_only`, `preset_always_enabled`.
        """
        preset = self.get_preset(preset_id)
        enable_preset(self.principal, preset)
        return self.build_preset_response(preset)


class DisablePresetView(PresetView):
    """Disable a preset for the organization."""

    rules = {"POST": Action.MANAGE_SERVERS}

    @describe_operation("disable_preset", answer=PresetSerializer)
    def post(self, request: object, preset_id: str) -> Response:
        """Disable a stdio preset of the catalog for the organization; its servers are kept.

        Requires a platform administrator. Problems: `platform_admin_only`, `preset_always_enabled`.
        """
        preset = self.get_preset(preset_id)
        disable_preset(self.principal, preset)
        return self.build_preset_response(preset)


def create_server_from_preset(principal: Principal, body: dict[str, Any], **options: Any) -> Server:
    """Create a server from the preset that the body names.

    Raises `NotFound`, `InvalidInput`, and `Forbidden` (`preset_not_enabled`).
    """
    preset = get_preset(principal, body["preset"])
    common = {name: body[name] for name in ("name", "enabled") if name in body}
    spec = build_server_spec(principal, preset, body.get("parameters", {}), **common)
    return create_server(principal, spec, preset=preset, **options)
