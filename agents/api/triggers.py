"""Triggers of a workflow: schedules and webhooks, made, changed, given another secret."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.workflows import Inputs, WorkflowResource
from agents.models import Session, Trigger
from agents.workflows.telling import hook_url, triggers_of
from agents.workflows.timing import LONGEST_S, SHORTEST_S
from agents.workflows.triggers import (
    MOST_PER_MINUTE,
    TriggerSpec,
    named,
    remove_trigger,
    replace_secret,
    save_trigger,
)
from bonobot.tenancy.api.resources import READ, named_in_path
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape, VersionedBody, VersionedShape
from bonobot.tenancy.roles import Action

NIGHTLY = {"name": "nightly", "kind": "schedule", "cron": "0 3 * * *", "inputs": {"title": "all"}}
ALERTS = {
    "name": "alerts",
    "kind": "webhook",
    "inputs": {"title": "${/body/alerts/0/labels/alertname}"},
}


@extend_schema_serializer(
    examples=[
        OpenApiExample("A schedule", NIGHTLY, request_only=True),
        OpenApiExample("A webhook", ALERTS, request_only=True),
    ]
)
class TriggerBody(VersionedBody):
    """A trigger as it is written; what is left out stays."""

    name = serializers.SlugField(max_length=64)
    kind = serializers.ChoiceField(Trigger.Kind.choices)
    enabled = serializers.BooleanField(required=False)
    inputs = Inputs(
        required=False,
        help_text="Of each run. Of a webhook with `${/body/…}`; empty: what was sent are they.",
    )
    every_s = serializers.IntegerField(
        required=False, min_value=SHORTEST_S, max_value=LONGEST_S, help_text="Seconds."
    )
    cron = serializers.CharField(
        required=False,
        max_length=100,
        help_text="Instead: minute, hour, day of month, month, day of week.",
    )
    time_zone = serializers.CharField(
        required=False, max_length=64, help_text="Of the cron expression; UTC."
    )
    per_minute = serializers.IntegerField(
        required=False, min_value=1, max_value=MOST_PER_MINUTE, help_text="Of a webhook."
    )


class TriggerShape(VersionedShape):
    """A trigger, with what came of it last."""

    written_as = (TriggerBody,)

    id = serializers.UUIDField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(Trigger.Kind.choices)
    enabled = serializers.BooleanField()
    inputs = Inputs()
    every_s = serializers.IntegerField(allow_null=True)
    cron = serializers.CharField()
    time_zone = serializers.CharField()
    per_minute = serializers.IntegerField()
    next_at = serializers.DateTimeField(allow_null=True, help_text="When a schedule is due.")
    last_at = serializers.DateTimeField(allow_null=True)
    last_code = serializers.CharField(help_text="Why the last run didn't begin; blank if it did.")
    last_run_id = serializers.UUIDField(allow_null=True)
    last_status = serializers.ChoiceField(Session.Status.choices, allow_null=True)
    has_secret = serializers.SerializerMethodField(help_text="Without one a webhook is closed.")
    url = serializers.SerializerMethodField(help_text="Where a webhook is sent to.")

    def get_has_secret(self, trigger: Trigger) -> bool:
        """Tell whether it has a secret."""
        return bool(trigger.secret)

    def get_url(self, trigger: Trigger) -> str:
        """Return its address."""
        return hook_url(trigger)


class NewTriggerShape(TriggerShape):
    """A trigger that was just made, or given another secret."""

    hook_secret = serializers.SerializerMethodField(
        help_text="A webhook's secret: keep it, it isn't shown again. Blank for a schedule."
    )

    def get_hook_secret(self, trigger: Trigger) -> str:
        """Return the secret."""
        return str(self.context["text"])


class TriggerResource(WorkflowResource):
    """A resource of one workflow's triggers."""

    def trigger(self, workflow_id: str, trigger_id: str) -> Trigger:
        """Return the trigger with this id or name; raises `NotFound`."""
        workflow = self.workflow(workflow_id)
        with named_in_path("trigger_id"):
            return named(workflow, trigger_id)

    def told(self, trigger: Trigger, shape: type[Shape], **more: Any) -> Response:
        """Answer a trigger as it stands now."""
        answer = self.shown(triggers_of(trigger.workflow).get(pk=trigger.pk), shape, **more)
        answer["Cache-Control"] = "no-store"
        return answer


class Triggers(TriggerResource):
    """The triggers of a workflow."""

    rules = {"GET": READ, "POST": Action.MANAGE_WORKFLOWS}
    queryset = Trigger.objects.none()
    ordering = ("name", "pk")
    orderings = ("name", "kind")

    @operation("list_workflow_triggers", answer=TriggerShape(many=True))
    def get(self, request: object, workflow_id: str) -> Response:
        """List what starts a workflow by itself, each with its last run."""
        return self.listed(triggers_of(self.workflow(workflow_id)), TriggerShape)

    @operation("add_workflow_trigger", body=TriggerBody, answer=NewTriggerShape, status=201)
    def post(self, request: object, workflow_id: str) -> Response:
        """Add a schedule or a webhook; the answer is where a webhook's secret is shown."""
        workflow, spec = self.workflow(workflow_id), TriggerSpec(**self.read(TriggerBody))
        made, text = save_trigger(self.principal, workflow, spec)
        return self.told(made, NewTriggerShape, status=201, text=text)


class OneTrigger(TriggerResource):
    """One trigger."""

    rules = {
        "GET": READ,
        "PATCH": Action.MANAGE_WORKFLOWS,
        "DELETE": Action.MANAGE_WORKFLOWS,
    }

    @operation("get_workflow_trigger", answer=TriggerShape)
    def get(self, request: object, workflow_id: str, trigger_id: str) -> Response:
        """Show a trigger, by id or name."""
        return self.told(self.trigger(workflow_id, trigger_id), TriggerShape)

    @operation("change_workflow_trigger", body=TriggerBody, answer=TriggerShape)
    def patch(self, request: object, workflow_id: str, trigger_id: str) -> Response:
        """Change parts of a trigger, or switch it on or off; its kind stays."""
        trigger = self.trigger(workflow_id, trigger_id)
        spec = TriggerSpec(**({"name": trigger.name} | self.read(TriggerBody, partial=True)))
        changed, _ = save_trigger(self.principal, trigger.workflow, spec, trigger)
        return self.told(changed, TriggerShape)

    @operation("remove_workflow_trigger", status=204)
    def delete(self, request: object, workflow_id: str, trigger_id: str) -> Response:
        """Remove a trigger; what it started stays."""
        remove_trigger(self.principal, self.trigger(workflow_id, trigger_id))
        return Response(status=204)


class TriggerSecret(TriggerResource):
    """The secret of a webhook."""

    rules = {"POST": Action.MANAGE_WORKFLOWS}

    @operation("replace_trigger_secret", answer=NewTriggerShape)
    def post(self, request: object, workflow_id: str, trigger_id: str) -> Response:
        """Give a webhook another secret; the earlier one opens nothing from now on."""
        trigger = self.trigger(workflow_id, trigger_id)
        return self.told(trigger, NewTriggerShape, text=replace_secret(self.principal, trigger))
