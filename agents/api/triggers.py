"""REST of workflow triggers and incoming webhooks.

Webhooks need no sign-in. An unknown id, a trigger without a secret and a wrong secret get the same
problem.
"""

from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from agents.api.workflows import WorkflowInputsField, WorkflowView
from agents.models import Session, Trigger
from agents.workflows.schedules import MAX_PERIOD_S, MIN_PERIOD_S
from agents.workflows.triggers import (
    MAX_PER_MINUTE,
    TriggerSpec,
    build_webhook_url,
    delete_trigger,
    get_trigger,
    list_triggers,
    replace_secret,
    save_trigger,
)
from agents.workflows.webhook_triggers import (
    MAX_BODY_BYTES,
    WebhookCredentials,
    authenticate_delivery,
    receive_delivery,
)
from bonobot.accounts.api.idempotency_keys import IDEMPOTENCY_HEADER
from bonobot.accounts.api.openapi_schema import ResourceViewSchema, describe_operation
from bonobot.accounts.api.resource_view import READ, set_not_found_field
from bonobot.accounts.roles import Action
from bonobot.core.api.parsers import BodyTooLarge, JSONContentNegotiation, parse_json
from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer
from bonobot.core.crypto.signatures import SIGNATURE_HEADER, TIMESTAMP_HEADER
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

MAX_DELIVERY_ID_LENGTH = 255
DELIVERY_PARAMETERS = [
    OpenApiParameter(
        IDEMPOTENCY_HEADER,
        str,
        OpenApiParameter.HEADER,
        description="The sender's ID for this delivery; sending it again starts nothing.",
    ),
    OpenApiParameter(
        "Authorization",
        str,
        OpenApiParameter.HEADER,
        description="`Bearer` and the trigger's secret, if the body isn't signed.",
    ),
    OpenApiParameter(
        TIMESTAMP_HEADER,
        str,
        OpenApiParameter.HEADER,
        description="For a signed body: seconds since 1970, at most five minutes off.",
    ),
    OpenApiParameter(
        SIGNATURE_HEADER,
        str,
        OpenApiParameter.HEADER,
        description=(
            "`v1=` and the hexadecimal HMAC-SHA256, with the secret as the key, of the "
            "timestamp, a period, and the body."
        ),
    ),
]


class TriggerBody(VersionedBody):
    """A trigger to create or update; omitted fields are unchanged."""

    name = serializers.SlugField(max_length=64)
    kind = serializers.ChoiceField(Trigger.Kind.choices)
    enabled = serializers.BooleanField(required=False)
    inputs = WorkflowInputsField(
        required=False,
        help_text="Inputs of each run; `${/body/…}` for a webhook. Empty: the webhook's body.",
    )
    every_s = serializers.IntegerField(
        required=False,
        min_value=MIN_PERIOD_S,
        max_value=MAX_PERIOD_S,
        help_text="Interval in seconds.",
    )
    cron = serializers.CharField(
        required=False,
        max_length=100,
        help_text=(
            "Cron expression, instead of an interval: minute, hour, day of month, month, day "
            "of week."
        ),
    )
    time_zone = serializers.CharField(
        required=False, max_length=64, help_text="Time zone of the cron expression. Default: UTC."
    )
    per_minute = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_PER_MINUTE,
        help_text="For a webhook: maximum deliveries per minute.",
    )


class TriggerSerializer(VersionedSerializer):
    """A trigger with the result of its last run."""

    body_classes = (TriggerBody,)

    id = serializers.UUIDField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(Trigger.Kind.choices)
    enabled = serializers.BooleanField()
    inputs = WorkflowInputsField()
    every_s = serializers.IntegerField(allow_null=True)
    cron = serializers.CharField()
    time_zone = serializers.CharField()
    per_minute = serializers.IntegerField()
    next_at = serializers.DateTimeField(allow_null=True, help_text="The next run of a schedule.")
    last_at = serializers.DateTimeField(allow_null=True)
    last_code = serializers.CharField(
        help_text="Why the last run didn't start; empty if it started."
    )
    last_run_id = serializers.UUIDField(allow_null=True)
    last_status = serializers.ChoiceField(Session.Status.choices, allow_null=True)
    has_secret = serializers.SerializerMethodField(
        help_text="A webhook without a secret accepts no deliveries."
    )
    url = serializers.SerializerMethodField(help_text="URL of the webhook.")

    def get_has_secret(self, trigger: Trigger) -> bool:
        """Tell whether it has a secret."""
        return bool(trigger.secret)

    def get_url(self, trigger: Trigger) -> str:
        """Return its address."""
        return build_webhook_url(trigger)


class NewTriggerSerializer(TriggerSerializer):
    """A trigger that was created or got a new secret."""

    hook_secret = serializers.SerializerMethodField(
        help_text="A webhook's secret: store it, it isn't shown again. Empty for a schedule."
    )

    def get_hook_secret(self, trigger: Trigger) -> str:
        """Return the secret."""
        return str(self.context["text"])


class TriggerView(WorkflowView):
    """Base class for a workflow's triggers."""

    def get_trigger(self, workflow_id: str, trigger_id: str) -> Trigger:
        """Return the trigger with this id or name; raises `NotFound`."""
        workflow = self.get_workflow(workflow_id)
        with set_not_found_field("trigger_id"):
            return get_trigger(workflow, trigger_id)

    def show_trigger(
        self, trigger: Trigger, serializer_class: type[StrictSerializer], **options: Any
    ) -> Response:
        response = self.respond_row(
            list_triggers(trigger.workflow).get(pk=trigger.pk), serializer_class, **options
        )
        response["Cache-Control"] = "no-store"
        return response


class TriggerListView(TriggerView):
    """The triggers of a workflow."""

    rules = {"GET": READ, "POST": Action.MANAGE_WORKFLOWS}
    queryset = Trigger.objects.none()
    ordering = ("name", "pk")
    orderings = ("name", "kind")

    @describe_operation("list_workflow_triggers", answer=TriggerSerializer(many=True))
    def get(self, request: object, workflow_id: str) -> Response:
        """List a workflow's triggers, each with its last run."""
        return self.respond_page(list_triggers(self.get_workflow(workflow_id)), TriggerSerializer)

    @describe_operation(
        "create_workflow_trigger", body=TriggerBody, answer=NewTriggerSerializer, status=201
    )
    def post(self, request: object, workflow_id: str) -> Response:
        """Create a schedule or a webhook; the response has the webhook's secret."""
        workflow, spec = self.get_workflow(workflow_id), TriggerSpec(**self.read_body(TriggerBody))
        trigger, secret = save_trigger(self.principal, workflow, spec)
        return self.show_trigger(trigger, NewTriggerSerializer, status=201, text=secret)


class TriggerDetailView(TriggerView):
    """One trigger."""

    rules = {
        "GET": READ,
        "PATCH": Action.MANAGE_WORKFLOWS,
        "DELETE": Action.MANAGE_WORKFLOWS,
    }

    @describe_operation("get_workflow_trigger", answer=TriggerSerializer)
    def get(self, request: object, workflow_id: str, trigger_id: str) -> Response:
        """Get a trigger, by ID or name."""
        return self.show_trigger(self.get_trigger(workflow_id, trigger_id), TriggerSerializer)

    @describe_operation("update_workflow_trigger", body=TriggerBody, answer=TriggerSerializer)
    def patch(self, request: object, workflow_id: str, trigger_id: str) -> Response:
        """Update a trigger, or enable or disable it; its kind can't be changed."""
        trigger = self.get_trigger(workflow_id, trigger_id)
        spec = TriggerSpec(**({"name": trigger.name} | self.read_body(TriggerBody, partial=True)))
        updated_trigger, _ = save_trigger(self.principal, trigger.workflow, spec, trigger)
        return self.show_trigger(updated_trigger, TriggerSerializer)

    @describe_operation("delete_workflow_trigger", status=204)
    def delete(self, request: object, workflow_id: str, trigger_id: str) -> Response:
        """Delete a trigger; the runs it started are kept."""
        delete_trigger(self.principal, self.get_trigger(workflow_id, trigger_id))
        return Response(status=204)


class RotateTriggerSecretView(TriggerView):
    """The secret of a webhook."""

    rules = {"POST": Action.MANAGE_WORKFLOWS}

    @describe_operation("replace_trigger_secret", answer=NewTriggerSerializer)
    def post(self, request: object, workflow_id: str, trigger_id: str) -> Response:
        """Replace a webhook's secret; the previous secret stops working immediately."""
        trigger = self.get_trigger(workflow_id, trigger_id)
        return self.show_trigger(
            trigger, NewTriggerSerializer, text=replace_secret(self.principal, trigger)
        )


class WebhookSchema(ResourceViewSchema):
    """The schema of operations that are authorized by a secret instead of a role."""

    def get_override_parameters(self) -> list[Any]:
        """Return the headers of a delivery."""
        return DELIVERY_PARAMETERS

    def _describe_roles(self) -> str:
        return "none; authorized by the trigger's secret"


class WebhookDeliverySerializer(StrictSerializer):
    """The run that a delivery started."""

    run_id = serializers.UUIDField(source="pk")
    session_id = serializers.UUIDField()
    status = serializers.ChoiceField(Session.Status.choices, source="session.status")


class WebhookView(APIView):
    """One webhook."""

    authentication_classes = ()
    permission_classes = ()
    content_negotiation_class = JSONContentNegotiation
    http_method_names = ["post"]
    schema = WebhookSchema()

    @describe_operation(
        "receive_webhook",
        body={"application/json": {"type": "object", "additionalProperties": True}},
        answer=WebhookDeliverySerializer,
        status=(200, 201),
        examples=[OpenApiExample("An alert", {"title": "disk full"}, request_only=True)],
        calls=True,
    )
    def post(self, request: Request, hook_id: str) -> Response:
        """Send a webhook delivery: start a workflow run with the request body.

        Authenticate with the trigger's secret as a bearer token, or with a signature of the body.
        The status code 200 means that the delivery was received before; the response has its run.
        Each signature starts one run. Maximum size: 256 KiB.
        """
        body = _read_body(request)
        credentials = _read_credentials(request)
        trigger = authenticate_delivery(hook_id, credentials, body)
        run, is_new = receive_delivery(
            trigger, parse_json(body), _parse_delivery_id(request), credentials.signature
        )
        data = WebhookDeliverySerializer(run).data
        return Response(data, status=201 if is_new else 200, headers={"Cache-Control": "no-store"})


def _read_body(request: Request) -> bytes:
    body: bytes = request.stream.read(MAX_BODY_BYTES + 1) if request.stream else b""
    if len(body) > MAX_BODY_BYTES:
        raise BodyTooLarge(
            format_message("The request body is larger than {limit} bytes.", limit=MAX_BODY_BYTES),
            remedy="Send a smaller body.",
        )
    return body


def _read_credentials(request: Request) -> WebhookCredentials:
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    return WebhookCredentials(
        bearer=text.strip() if scheme.lower() == "bearer" else "",
        timestamp=request.headers.get(TIMESTAMP_HEADER, ""),
        signature=request.headers.get(SIGNATURE_HEADER, ""),
    )


def _parse_delivery_id(request: Request) -> str:
    delivery_id: str = request.headers.get(IDEMPOTENCY_HEADER, "")
    if len(delivery_id) > MAX_DELIVERY_ID_LENGTH or not (
        delivery_id.isascii() and delivery_id.isprintable()
    ):
        raise InvalidInput(
            "The delivery ID is too long, or contains non-printable characters.",
            code="bad_idempotency_key",
            field=IDEMPOTENCY_HEADER,
            remedy=format_message(
                "Send 1 to {longest_delivery} visible ASCII characters, such as a UUID.",
                longest_delivery=MAX_DELIVERY_ID_LENGTH,
            ),
        )
    return delivery_id
