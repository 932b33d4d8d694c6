"""Encrypted values: always masked, decrypted only for their row and with the right key."""

import copy
import json
import pickle
import uuid
from typing import Any

import pytest
from cryptography.fernet import Fernet, MultiFernet
from django.db import models
from django.db.transaction import atomic
from encrypted_model_fields import fields as kept_library

from bonobot.core.crypto import encrypted_fields
from bonobot.core.crypto.encrypted_fields import SealedTextField, SealedValue, UnreadableSecret
from bonobot.core.text.masking import MASK
from tests.bonobot.core.crypto.encrypted_rows import (
    FIRST,
    SECOND,
    SECRET,
    Row,
    read_column,
    reload,
    write_column,
)

# Values


def test_a_secret_is_encrypted_at_rest_and_decrypts_after_loading(row: Row) -> None:
    assert SECRET not in read_column(row)
    assert read_column(row).startswith("gAAAA")
    assert reload(row).secret.open() == SECRET


def test_a_value_is_always_shown_as_the_mask(row: Row) -> None:
    value = reload(row).secret
    assert isinstance(value, SealedValue)
    for text in (str(value), repr(value), f"{value}", "%s" % value, repr([value])):  # noqa: UP031
        assert SECRET not in text
        assert MASK in text


def test_a_value_is_true_if_a_secret_is_stored_and_false_if_empty(row: Row) -> None:
    assert reload(row).secret
    empty = Row.objects.create(organization_id=FIRST)
    assert not reload(empty).secret
    assert reload(empty).secret.open() == ""
    assert str(reload(empty).secret) == ""
    assert reload(empty).other is None


def test_an_assigned_secret_can_be_read_before_it_is_saved() -> None:
    assert Row(secret=SECRET).secret.open() == SECRET


@pytest.mark.parametrize("leak", [pickle.dumps, json.dumps])
def test_a_value_cannot_be_serialized_by_accident(row: Row, leak: Any) -> None:
    with pytest.raises(TypeError):
        leak(reload(row).secret)


@pytest.mark.usefixtures("installed")
def test_a_copied_instance_keeps_its_secret(row: Row) -> None:
    assert copy.deepcopy(reload(row)).secret.open() == SECRET
    assert copy.copy(reload(row)).secret.open() == SECRET


def test_values_that_arent_strings_are_refused_on_assignment() -> None:
    with pytest.raises(TypeError, match="must be a `str`, not a `int`"):
        Row(secret=5)


def test_json_is_stored_as_json_and_not_as_a_python_repr(row: Row) -> None:
    document = {"client": "é", "deep": [1, None, True, {"x": 2.5}]}
    row.document = document
    row.save()
    assert "client" not in read_column(row, "document")
    assert reload(row).document.open() == document


@pytest.mark.parametrize("value", [[], [1], 0, False, "text"])
def test_any_json_except_the_empty_object_is_a_secret(row: Row, value: Any) -> None:
    row.document = value
    row.save()
    reloaded = reload(row).document
    assert reloaded.open() == value if value != "" else {}
    assert reloaded


def test_an_empty_object_isnt_a_secret(row: Row) -> None:
    assert read_column(row, "document") == ""
    assert reload(row).document.open() == {}


def test_values_that_arent_json_are_refused_on_assignment() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        Row(document={"x": float("nan")})


def test_the_decrypted_json_is_a_copy() -> None:
    row = Row(document={"a": 1})
    row.document.open()["a"] = 2
    assert row.document.open() == {"a": 1}


def test_decrypted_secrets_are_masked_in_logs_unless_they_are_whole_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered: list[str] = []
    monkeypatch.setattr(encrypted_fields, "register_secret", registered.append)
    Row(secret="assigned-1", document={"a": ["in-json-1"], "b": 1}).secret.open()
    assert registered == ["assigned-1", "in-json-1", "assigned-1"]
    field = SealedTextField(remembered=False)
    field.seal_value("a whole document").open()
    assert "a whole document" not in registered


# Binding to a row


def assert_unreadable(row: Row, name: str = "secret") -> None:
    with pytest.raises(UnreadableSecret) as raised:
        getattr(reload(row), name).open()
    assert raised.value.code == "secret_unreadable"
    assert raised.value.remedy
    assert SECRET not in str(raised.value.as_dict())


def test_an_encrypted_value_moved_to_another_row_doesnt_decrypt(row: Row) -> None:
    other_row = Row.objects.create(organization_id=FIRST, secret="other")
    write_column(other_row, read_column(row))
    assert_unreadable(other_row)


def test_the_secret_of_a_row_moved_to_another_organization_doesnt_decrypt(row: Row) -> None:
    Row.objects.filter(pk=row.pk).update(organization_id=SECOND)
    assert_unreadable(row)


def test_an_encrypted_value_moved_to_another_field_doesnt_decrypt(row: Row) -> None:
    write_column(row, read_column(row), name="other")
    assert_unreadable(row, "other")


def test_plain_text_in_the_column_is_never_used_as_a_credential(row: Row) -> None:
    write_column(row, "plain-token")
    assert reload(row).secret
    assert_unreadable(row)


def test_a_foreign_value_encrypted_with_the_same_key_doesnt_decrypt(row: Row) -> None:
    for text in ("plain", "[]", '{"a": 1}', "[1, 2, 3, 4, 5]", "null"):
        write_column(row, kept_library.encrypt_str(text).decode())
        assert_unreadable(row)


def test_a_row_with_a_changed_organization_or_key_isnt_saved_if_its_secret_would_be_lost(
    row: Row,
) -> None:
    moved = reload(row)
    moved.organization_id = SECOND
    with pytest.raises(UnreadableSecret), atomic():
        moved.save()
    cloned = reload(row)
    cloned.pk = None
    cloned._state.adding = True
    with pytest.raises(UnreadableSecret), atomic():
        cloned.save()
    assert reload(row).secret.open() == SECRET
    assert Row.objects.count() == 1


def test_a_secret_assigned_from_another_row_is_encrypted_for_its_new_row(row: Row) -> None:
    other_row = Row.objects.create(organization_id=SECOND, secret=reload(row).secret)
    assert read_column(other_row) != read_column(row)
    assert reload(other_row).secret.open() == SECRET


def test_values_cant_be_decrypted_without_their_row(row: Row) -> None:
    ((value,),) = Row.objects.values_list("secret")
    assert str(value) == MASK
    with pytest.raises(TypeError, match="from its row"):
        value.open()


def test_a_label_keeps_old_secrets_readable_after_a_rename(row: Row) -> None:
    class Renamed(models.Model):
        id = models.UUIDField(primary_key=True, default=uuid.uuid4)
        organization_id = models.UUIDField(null=True)
        token = SealedTextField(db_column="secret", label="sealed_tests.row.secret")

        class Meta:
            app_label = "sealed_tests_renamed"
            db_table = "sealed_tests_row"
            managed = False

        def __str__(self) -> str:
            return ""

    assert Renamed.objects.get(pk=row.pk).token.open() == SECRET
    *_, kwargs = Renamed._meta.get_field("token").deconstruct()
    assert kwargs["label"] == "sealed_tests.row.secret"


# Keys


def test_a_lost_key_raises_on_use_and_nothing_is_overwritten(row: Row, other_key: Fernet) -> None:
    before = read_column(row)
    assert_unreadable(row)
    reloaded = reload(row)
    reloaded.name = "renamed"
    with pytest.raises(UnreadableSecret), atomic():
        reloaded.save()
    with pytest.raises(UnreadableSecret), atomic():
        Row.objects.bulk_update([reloaded], ["secret"])
    reloaded.save(update_fields=["name"])
    assert reload(row).name == "renamed"
    assert read_column(row) == before


def test_a_secret_can_be_entered_again_after_a_lost_key(row: Row, other_key: Fernet) -> None:
    reloaded = reload(row)
    reloaded.secret = "entered again"
    reloaded.save()
    assert reload(row).secret.open() == "entered again"


def test_all_keys_decrypt_and_the_first_one_encrypts(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = kept_library.CRYPTER, Fernet(Fernet.generate_key())
    monkeypatch.setattr(kept_library, "CRYPTER", MultiFernet([new, *old._fernets]))
    assert reload(row).secret.open() == SECRET
    row.secret = "sealed with the new key"
    row.save()
    monkeypatch.setattr(kept_library, "CRYPTER", MultiFernet([new]))
    assert reload(row).secret.open() == "sealed with the new key"


def test_rotated_values_stay_bound_to_their_row(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = kept_library.CRYPTER, Fernet(Fernet.generate_key())
    ring = MultiFernet([new, *old._fernets])
    write_column(row, ring.rotate(read_column(row).encode()).decode())
    monkeypatch.setattr(kept_library, "CRYPTER", MultiFernet([new]))
    assert reload(row).secret.open() == SECRET
