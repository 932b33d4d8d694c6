"""REST of onboarding."""

from collections.abc import Mapping
from typing import Any

from django.urls import path
from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.console.onboarding import (
    SLUGS,
    load_onboarding_progress,
    set_onboarding_closed,
    set_step_skipped,
)
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import ResourceView
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer


class OnboardingStepSerializer(StrictSerializer):
    """One step."""

    slug = serializers.CharField()
    title = serializers.CharField()
    about = serializers.CharField()
    done = serializers.BooleanField(help_text="Seen from what there is, whoever did it.")
    skipped = serializers.BooleanField()


class OnboardingSerializer(VersionedSerializer):
    """How far the organization has come."""

    steps = OnboardingStepSerializer(many=True)
    next = serializers.CharField(
        allow_null=True, help_text="The first step that is left; null: none is."
    )
    hidden = serializers.BooleanField(help_text="It was taken off the dashboard.")

    def build_parts(self, instance: Any, representation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the writable values; which steps are done is computed."""
        skipped = [step["slug"] for step in representation["steps"] if step["skipped"]]
        return {"hidden": representation["hidden"], "skipped": skipped}


@extend_schema_serializer(examples=[OpenApiExample("Enough", {"hidden": True, "skipped": ["ask"]})])
class OnboardingBody(VersionedBody):
    """What people say about it."""

    hidden = serializers.BooleanField(help_text="Off the dashboard.")
    skipped = serializers.ListField(
        child=serializers.ChoiceField(SLUGS),
        max_length=len(SLUGS),
        help_text="The steps that are left out; the others are taken up again.",
    )


class OnboardingView(ResourceView):
    """The first run of the organization that is worked in."""

    rules = {"GET": Action.MANAGE_SERVERS, "PATCH": Action.MANAGE_SERVERS}

    @describe_operation("get_first_run", answer=OnboardingSerializer)
    def get(self, request: object) -> Response:
        """Show the first steps, which are done and which are skipped."""
        return self._show_progress()

    @describe_operation("change_first_run", body=OnboardingBody, answer=OnboardingSerializer)
    def patch(self, request: object) -> Response:
        """Skip steps or take them up again, hide the first run or bring it back."""
        values: dict[str, Any] = self.read_body(OnboardingBody, partial=True)
        if "skipped" in values:
            for slug in SLUGS:
                set_step_skipped(self.principal, slug, skipped=slug in values["skipped"])
        if "hidden" in values:
            set_onboarding_closed(self.principal, closed=values["hidden"])
        return self._show_progress()

    def _show_progress(self) -> Response:
        progress = load_onboarding_progress(self.organization_id)
        next_slug = progress.next.slug if progress.next else None
        data = {"steps": progress.steps, "next": next_slug, "hidden": progress.closed}
        return self.respond_row(data, OnboardingSerializer)


urlpatterns = [path("first-run", OnboardingView.as_view(), name="first-run")]
