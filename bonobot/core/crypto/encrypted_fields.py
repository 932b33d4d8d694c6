"""Encrypted model and form fields.

They subclass django-encrypted-model-fields, which provides the key ring (`FIELD_ENCRYPTION_KEY`:
the first key encrypts, all decrypt), and differ where it would lose or leak a secret:

* A value loads as `SealedValue`, shows as `********` and is decrypted only by `open()`.
* The encrypted text names its field, row and organization, and `open()` checks them: a text copied
  to another row or organization can't be decrypted, and neither can plain text.
* A value that can't be decrypted is never written back, so a wrong key destroys nothing.
* Input is always plain text: ciphertext pasted into a form is encrypted like any other text.
* The mask is never a secret: assigning it keeps the stored value.

The encrypted text includes the field's name and the model's label; when one of them is renamed,
pass the old value as `label`.

Fernet has no associated data, so the location (field, row, organization) is part of the encrypted
message and is compared on decryption.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from cryptography.fernet import InvalidToken
from django import forms
from django.apps import apps
from django.core import checks
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.expressions import Case, Value
from django.db.models.functions import Cast
from django.db.models.query_utils import DeferredAttribute
from django.utils.translation import gettext_lazy as _
from encrypted_model_fields.fields import EncryptedMixin, EncryptedTextField

from bonobot.core.crypto import key_ring
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.masking import MASK, register_organization_secret, register_secret

FORMAT_VERSION = 1


class UnreadableSecret(Problem):
    """A stored secret can't be decrypted: another key, another location, or never encrypted."""

    code = "secret_unreadable"
    status = 409
    title = "Stored secret can't be decrypted"


class SecretLocation(NamedTuple):
    """The location of a secret: the field's label, the row's key, the organization's key."""

    label: str
    row: str
    organization: str


class SealedValue:
    """A secret or none: false if empty, shown as `********`, decrypted by `open()`."""

    __slots__ = ("_codec", "_text", "_token", "location")

    def __init__(
        self,
        codec: "SecretCodec",
        *,
        text: str = "",
        token: str = "",
        location: SecretLocation | None = None,
    ) -> None:
        """Store either a new plain `text` or the `token` from the database."""
        self._codec = codec
        self._text = text
        self._token = token
        self.location = location

    def open(self) -> Any:
        """Return the secret; raises UnreadableSecret if it can't be decrypted here."""
        if not self:
            return self._codec.get_empty_value()
        text = _unseal_text(self._token, self._get_location()) if self._token else self._text
        value = self._codec.decode(text)
        self._codec.register_secrets(value, self.location)
        return value

    def to_sealed_text(self) -> str:
        """Return the column's value; raises UnreadableSecret if it couldn't be decrypted."""
        if not self:
            return ""
        location = self._get_location()
        if not self._token:
            self._codec.register_secrets(self._codec.decode(self._text), location)
            return _seal_text(self._text, location)
        _unseal_text(self._token, location)
        return self._token

    def bind_to_location(self, location: SecretLocation | None) -> "SealedValue":
        """Return the same value bound to `location`."""
        return SealedValue(self._codec, text=self._text, token=self._token, location=location)

    @property
    def mark(self) -> str:
        """An identifier of the stored value that doesn't require decryption."""
        return self._token

    @property
    def stored(self) -> bool:
        """Whether the value came from the database."""
        return bool(self._token)

    def _get_location(self) -> SecretLocation:
        if self.location is None:
            raise TypeError("A sealed value has to be read from its row: `values()` can't open it.")
        return self.location

    def __bool__(self) -> bool:
        return bool(self._token or self._text)

    def __str__(self) -> str:
        return MASK if self else ""

    def __repr__(self) -> str:
        return MASK

    def __copy__(self) -> "SealedValue":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "SealedValue":
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("A sealed value can't be pickled: pass the row's key instead.")


class SecretCodec:
    """Encodes a field's values as text; here, values are text."""

    def __init__(self, *, remembered: bool = True) -> None:
        """Mask the values in logs if `remembered`; false for whole documents."""
        self.remembered = remembered

    def get_empty_value(self) -> Any:
        return ""

    def encode(self, value: Any) -> str:
        """Return the text of a value; raises TypeError or ValueError if it can't be encoded."""
        if not isinstance(value, str):
            raise TypeError(f"A sealed text must be a `str`, not a `{type(value).__name__}`.")
        return value

    def decode(self, text: str) -> Any:
        return text

    def register_secrets(self, value: Any, location: SecretLocation | None = None) -> None:
        """Mask a value's texts in logs, and in data of the organization of `location`."""
        if self.remembered:
            for text in self.iterate_texts(value):
                register_secret(text)
                if location is not None and location.organization:
                    register_organization_secret(location.organization, text)

    def iterate_texts(self, value: Any) -> Iterator[str]:
        """Yield the texts in a value that must be masked."""
        yield value


class JSONSecretCodec(SecretCodec):
    """Encodes values as JSON; an empty object means no secret."""

    def get_empty_value(self) -> Any:
        return {}

    def encode(self, value: Any) -> str:
        """Return the JSON text of a value; raises TypeError or ValueError if it isn't JSON."""
        return json.dumps(value, ensure_ascii=True, allow_nan=False)

    def decode(self, text: str) -> Any:
        return json.loads(text)

    def iterate_texts(self, value: Any) -> Iterator[str]:
        """Yield the texts in a value that must be masked."""
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                yield from self.iterate_texts(item)


class SealedAttribute(DeferredAttribute):
    """The attribute of an encrypted field: returns a `SealedValue`, accepts plain values."""

    field: Any  # a `SealedFieldMixin`, which isn't a Field for the type checker

    def __get__(self, instance: models.Model | None, cls: type | None = None) -> Any:
        value = super().__get__(instance, cls)
        if not isinstance(value, SealedValue) or not value or instance is None:
            return value
        return value.bind_to_location(self.field.build_location(instance))

    def __set__(self, instance: models.Model, value: Any) -> None:
        name = self.field.attname
        if isinstance(value, str) and value == MASK:
            if name in instance.__dict__ or not instance._state.adding:
                return  # the mask means "unchanged"
            raise self.field.build_masked_error()
        if isinstance(value, SealedValue):
            if value.location is not None and value.location != self.field.build_location(instance):
                value = self.field.seal_value(value.open())  # from another row: encrypt again
        elif value is not None and not hasattr(value, "resolve_expression"):
            value = self.field.seal_value(value)
        # The location is computed on each read: a row that is copied or moved to another
        # organization must not keep the old location.
        instance.__dict__[name] = (
            value.bind_to_location(None) if isinstance(value, SealedValue) else value
        )


class SealedFieldMixin(EncryptedMixin):
    """The common base of the encrypted fields."""

    descriptor_class = SealedAttribute
    codec_class = SecretCodec
    form_class: type[forms.Field]
    # The column stays the same when the label changes.
    non_db_attrs = (*models.Field.non_db_attrs, "label")

    def __init__(self, *args: Any, label: str = "", remembered: bool = True, **kwargs: Any) -> None:
        """Set `remembered` to false for whole documents that logs don't need to mask."""
        self.label = label
        self.codec = self.codec_class(remembered=remembered)
        super().__init__(*args, **kwargs)

    def build_location(self, instance: models.Model) -> SecretLocation:
        label = self.label or f"{self.model._meta.label_lower}.{self.name}"
        organization_id = getattr(instance, "organization_id", None)
        return SecretLocation(
            label, str(instance.pk), "" if organization_id is None else str(organization_id)
        )

    def seal_value(self, value: Any) -> SealedValue:
        """Return a plain value as a `SealedValue` to assign."""
        if value in ("", self.codec.get_empty_value()):
            return SealedValue(self.codec)
        text = self.codec.encode(value)
        self.codec.register_secrets(value)
        return SealedValue(self.codec, text=text)

    def build_masked_error(self) -> InvalidInput:
        """Return the error for sending the mask although nothing is stored."""
        return InvalidInput(
            format_message(
                "`{mask}` is a placeholder for a stored secret, but no secret is stored yet.",
                mask=MASK,
            ),
            code="secret_masked",
            field=self.name,
            remedy="Send the actual secret.",
        )

    # Between Python and the database

    def from_db_value(self, value: str | None, *args: Any, **kwargs: Any) -> SealedValue | None:
        return None if value is None else SealedValue(self.codec, token=value)

    def get_prep_value(self, value: Any) -> Any:
        # Called by lookups only. Each encryption differs, so values can't be compared.
        if value is None or value == "":
            return value
        raise TypeError(f"`{self.name}` is sealed: it can be searched for empty or null only.")

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        return value if prepared else self.get_prep_value(value)

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        if isinstance(value, SealedValue):
            return value.to_sealed_text()
        if value is None or value == "" or self._is_bulk_update(value):
            return value
        raise TypeError(
            f"`{self.name}` is sealed for its row: assign it to an instance and save that, "
            "or use `bulk_update`."
        )

    def get_lookup(self, lookup_name: str) -> Any:
        if lookup_name not in {"exact", "isnull"}:
            raise TypeError(f"`{self.name}` is sealed: `{lookup_name}` can't look inside.")
        return super().get_lookup(lookup_name)

    def get_transform(self, lookup_name: str) -> NoReturn:
        raise TypeError(f"`{self.name}` is sealed: `{lookup_name}` can't look inside.")

    def _is_bulk_update(self, value: Any) -> bool:
        # The only expression whose values know their rows.
        if isinstance(value, Cast):
            (value,) = value.get_source_expressions()
        return isinstance(value, Case) and all(
            isinstance(case.result, Value) and case.result.output_field is self
            for case in value.cases
        )

    # Between Python, fixtures and forms

    def to_python(self, value: Any) -> Any:
        if value == MASK:
            raise ValidationError(self.build_masked_error().detail, code="secret_masked")
        return value

    def value_to_string(self, obj: models.Model) -> str:
        return str(self.value_from_object(obj))

    def validate(self, value: Any, model_instance: models.Model | None) -> None:
        if not self.editable:
            return
        if value is None and not self.null:
            raise ValidationError(self.error_messages["null"], code="null")
        if not value and not self.blank:
            raise ValidationError(self.error_messages["blank"], code="blank")

    def run_validators(self, value: Any) -> None:
        if isinstance(value, SealedValue) and (value.stored or not value):
            return  # validated when it was set
        super().run_validators(value.open() if isinstance(value, SealedValue) else value)

    def save_form_data(self, instance: models.Model, data: Any) -> None:
        if data is not KEEP:
            super().save_form_data(instance, data)

    def formfield(self, **kwargs: Any) -> forms.Field:
        # Use a widget that never renders a value, regardless of the form. A blank input keeps
        # the stored value; `validate` requires one if nothing is stored.
        if not _is_write_only(kwargs.get("widget")):
            kwargs["widget"] = SealedInput
        kwargs = {"form_class": self.form_class} | kwargs | {"required": False}
        field: forms.Field = super().formfield(**kwargs)
        return field

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        return [*super().check(**kwargs), *self._check_model()]

    def _check_model(self) -> list[checks.CheckMessage]:
        if self.model._meta.abstract:
            return []
        errors: list[checks.CheckMessage] = []
        if not hasattr(self.model, "organization_id"):
            errors.append(
                checks.Error(
                    f"`{self.name}` is sealed, but its model has no `organization_id`.",
                    hint="A seal names the organization; let the model have one (it may be null).",
                    obj=self,
                    id="sealed.E001",
                )
            )
        if self.model._meta.pk is not None and not self.model._meta.pk.has_default():
            errors.append(
                checks.Error(
                    f"`{self.name}` is sealed, but its row has no key before it is inserted.",
                    hint="A seal names the row; use a UUID primary key with a default.",
                    obj=self,
                    id="sealed.E002",
                )
            )
        return errors

    def deconstruct(self) -> tuple[str, str, Sequence[Any], Mapping[str, Any]]:
        name, path, args, kwargs = super().deconstruct()
        if self.label:
            kwargs["label"] = self.label
        return name, path, args, kwargs


class _UnchangedSecret:
    """The form value for an unchanged secret."""

    def __repr__(self) -> str:
        return "KEEP"


KEEP = _UnchangedSecret()


class WriteOnlyWidget(forms.Widget):
    """A widget that never renders its value and only shows whether one is stored."""

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        default_attrs = {"autocomplete": "new-password", "spellcheck": "false"}
        if isinstance(value, SealedValue) and value:
            default_attrs["placeholder"] = str(_("stored; enter a new value to replace it"))
        return super().get_context(name, None, default_attrs | (attrs or {}))


class SealedInput(WriteOnlyWidget, forms.PasswordInput):
    """The default widget of an encrypted field."""


class SealedFormField(forms.CharField):
    """A form field for a secret: blank or the mask keep the stored value."""

    def clean(self, value: Any) -> Any:
        """Return the new secret, or `KEEP`."""
        return KEEP if not self.has_changed(None, value) else super().clean(value)

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Return whether a new secret was entered."""
        return bool(data) and str(data).strip() not in ("", MASK)


class SealedJSONFormField(SealedFormField):
    """A form field for a secret JSON value."""

    def clean(self, value: Any) -> Any:
        """Return the new value, or `KEEP`; raise ValidationError if it isn't JSON."""
        text = super().clean(value)
        if text is KEEP:
            return KEEP
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValidationError(_("Enter valid JSON."), code="invalid") from error


class SealedTextField(SealedFieldMixin, EncryptedTextField):
    """A secret text; `row.field.open()` returns the `str`."""

    form_class = SealedFormField


class SealedJSONField(SealedFieldMixin, EncryptedTextField):
    """A secret JSON value; `row.field.open()` returns it, `{}` if there is none."""

    codec_class = JSONSecretCodec
    form_class = SealedJSONFormField


def can_unseal(token: str) -> bool:
    """Return whether one of the keys decrypts a stored token, regardless of its location."""
    try:
        key_ring.unseal(token)
    except (InvalidToken, ValueError, TypeError):
        return False
    return True


def _seal_text(text: str, location: SecretLocation) -> str:
    return key_ring.seal(json.dumps([FORMAT_VERSION, *location, text]))


def _unseal_text(token: str, location: SecretLocation) -> str:
    try:
        version, label, row, organization, text = json.loads(key_ring.unseal(token))
    # Another key, or not encrypted by us.
    except (InvalidToken, ValueError, RecursionError, TypeError):
        raise _build_unreadable_error(location) from None
    if version != FORMAT_VERSION or SecretLocation(label, row, organization) != location:
        raise _build_unreadable_error(location)
    return str(text)


def _build_unreadable_error(location: SecretLocation) -> UnreadableSecret:
    return UnreadableSecret(
        format_message(
            "The secret `{place}` of {row} can't be decrypted: it was encrypted with "
            "another key or for another field.",
            place=location.label,
            row=location.row,
        ),
        remedy="Enter the secret again. If this affects many secrets, restore the key in "
        "`BONOBOT_FIELD_KEYS`.",
    )


def list_sealed_fields() -> tuple[Any, ...]:
    """Return all encrypted fields of the installed models."""
    return tuple(
        field
        for model in apps.get_models()
        for field in model._meta.local_fields
        if isinstance(field, SealedFieldMixin)
    )


def _is_write_only(widget: Any) -> bool:
    kinds = (WriteOnlyWidget, forms.PasswordInput)
    return issubclass(widget, kinds) if isinstance(widget, type) else isinstance(widget, kinds)
