"""Shapes: what bodies and answers look like. The rules live in the modules that act on them."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail


class Shape(serializers.Serializer):
    """A body or an answer; a member that isn't declared is refused, so that no typo passes."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated members; raises ValidationError naming the first strange ones."""
        if isinstance(data, Mapping):
            known = [name for name, field in self.fields.items() if not field.read_only]
            refusal = ErrorDetail(
                f"There is no such member; there are: {', '.join(known)}.", code="unknown_field"
            )
            if strange := sorted(set(map(str, data)) - set(known)):
                raise serializers.ValidationError({name: [refusal] for name in strange[:10]})
            if numbers := [name for name, field in self.fields.items() if _is_number(field, data)]:
                refusal = ErrorDetail("It is a number, where a text belongs.", code="invalid")
                raise serializers.ValidationError({name: [refusal] for name in numbers})
        return super().to_internal_value(data)


def _is_number(field: Any, data: Mapping[str, Any]) -> bool:
    """Tell whether a text was written as a number; DRF would take it for one."""
    written = data.get(field.field_name)
    return isinstance(field, serializers.CharField) and isinstance(written, int | float)


class Fault(Shape):
    """One thing that is wrong with a request."""

    field = serializers.CharField(help_text="JSON path of the member, or the parameter.")
    code = serializers.CharField()
    detail = serializers.CharField()


class ProblemDetails(Shape):
    """An error, as RFC 9457 problem details. Programs decide on `code`; people read the rest."""

    type = serializers.CharField(help_text="Always `about:blank`: `code` tells problems apart.")
    title = serializers.CharField()
    status = serializers.IntegerField(help_text="The HTTP status again.")
    code = serializers.CharField(help_text="Stable, in snake_case.")
    detail = serializers.CharField(help_text="What happened, in a sentence.")
    field = serializers.CharField(required=False, help_text="Which member or parameter is meant.")
    remedy = serializers.CharField(required=False, help_text="What to do next.")
    rule = serializers.CharField(required=False, help_text="The rule that refused.")
    retry_after = serializers.FloatField(required=False, help_text="Seconds.")
    approval_id = serializers.CharField(
        required=False, help_text="With `approval_required`: the question that waits for a person."
    )
    approval_url = serializers.CharField(required=False, help_text="Where a person answers it.")
    expires_at = serializers.CharField(required=False, help_text="When it becomes a no.")
    # DRF moves declared fields away, so its own property of this name stays what it is.
    errors = Fault(many=True, required=False)  # type: ignore[assignment]
