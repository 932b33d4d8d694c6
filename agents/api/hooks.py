"""Webhooks that come in: a POST with a trigger's secret starts a run of its workflow.

No one signs in here. The same problem answers an id that there isn't, a trigger without a secret
and a wrong secret.
"""

from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from agents.models import Session
from agents.workflows.hooks import Proof, opened, receive
from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from bonobot.lib.signatures import SIGNATURE, TIMESTAMP
from bonobot.tenancy.api.idempotency import HEADER
from bonobot.tenancy.api.parsing import TooLarge, loads
from bonobot.tenancy.api.resources import AlwaysJSON
from bonobot.tenancy.api.schema import ResourceSchema, operation
from bonobot.tenancy.api.shapes import Shape

LARGEST_BODY = 256 * 1024
LONGEST_DELIVERY = 255
PARAMETERS = [
    OpenApiParameter(
        HEADER,
        str,
        OpenApiParameter.HEADER,
        description="What the sender calls this delivery: sent again, it starts nothing.",
    ),
    OpenApiParameter(
        "Authorization",
        str,
        OpenApiParameter.HEADER,
        description="`Bearer` and the trigger's secret, where the body isn't signed.",
    ),
    OpenApiParameter(
        TIMESTAMP,
        str,
        OpenApiParameter.HEADER,
        description="Of a signed body: seconds since 1970, at most five minutes off.",
    ),
    OpenApiParameter(
        SIGNATURE,
        str,
        OpenApiParameter.HEADER,
        description="`v1=` and the hexadecimal HMAC-SHA256, by the secret, of the timestamp, "
        "a dot, and the body.",
    ),
]


class HookSchema(ResourceSchema):
    """Describes what is opened by a secret instead of a role."""

    def get_override_parameters(self) -> list[Any]:
        """Return the headers of a delivery."""
        return PARAMETERS

    def _roles(self) -> str:
        return "none is needed; the trigger's secret opens it"


class DeliveryShape(Shape):
    """The run that a delivery started."""

    run_id = serializers.UUIDField(source="pk")
    session_id = serializers.UUIDField()
    status = serializers.ChoiceField(Session.Status.choices, source="session.status")


class Hook(APIView):
    """One webhook."""

    authentication_classes = ()
    permission_classes = ()
    content_negotiation_class = AlwaysJSON
    http_method_names = ["post"]
    schema = HookSchema()

    @operation(
        "receive_webhook",
        body={"application/json": {"type": "object", "additionalProperties": True}},
        answer=DeliveryShape,
        status=(200, 201),
        examples=[OpenApiExample("An alert", {"title": "disk full"}, request_only=True)],
        calls=True,
    )
    def post(self, request: Request, hook_id: str) -> Response:
        """Start a run of a workflow with what is sent.

        By the trigger's secret as a bearer or by a signature of the body. 200 answers a delivery
        that came before, with its run as it stands; a signature starts one run. At most 256 KiB.
        """
        body = _body(request)
        proof = _proof(request)
        trigger = opened(hook_id, proof, body)
        run, is_new = receive(trigger, loads(body), _delivery(request), proof.signature)
        shown = DeliveryShape(run).data
        return Response(shown, status=201 if is_new else 200, headers={"Cache-Control": "no-store"})


def _body(request: Request) -> bytes:
    raw: bytes = request.stream.read(LARGEST_BODY + 1) if request.stream else b""
    if len(raw) > LARGEST_BODY:
        raise TooLarge(
            say("The body has more than {largest_body} bytes.", largest_body=LARGEST_BODY),
            remedy="Send less of it.",
        )
    return raw


def _proof(request: Request) -> Proof:
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    return Proof(
        bearer=text.strip() if scheme.lower() == "bearer" else "",
        timestamp=request.headers.get(TIMESTAMP, ""),
        signature=request.headers.get(SIGNATURE, ""),
    )


def _delivery(request: Request) -> str:
    found: str = request.headers.get(HEADER, "")
    if len(found) > LONGEST_DELIVERY or not (found.isascii() and found.isprintable()):
        raise Invalid(
            "The delivery's id is too long, or has characters that can't be seen.",
            code="bad_idempotency_key",
            field=HEADER,
            remedy=say(
                "Send 1 to {longest_delivery} visible ASCII characters, such as a UUID.",
                longest_delivery=LONGEST_DELIVERY,
            ),
        )
    return found
