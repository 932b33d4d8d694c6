"""REST of onboarding."""

from collections.abc import Mapping
from typing import Any

from django.urls import path
from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.console.onboarding import SLUGS, close, load_onboarding_progress, skip
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import ResourceView
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedShape


class OnboardingStepSerializer(StrictSerializer):
    """One step."""

    slug = serializers.CharField()
    title = serializers.CharField()
    about = serializers.CharField()
    done = serializers.BooleanField(help_text="Seen from what there is, whoever did it.")
    skipped = serializers.BooleanField()


class OnboardingSerializer(VersionedShape):
    """How far the organization has come."""

    steps = OnboardingStepSerializer(many=True)
    next = serializers.CharField(
        allow_null=True, help_text="The first step that is left; null: none is."
    )
    hidden = serializers.BooleanField(help_text="It was taken off the dashboard.")

    def parts_of(self, instance: Any, shown: Mapping[str, Any]) -> dict[str, Any]:
        """Return the writable values; which steps are done is computed."""
        skipped = [step["slug"] for step in shown["steps"] if step["skipped"]]
        return {"hidden": shown["hidden"], "skipped": skipped}


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
        return self._answer()

    @describe_operation("change_first_run", body=OnboardingBody, answer=OnboardingSerializer)
    def patch(self, request: object) -> Response:
        """Skip steps or take them up again, hide the first run or bring it back."""
        said: dict[str, Any] = self.read(OnboardingBody, partial=True)
        if "skipped" in said:
            for slug in SLUGS:
                skip(self.principal, slug, skipped=slug in said["skipped"])
        if "hidden" in said:
            close(self.principal, closed=said["hidden"])
        return self._answer()

    def _answer(self) -> Response:
        found = load_onboarding_progress(self.organization_id)
        following = found.next.slug if found.next else None
        told = {"steps": found.steps, "next": following, "hidden": found.closed}
        return self.shown(told, OnboardingSerializer)


urlpatterns = [path("first-run", OnboardingView.as_view(), name="first-run")]
