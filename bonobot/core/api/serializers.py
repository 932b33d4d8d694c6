"""Base serializers: bodies, versions, and problem details."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail

from bonobot.core.db.object_version import MAX_VERSION_LENGTH, collect_secret_marks, compute_version
from bonobot.core.renamed_fields import replace_renamed_fields

VERSION_HELP = (
    "Digest of the object's writable fields; also the `ETag`. If you send it with a PUT "
    "or PATCH request and the object has changed, the write fails (`version_conflict`)."
)


class StrictSerializer(serializers.Serializer[Any]):
    """A request or response body; unknown fields are rejected."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated fields; raises ValidationError for unknown ones."""
        if isinstance(data, Mapping):
            writable_names = [name for name, field in self.fields.items() if not field.read_only]
            data = replace_renamed_fields(data, writable_names)
            error = ErrorDetail(
                f"Unknown field. Supported fields: {', '.join(writable_names)}.",
                code="unknown_field",
            )
            if unknown_names := sorted(set(map(str, data)) - set(writable_names)):
                raise serializers.ValidationError({name: [error] for name in unknown_names[:10]})
            if number_names := [
                name for name, field in self.fields.items() if _is_number_for_text(field, data)
            ]:
                error = ErrorDetail("Must be a string, not a number.", code="invalid")
                raise serializers.ValidationError({name: [error] for name in number_names})
            if flag_names := [
                name for name, field in self.fields.items() if _is_text_for_flag(field, data)
            ]:
                error = ErrorDetail("Must be true or false.", code="invalid")
                raise serializers.ValidationError({name: [error] for name in flag_names})
        return super().to_internal_value(data)


def _is_text_for_flag(field: Any, data: Mapping[str, Any]) -> bool:
    """Return whether a boolean field got a text or number, such as "yes", which DRF accepts."""
    value = data.get(field.field_name)
    return isinstance(field, serializers.BooleanField) and not isinstance(value, bool | None)


def _is_number_for_text(field: Any, data: Mapping[str, Any]) -> bool:
    """Return whether a text field got a number, which DRF would accept."""
    value = data.get(field.field_name)
    return isinstance(field, serializers.CharField) and isinstance(value, int | float)


class VersionField(serializers.CharField):
    """The version that the client read."""

    def __init__(self, **options: Any) -> None:
        help_text = "The version that was read. If omitted, the version isn't checked."
        super().__init__(max_length=MAX_VERSION_LENGTH, help_text=help_text, **options)


class VersionedBody(StrictSerializer):
    """A request body with the version of the object to change."""

    version = VersionField(required=False, write_only=True)


class NumberedBody(StrictSerializer):
    """A versioned body of an object that numbers its versions."""

    version = serializers.IntegerField(
        required=False, write_only=True, help_text=str(VersionField(required=False).help_text)
    )


class VersionedSerializer(StrictSerializer):
    """A response with the version of the object's writable fields, from `body_classes`."""

    body_classes: ClassVar[tuple[type[StrictSerializer], ...]] = ()  # none: as itself

    version = serializers.CharField(read_only=True, help_text=VERSION_HELP)
    # The parts of the last serialized object by name.
    parts: Mapping[str, Any] = {}

    def to_representation(self, instance: Any) -> Any:
        """Return the selected fields; the version covers all parts."""
        if "version" not in self.fields:
            return super().to_representation(instance)
        is_partial = self.fields.keys() != self._declared_fields.keys()
        full_serializer = type(self)(context=self.context) if is_partial else self
        representation = super(VersionedSerializer, full_serializer).to_representation(instance)
        self.parts = self.build_parts(instance, representation)
        if not isinstance(self.fields["version"], serializers.IntegerField):
            representation["version"] = compute_version(self.parts)
        return {
            name: representation[name] for name in map(str, self.fields) if name in representation
        }

    def build_parts(self, instance: Any, representation: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts of an object: its writable fields and the marks of its secrets."""
        bodies_or_self = self.body_classes or (type(self),)
        writable_names = {name for body in bodies_or_self for name in body._declared_fields}
        parts = {
            name: representation[name]
            for name in writable_names - {"version"}
            if name in representation
        }
        return parts | collect_secret_marks(instance)


class FieldErrorSerializer(StrictSerializer):
    """One error in a request."""

    field = serializers.CharField(help_text="JSON path of the field, or the name of the parameter.")
    code = serializers.CharField()
    detail = serializers.CharField()


class ProblemDetailsSerializer(StrictSerializer):
    """An error, as RFC 9457 problem details; use `code` in programs."""

    type = serializers.CharField(
        help_text="Always `about:blank`; use `code` to identify the problem."
    )
    title = serializers.CharField()
    status = serializers.IntegerField(help_text="The HTTP status code.")
    code = serializers.CharField(help_text="A stable code in snake_case.")
    detail = serializers.CharField(help_text="What happened.")
    field = serializers.CharField(
        required=False, help_text="The field or parameter with the problem."
    )
    remedy = serializers.CharField(required=False, help_text="What to do next.")
    rule = serializers.CharField(required=False, help_text="The rule that denied the request.")
    retry_after = serializers.FloatField(
        required=False, help_text="Seconds to wait before retrying."
    )
    approval_id = serializers.CharField(
        required=False, help_text="With `approval_required`: ID of the pending approval."
    )
    approval_url = serializers.CharField(
        required=False, help_text="URL of the page where a person decides."
    )
    expires_at = serializers.CharField(
        required=False, help_text="When the approval expires; the call is then denied."
    )
    changed = serializers.DictField(
        required=False,
        help_text=(
            "With `version_conflict` and `precondition_failed`: the fields that have changed, "
            "with their current values."
        ),
    )
    version = serializers.CharField(
        required=False,
        help_text="With `version_conflict` and `precondition_failed`: the current version.",
    )
    # DRF removes declared fields from the class, so its own property of this name still works.
    errors = FieldErrorSerializer(many=True, required=False)  # type: ignore[assignment]


def build_list_pattern(names: Iterable[str], *, sign: str = "") -> str:
    """Return the pattern of a comma-separated list of `names`, each prefixed by `sign`."""
    item_pattern = f"{sign}({'|'.join(names)})"
    return f"^{item_pattern}(,{item_pattern})*$"
