"""Encrypted fields: no read or write of the database loses or reveals a secret."""

import uuid
from typing import Any

import pytest
from django.core import serializers
from django.core.exceptions import ValidationError
from django.core.serializers.base import DeserializationError
from django.db import models
from django.db.models import F, Value
from django.db.models.functions import Upper

from bonobot.core.crypto.encrypted_fields import SealedTextField, list_sealed_fields
from bonobot.core.problems import InvalidInput
from bonobot.core.text.masking import MASK
from tests.bonobot.core.crypto.encrypted_rows import FIRST, SECOND, SECRET, Row, read_column, reload

# Ways to write


def test_save_writes_a_changed_secret_and_not_an_unchanged_one(row: Row) -> None:
    before = read_column(row)
    reloaded = reload(row)
    reloaded.name = "renamed"
    reloaded.save()
    assert read_column(row) == before
    reloaded.secret = "another"
    reloaded.save()
    assert reload(row).secret.open() == "another"


def test_update_fields_writes_only_the_named_fields(row: Row) -> None:
    before = read_column(row)
    row.secret, row.name = "another", "renamed"
    row.save(update_fields=["name"])
    assert (read_column(row), reload(row).name) == (before, "renamed")
    row.save(update_fields=["secret"])
    assert reload(row).secret.open() == "another"


def test_bulk_create_encrypts_each_secret_for_its_row(table: None, db: None) -> None:
    rows = Row.objects.bulk_create(
        [Row(organization_id=FIRST, secret=f"secret-{n}") for n in range(3)]
    )
    assert [reload(row).secret.open() for row in rows] == ["secret-0", "secret-1", "secret-2"]


def test_bulk_update_keeps_the_secrets_and_encrypts_each_for_its_row(row: Row) -> None:
    second = Row.objects.create(organization_id=SECOND, secret="second")
    third = Row.objects.create(organization_id=SECOND, secret="third", other="x")
    rows = [reload(row), reload(second), reload(third)]
    rows[0].secret, rows[1].secret, rows[2].other = "first!", "second!", None
    assert Row.objects.bulk_update(rows, ["secret", "other"]) == 3
    secrets = [reload(instance).secret.open() for instance in rows]
    assert secrets == ["first!", "second!", "third"]
    assert reload(third).other is None


def test_update_or_create_writes_a_secret(row: Row) -> None:
    Row.objects.update_or_create(pk=row.pk, defaults={"secret": "updated"})
    assert reload(row).secret.open() == "updated"


def test_a_queryset_update_can_clear_secrets_but_not_set_them(row: Row) -> None:
    Row.objects.update(secret="", other=None)
    assert read_column(row) == ""
    with pytest.raises(TypeError, match="sealed for its row"):
        Row.objects.update(secret="same for all")


@pytest.mark.parametrize("expression", [F("name"), Value("plain"), Upper("name")])
def test_an_expression_cannot_put_plain_text_into_the_column(row: Row, expression: Any) -> None:
    with pytest.raises(TypeError, match="sealed for its row"):
        Row.objects.update(secret=expression)
    row.secret = expression
    with pytest.raises(TypeError, match="sealed for its row"):
        row.save()


def test_ciphertext_that_is_entered_is_treated_as_plain_text(row: Row) -> None:
    stolen = read_column(row)
    other_row = Row.objects.create(organization_id=SECOND, secret=stolen)
    assert reload(other_row).secret.open() == stolen


def test_the_mask_is_never_stored_as_a_secret(row: Row) -> None:
    reloaded = reload(row)
    reloaded.secret = MASK
    reloaded.save()
    assert reload(row).secret.open() == SECRET
    deferred = Row.objects.defer("secret").get(pk=row.pk)
    deferred.secret = MASK
    deferred.save()
    assert reload(row).secret.open() == SECRET
    with pytest.raises(InvalidInput) as raised:
        Row(secret=MASK)
    assert raised.value.as_dict()["code"] == "secret_masked"
    assert raised.value.field == "secret"


def test_a_deferred_secret_is_loaded_when_it_is_read(row: Row) -> None:
    partial = Row.objects.only("name").get(pk=row.pk)
    assert partial.secret.open() == SECRET


def test_refresh_from_db_restores_the_stored_secret(row: Row) -> None:
    reloaded = reload(row)
    reloaded.secret = "not saved"
    reloaded.refresh_from_db()
    assert reloaded.secret.open() == SECRET
    reloaded.secret = "not saved"
    reloaded.refresh_from_db(fields=["secret"])
    assert reloaded.secret.open() == SECRET


# Searching


@pytest.mark.parametrize(
    "lookup",
    ["secret", "secret__icontains", "secret__in", "secret__startswith", "secret__regex"],
)
def test_secrets_cant_be_searched(row: Row, lookup: str) -> None:
    value: Any = [SECRET] if lookup.endswith("__in") else SECRET
    with pytest.raises(TypeError, match="sealed"):
        Row.objects.filter(**{lookup: value}).exists()


def test_empty_and_null_can_be_searched_for(row: Row) -> None:
    empty = Row.objects.create(organization_id=FIRST)
    assert list(Row.objects.filter(secret="")) == [empty]
    assert list(Row.objects.exclude(secret="")) == [row]
    assert Row.objects.filter(other=None).count() == 2
    assert Row.objects.filter(other__isnull=False).count() == 0


# Fixtures


@pytest.mark.parametrize("kind", ["json", "xml", "python", "yaml"])
def test_dumpdata_writes_the_mask(row: Row, kind: str) -> None:
    dumped = str(serializers.serialize(kind, Row.objects.all()))
    assert SECRET not in dumped
    assert read_column(row) not in dumped
    assert MASK in dumped


@pytest.mark.usefixtures("installed")
def test_loaddata_refuses_the_mask(row: Row) -> None:
    dumped = serializers.serialize("json", Row.objects.all())
    with pytest.raises(DeserializationError, match="is a placeholder for a stored secret"):
        list(serializers.deserialize("json", dumped))


@pytest.mark.usefixtures("table", "db", "installed")
def test_loaddata_encrypts_plain_values_of_a_fixture() -> None:
    fixture = [
        {
            "model": "sealed_tests.row",
            "pk": str(uuid.uuid4()),
            "fields": {"organization_id": str(FIRST), "secret": "clear", "document": {"a": 1}},
        }
    ]
    objects = list(serializers.python.Deserializer(fixture))
    for object in objects:
        object.save()
    (saved,) = Row.objects.all()
    assert saved.secret.open() == "clear"
    assert saved.document.open() == {"a": 1}


# Models


def test_full_clean_checks_the_plain_value_and_keeps_the_secret(row: Row) -> None:
    row.other = "x"
    row.full_clean()
    assert row.secret.open() == SECRET
    row.other = None
    with pytest.raises(ValidationError) as raised:
        Row(organization_id=FIRST, other="").full_clean()
    assert set(raised.value.message_dict) == {"other"}


def test_every_encrypted_field_of_the_product_is_listed() -> None:
    labels = {f"{field.model._meta.label}.{field.name}" for field in list_sealed_fields()}
    assert "mcp_servers.Secret.value" in labels
    assert not any(name.startswith("sealed_tests") for name in labels)


def test_a_model_without_organization_or_key_is_refused_by_the_checks() -> None:
    class Homeless(models.Model):
        secret = SealedTextField()

        class Meta:
            app_label = "sealed_tests"

        def __str__(self) -> str:
            return ""

    ids = [message.id for message in Homeless._meta.get_field("secret").check()]
    assert ids == ["sealed.E001", "sealed.E002"]
    assert Row._meta.get_field("secret").check() == []
