"""REST of the first run."""

from collections.abc import Mapping
from typing import Any

from django.urls import path
from rest_framework import serializers
from rest_framework.response import Response

from agents.first_run import (
    SLUGS,
    load_first_run_progress,
    set_first_run_closed,
    set_step_skipped,
)
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import ResourceView
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer


class FirstRunStepSerializer(StrictSerializer):
    """One step of the setup."""

    slug = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    done = serializers.BooleanField(help_text="Computed from the organization's data.")
    skipped = serializers.BooleanField()


class FirstRunSerializer(VersionedSerializer):
    """The setup progress of the organization."""

    steps = FirstRunStepSerializer(many=True)
    next = serializers.CharField(
        allow_null=True, help_text="The first remaining step; null if there is none."
    )
    hidden = serializers.BooleanField(help_text="True if the setup is hidden from the dashboard.")

    def build_parts(self, instance: Any, representation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the writable values; which steps are done is computed."""
        skipped_steps = [step["slug"] for step in representation["steps"] if step["skipped"]]
        return {"hidden": representation["hidden"], "skipped": skipped_steps}


class FirstRunBody(VersionedBody):
    """Changes to the setup."""

    hidden = serializers.BooleanField(help_text="Hide the setup from the dashboard.")
    skipped = serializers.ListField(
        child=serializers.ChoiceField(SLUGS),
        max_length=len(SLUGS),
        help_text="The steps to skip; all other steps are no longer skipped.",
    )


class FirstRunView(ResourceView):
    """The setup of the current organization."""

    rules = {"GET": Action.MANAGE_SERVERS, "PATCH": Action.MANAGE_SERVERS}

    @describe_operation("get_first_run", answer=FirstRunSerializer)
    def get(self, request: object) -> Response:
        """Get the setup steps, and which are done or skipped."""
        return self._show_progress()

    @describe_operation("update_first_run", body=FirstRunBody, answer=FirstRunSerializer)
    def patch(self, request: object) -> Response:
        """Skip or restore setup steps, and hide or show the setup."""
        values: dict[str, Any] = self.read_body(FirstRunBody, partial=True)
        if "skipped" in values:
            for slug in SLUGS:
                set_step_skipped(self.principal, slug, is_skipped=slug in values["skipped"])
        if "hidden" in values:
            set_first_run_closed(self.principal, is_closed=values["hidden"])
        return self._show_progress()

    def _show_progress(self) -> Response:
        progress = load_first_run_progress(self.organization_id)
        next_slug = progress.next.slug if progress.next else None
        data = {"steps": progress.steps, "next": next_slug, "hidden": progress.closed}
        return self.respond_row(data, FirstRunSerializer)


urlpatterns = [path("first-run", FirstRunView.as_view(), name="first-run")]
