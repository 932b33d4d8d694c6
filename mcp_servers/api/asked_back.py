"""What a server may ask back, as it is written and read."""

from rest_framework import serializers

from bonobot.tenancy.api.shapes import Shape
from mcp_servers.asked_back import MOST_TOKENS
from mcp_servers.models import Server

SAMPLING = (
    "Whether the server may use the agent's model for itself: `off`, `ask` (a person each time) "
    "or `allow` (within its tokens)."
)
ELICITATION = "Whether it may ask the person who runs the session."
ROOTS = "Whether it is told the session's working folder."


class AskedBackBody(Shape):
    """What the server may ask of whoever calls it."""

    sampling = serializers.ChoiceField(Server.Sampling.choices, required=False, help_text=SAMPLING)
    sampling_tokens = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=0,
        max_value=MOST_TOKENS,
        help_text="Tokens a day that it may use so; null or 0: as the setting says.",
    )
    elicitation = serializers.BooleanField(required=False, help_text=ELICITATION)
    roots = serializers.BooleanField(required=False, help_text=ROOTS)

    def validate_sampling_tokens(self, value: int | None) -> int:
        """Return 0 for the setting's: in a specification None is to keep what is stored."""
        return value or 0


class AskedBackShape(Shape):
    """What the server may ask of whoever calls it."""

    sampling = serializers.ChoiceField(Server.Sampling.choices, help_text=SAMPLING)
    sampling_tokens = serializers.IntegerField(
        allow_null=True, help_text="Tokens a day; null: as the setting says."
    )
    elicitation = serializers.BooleanField(help_text=ELICITATION)
    roots = serializers.BooleanField(help_text=ROOTS)
