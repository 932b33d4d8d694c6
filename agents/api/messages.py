"""Messages to an agent as programs send them."""

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers

from agents.attachments import LARGEST_TEXT, MOST
from agents.pictures import LARGEST
from agents.sessions.requests import MESSAGE_LENGTH
from bonobot.tenancy.api.shapes import Shape

QUESTION = "What time is it in Asia/Tokyo?"


class AttachmentBody(Shape):
    """A file that is sent with a message."""

    name = serializers.CharField(max_length=255)
    content = serializers.CharField(
        trim_whitespace=False,
        help_text=f"Base64 of an image (PNG, JPEG, GIF, WebP; {LARGEST:,} bytes at most) or of a "
        f"text in UTF-8 ({LARGEST_TEXT:,} bytes at most).",
    )


@extend_schema_serializer(examples=[OpenApiExample("A message", {"message": QUESTION})])
class MessageBody(Shape):
    """A message for an agent."""

    message = serializers.CharField(
        max_length=MESSAGE_LENGTH, trim_whitespace=False, allow_blank=True
    )
    attachments = AttachmentBody(
        many=True, required=False, help_text=f"At most {MOST}; the body is bounded, too."
    )


@extend_schema_serializer(
    examples=[
        OpenApiExample("The last message, as it was", {}),
        OpenApiExample("Another one, in other words", {"seq": 5, "message": QUESTION}),
    ]
)
class AgainBody(Shape):
    """A message that is sent anew, in its place."""

    seq = serializers.IntegerField(
        required=False, min_value=1, help_text="Of the message; the last one if left out."
    )
    message = serializers.CharField(
        required=False,
        max_length=MESSAGE_LENGTH,
        trim_whitespace=False,
        allow_blank=True,
        help_text="What it says now; the same as before if left out.",
    )
    attachments = AttachmentBody(
        many=True, required=False, help_text="Beside those that it has already."
    )
