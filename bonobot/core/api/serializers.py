"""Base serializers and sparse fieldsets (`?fields=`).

A sparse response has its own media type, because it isn't the documented object: typed clients can
rely on every field of a full response.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail

from bonobot.core.db.object_version import MAX_VERSION_LENGTH, collect_secret_marks, compute_version
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.process_cache import compute_once
from bonobot.core.renamed_fields import replace_renamed_fields

VERSION_HELP = (
    "Digest of the object's writable fields; also the `ETag`. If you send it with a PUT "
    "or PATCH request and the object has changed, the write fails (`version_conflict`)."
)
FIELDS_PARAMETER = "fields"
SPARSE_JSON = "application/vnd.bonobot.part+json"


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


def list_selectable_fields(view: Any, method: str) -> tuple[str, ...]:
    """Return the fields that `?fields=` may select; empty if the view returns no object."""
    if method != "GET":
        return ()
    declared_response = getattr(getattr(view, "get", None), "answer", None)
    serializer = getattr(declared_response, "child", declared_response)
    serializer_class = serializer if isinstance(serializer, type) else type(serializer)
    return (
        _list_readable_fields(serializer_class)
        if issubclass(serializer_class, StrictSerializer)
        else ()
    )


@compute_once
def _list_readable_fields(serializer_class: type[StrictSerializer]) -> tuple[str, ...]:
    return tuple(name for name, field in serializer_class().fields.items() if not field.write_only)


def parse_selected_fields(
    query: Mapping[str, str], names: tuple[str, ...]
) -> frozenset[str] | None:
    """Return the selected fields, None for all; raises `InvalidInput` for unknown ones."""
    if not names or (text := query.get(FIELDS_PARAMETER)) is None:
        return None
    requested = text.split(",")
    if unknown := [name for name in requested if name not in names]:
        raise InvalidInput(
            format_message("Unknown field {name!r}.", name=unknown[0][:80]),
            code="unknown_field",
            field=FIELDS_PARAMETER,
            remedy=format_message(
                "Use field names separated by commas: {names}.", names=", ".join(names)
            ),
        )
    return frozenset(requested)


def build_list_pattern(names: Iterable[str], *, sign: str = "") -> str:
    """Return the pattern of a comma-separated list of `names`, each prefixed by `sign`."""
    item_pattern = f"{sign}({'|'.join(names)})"
    return f"^{item_pattern}(,{item_pattern})*$"


def limit_serializer_fields(serializer: Any, field_names: frozenset[str] | None) -> Any:
    """Remove unwanted fields from a serializer, so that they aren't computed."""
    fields = getattr(serializer, "child", serializer).fields
    for name in [name for name in fields if field_names is not None and name not in field_names]:
        fields.pop(name)
    return serializer


def select_fields(data: Any, field_names: frozenset[str]) -> Any:
    """Return a response with the wanted fields only, of each row if it is a list."""
    if set(data) >= {"results", "next"}:
        return {**data, "results": [select_fields(row, field_names) for row in data["results"]]}
    return {name: value for name, value in data.items() if name in field_names}
