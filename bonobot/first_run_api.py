"""REST of the first run: how far the organization is, what is skipped, and whether it is hidden."""

from collections.abc import Mapping
from typing import Any

from django.urls import path
from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from bonobot.first_run import SLUGS, begun, close, skip
from bonobot.tenancy.api.resources import Resource
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape, VersionedBody, VersionedShape
from bonobot.tenancy.roles import Action


class FirstStepShape(Shape):
    """One step."""

    slug = serializers.CharField()
    title = serializers.CharField()
    about = serializers.CharField()
    done = serializers.BooleanField(help_text="Seen from what there is, whoever did it.")
    skipped = serializers.BooleanField()


class FirstRunShape(VersionedShape):
    """How far the organization has come."""

    steps = FirstStepShape(many=True)
    next = serializers.CharField(
        allow_null=True, help_text="The first step that is left; null: none is."
    )
    hidden = serializers.BooleanField(help_text="It was taken off the dashboard.")

    def parts_of(self, instance: Any, shown: Mapping[str, Any]) -> dict[str, Any]:
        """Return what people say about it; which steps are done follows from other things."""
        skipped = [step["slug"] for step in shown["steps"] if step["skipped"]]
        return {"hidden": shown["hidden"], "skipped": skipped}


@extend_schema_serializer(examples=[OpenApiExample("Enough", {"hidden": True, "skipped": ["ask"]})])
class FirstRunBody(VersionedBody):
    """What people say about it."""

    hidden = serializers.BooleanField(help_text="Off the dashboard.")
    skipped = serializers.ListField(
        child=serializers.ChoiceField(SLUGS),
        max_length=len(SLUGS),
        help_text="The steps that are left out; the others are taken up again.",
    )


class OneFirstRun(Resource):
    """The first run of the organization that is worked in."""

    rules = {"GET": Action.MANAGE_SERVERS, "PATCH": Action.MANAGE_SERVERS}

    @operation("get_first_run", answer=FirstRunShape)
    def get(self, request: object) -> Response:
        """Show the first steps, which are done and which are skipped."""
        return self._answer()

    @operation("change_first_run", body=FirstRunBody, answer=FirstRunShape)
    def patch(self, request: object) -> Response:
        """Skip steps or take them up again, hide the first run or bring it back."""
        said: dict[str, Any] = self.read(FirstRunBody, partial=True)
        if "skipped" in said:
            for slug in SLUGS:
                skip(self.principal, slug, skipped=slug in said["skipped"])
        if "hidden" in said:
            close(self.principal, closed=said["hidden"])
        return self._answer()

    def _answer(self) -> Response:
        found = begun(self.organization_id)
        following = found.next.slug if found.next else None
        told = {"steps": found.steps, "next": following, "hidden": found.closed}
        return self.shown(told, FirstRunShape)


urlpatterns = [path("first-run", OneFirstRun.as_view(), name="first-run")]
