"""Presets: ready server entries, and adding a server from one."""

from typing import Any

import django_filters
from django.db.models import F
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.tenancy.api.resources import READ, Resource, found_or_404
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.principals import Principal
from mcp_servers.api.shapes import AUTH_CONFIG, ENDPOINT_CONFIG, JSON_OBJECT
from mcp_servers.models import Preset, Server
from mcp_servers.presets.catalogue import fill
from mcp_servers.registration import add


class PresetFilter(django_filters.FilterSet):
    """What presets are looked for by."""

    category = django_filters.CharFilter()
    q = django_filters.CharFilter(
        field_name="name", lookup_expr="icontains", label="Part of the name"
    )


class PresetShape(Shape):
    """A preset with the parameters that a person fills."""

    id = serializers.UUIDField()
    slug = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    category = serializers.CharField()
    documentation_url = serializers.CharField()
    transport_type = serializers.CharField()
    endpoint_config = serializers.SerializerMethodField(help_text="`${NAME}` is a parameter.")
    auth_config = serializers.SerializerMethodField()
    parameters = serializers.SerializerMethodField()
    own = serializers.SerializerMethodField(help_text="Whether the organization made it.")

    @extend_schema_field(ENDPOINT_CONFIG)
    def get_endpoint_config(self, preset: Preset) -> Any:
        """Return the configuration with its parameters unfilled."""
        return preset.endpoint_config

    @extend_schema_field(AUTH_CONFIG)
    def get_auth_config(self, preset: Preset) -> Any:
        """Return how a server made from it signs in."""
        return {"type": preset.auth_type, **preset.auth_config}

    @extend_schema_field({"type": "array", "items": JSON_OBJECT})
    def get_parameters(self, preset: Preset) -> Any:
        """Return what a person fills: name, label, whether it is secret or required."""
        return preset.parameters

    def get_own(self, preset: Preset) -> bool:
        """Tell whether the organization made it."""
        return preset.organization_id is not None


class Presets(Resource):
    """The catalogue."""

    rules = {"GET": READ}
    queryset = Preset.objects.none()
    filterset_class = PresetFilter
    ordering = ("name", "pk")

    @operation("list_presets", answer=PresetShape(many=True))
    def get(self, request: object) -> Response:
        """List the platform's presets and the organization's own."""
        return self.listed(Preset.objects.offered_to(self.organization_id), PresetShape)


def add_from_preset(principal: Principal, body: dict[str, Any], **where: Any) -> Server:
    """Add a server from the preset that the body names; raises `NotFound`, `Invalid`."""
    slug = body["preset"]
    offered = Preset.objects.offered_to(principal.organization_id).filter(slug=slug)
    # The organization's own comes before the platform's of the same name.
    own_first = offered.order_by(F("organization").desc(nulls_last=True))
    preset = found_or_404(own_first.first(), "preset", slug, field="preset")
    common = {name: body[name] for name in ("name", "enabled") if name in body}
    spec = fill(preset, body.get("parameters", {}), **common)
    return add(principal, spec, preset=preset, **where)
