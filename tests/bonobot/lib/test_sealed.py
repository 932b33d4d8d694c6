"""Sealed fields: no way in or out loses a secret, shows one, or moves one to another tenant."""

import copy
import json
import pickle
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.fernet import Fernet, MultiFernet
from django import forms
from django.apps import apps
from django.core import serializers
from django.core.exceptions import ValidationError
from django.core.serializers.base import DeserializationError
from django.db import connection, models
from django.db.models import F, Value
from django.db.models.functions import Upper
from django.db.transaction import atomic
from encrypted_model_fields import fields as kept_library

from bonobot.lib import seals
from bonobot.lib.masking import MASK
from bonobot.lib.problems import Invalid
from bonobot.lib.sealed import (
    Sealed,
    SealedInput,
    SealedJSONField,
    SealedTextField,
    UnreadableSecret,
    sealed_fields,
)

SECRET = "s3cr3t-of-the-first-row"
FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)


class Row(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    organization_id = models.UUIDField(null=True)
    name = models.CharField(max_length=20, blank=True)
    secret = SealedTextField(blank=True, default="")
    other = SealedTextField(null=True)
    document = SealedJSONField(blank=True, default=dict)

    class Meta:
        app_label = "sealed_tests"

    def __str__(self) -> str:
        return self.name


@pytest.fixture(scope="module")
def table(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        with connection.schema_editor() as editor:
            editor.create_model(Row)
        yield
        with connection.schema_editor() as editor:
            editor.delete_model(Row)


@pytest.fixture
def row(table: None, db: None) -> Row:
    return Row.objects.create(organization_id=FIRST, secret=SECRET)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Django find the model, which belongs to no installed app, by its name."""
    monkeypatch.setattr(apps, "get_model", lambda *_: Row)


def column(row: Row, name: str = "secret") -> Any:
    """Return what the database really holds."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {name} FROM sealed_tests_row WHERE id = %s",  # noqa: S608
            [row.pk.hex if connection.vendor == "sqlite" else row.pk],
        )
        return cursor.fetchone()[0]


def write_column(row: Row, value: str, name: str = "secret") -> None:
    """Write past the field, as an attacker or an accident does."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE sealed_tests_row SET {name} = %s WHERE id = %s",  # noqa: S608
            [value, row.pk.hex if connection.vendor == "sqlite" else row.pk],
        )


def loaded(row: Row) -> Row:
    return Row.objects.get(pk=row.pk)


@pytest.fixture
def other_key(monkeypatch: pytest.MonkeyPatch) -> Fernet:
    """Replace the key ring by a new key, as if the old one were lost."""
    key = Fernet(Fernet.generate_key())
    monkeypatch.setattr(kept_library, "CRYPTER", MultiFernet([key]))
    return key


# What a value is


def test_a_secret_is_encrypted_at_rest_and_opens_after_loading(row: Row) -> None:
    assert SECRET not in column(row)
    assert column(row).startswith("gAAAA")
    assert loaded(row).secret.open() == SECRET


def test_a_value_shows_as_the_mask_whatever_shows_it(row: Row) -> None:
    value = loaded(row).secret
    assert isinstance(value, Sealed)
    for shown in (str(value), repr(value), f"{value}", "%s" % value, repr([value])):  # noqa: UP031
        assert SECRET not in shown
        assert MASK in shown


def test_a_value_is_true_when_something_is_stored_and_false_when_empty(row: Row) -> None:
    assert loaded(row).secret
    empty = Row.objects.create(organization_id=FIRST)
    assert not loaded(empty).secret
    assert loaded(empty).secret.open() == ""
    assert str(loaded(empty).secret) == ""
    assert loaded(empty).other is None


def test_an_assigned_secret_opens_before_it_is_saved() -> None:
    assert Row(secret=SECRET).secret.open() == SECRET


@pytest.mark.parametrize("leak", [pickle.dumps, json.dumps])
def test_a_value_cannot_be_serialized_by_accident(row: Row, leak: Any) -> None:
    with pytest.raises(TypeError):
        leak(loaded(row).secret)


@pytest.mark.usefixtures("installed")
def test_a_copied_instance_keeps_its_secret(row: Row) -> None:
    assert copy.deepcopy(loaded(row)).secret.open() == SECRET
    assert copy.copy(loaded(row)).secret.open() == SECRET


def test_what_is_not_a_text_is_refused_when_it_is_assigned() -> None:
    with pytest.raises(TypeError, match="must be a `str`, not a `int`"):
        Row(secret=5)


def test_json_is_kept_as_json_and_not_as_the_repr_of_python(row: Row) -> None:
    document = {"client": "é", "deep": [1, None, True, {"x": 2.5}]}
    row.document = document
    row.save()
    assert "client" not in column(row, "document")
    assert loaded(row).document.open() == document


@pytest.mark.parametrize("value", [[], [1], 0, False, "text"])
def test_any_json_but_the_empty_object_is_a_secret(row: Row, value: Any) -> None:
    row.document = value
    row.save()
    found = loaded(row).document
    assert found.open() == value if value != "" else {}
    assert found


def test_an_empty_object_is_no_secret(row: Row) -> None:
    assert column(row, "document") == ""
    assert loaded(row).document.open() == {}


def test_json_that_cannot_be_written_is_refused_when_it_is_assigned() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        Row(document={"x": float("nan")})


def test_the_json_that_was_opened_is_a_copy() -> None:
    row = Row(document={"a": 1})
    row.document.open()["a"] = 2
    assert row.document.open() == {"a": 1}


def test_logs_learn_what_was_opened_unless_it_is_a_whole_document(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known: list[str] = []
    monkeypatch.setattr(seals, "remember", known.append)
    Row(secret="assigned-1", document={"a": ["in-json-1"], "b": 1}).secret.open()
    assert known == ["assigned-1", "in-json-1", "assigned-1"]
    field = SealedTextField(remembered=False)
    field.sealed("a whole document").open()
    assert "a whole document" not in known


# Ways to write


def test_save_writes_a_changed_secret_and_leaves_an_unchanged_one_alone(row: Row) -> None:
    before = column(row)
    again = loaded(row)
    again.name = "renamed"
    again.save()
    assert column(row) == before
    again.secret = "another"
    again.save()
    assert loaded(row).secret.open() == "another"


def test_update_fields_writes_only_what_it_names(row: Row) -> None:
    before = column(row)
    row.secret, row.name = "another", "renamed"
    row.save(update_fields=["name"])
    assert (column(row), loaded(row).name) == (before, "renamed")
    row.save(update_fields=["secret"])
    assert loaded(row).secret.open() == "another"


def test_bulk_create_seals_each_secret_for_its_row(table: None, db: None) -> None:
    rows = Row.objects.bulk_create(
        [Row(organization_id=FIRST, secret=f"secret-{n}") for n in range(3)]
    )
    assert [loaded(row).secret.open() for row in rows] == ["secret-0", "secret-1", "secret-2"]


def test_bulk_update_keeps_the_secrets_and_seals_each_for_its_row(row: Row) -> None:
    second = Row.objects.create(organization_id=SECOND, secret="second")
    third = Row.objects.create(organization_id=SECOND, secret="third", other="x")
    rows = [loaded(row), loaded(second), loaded(third)]
    rows[0].secret, rows[1].secret, rows[2].other = "first!", "second!", None
    assert Row.objects.bulk_update(rows, ["secret", "other"]) == 3
    found = [loaded(each).secret.open() for each in rows]
    assert found == ["first!", "second!", "third"]
    assert loaded(third).other is None


def test_update_or_create_writes_a_secret(row: Row) -> None:
    Row.objects.update_or_create(pk=row.pk, defaults={"secret": "updated"})
    assert loaded(row).secret.open() == "updated"


def test_a_queryset_update_can_clear_secrets_but_not_set_them(row: Row) -> None:
    Row.objects.update(secret="", other=None)
    assert column(row) == ""
    with pytest.raises(TypeError, match="sealed for its row"):
        Row.objects.update(secret="same for all")


@pytest.mark.parametrize("expression", [F("name"), Value("plain"), Upper("name")])
def test_an_expression_cannot_put_plain_text_into_the_column(row: Row, expression: Any) -> None:
    with pytest.raises(TypeError, match="sealed for its row"):
        Row.objects.update(secret=expression)
    row.secret = expression
    with pytest.raises(TypeError, match="sealed for its row"):
        row.save()


def test_ciphertext_that_someone_enters_stays_what_it_is(row: Row) -> None:
    stolen = column(row)
    other = Row.objects.create(organization_id=SECOND, secret=stolen)
    assert loaded(other).secret.open() == stolen


def test_the_mask_is_never_taken_for_a_secret(row: Row) -> None:
    again = loaded(row)
    again.secret = MASK
    again.save()
    assert loaded(row).secret.open() == SECRET
    deferred = Row.objects.defer("secret").get(pk=row.pk)
    deferred.secret = MASK
    deferred.save()
    assert loaded(row).secret.open() == SECRET
    with pytest.raises(Invalid) as refusal:
        Row(secret=MASK)
    assert refusal.value.as_dict()["code"] == "secret_masked"
    assert refusal.value.field == "secret"


def test_a_deferred_secret_is_loaded_when_it_is_read(row: Row) -> None:
    with_less = Row.objects.only("name").get(pk=row.pk)
    assert with_less.secret.open() == SECRET


def test_refreshing_brings_the_stored_secret_back(row: Row) -> None:
    again = loaded(row)
    again.secret = "not saved"
    again.refresh_from_db()
    assert again.secret.open() == SECRET
    again.secret = "not saved"
    again.refresh_from_db(fields=["secret"])
    assert again.secret.open() == SECRET


# Where a secret belongs


def assert_unreadable(row: Row, name: str = "secret") -> None:
    with pytest.raises(UnreadableSecret) as refusal:
        getattr(loaded(row), name).open()
    assert refusal.value.code == "secret_unreadable"
    assert refusal.value.remedy
    assert SECRET not in str(refusal.value.as_dict())


def test_a_sealed_text_moved_to_another_row_does_not_open(row: Row) -> None:
    other = Row.objects.create(organization_id=FIRST, secret="other")
    write_column(other, column(row))
    assert_unreadable(other)


def test_a_row_moved_to_another_organization_does_not_take_its_secret_along(row: Row) -> None:
    Row.objects.filter(pk=row.pk).update(organization_id=SECOND)
    assert_unreadable(row)


def test_a_sealed_text_moved_to_another_field_does_not_open(row: Row) -> None:
    write_column(row, column(row), name="other")
    assert_unreadable(row, "other")


def test_plain_text_in_the_column_is_never_used_as_a_credential(row: Row) -> None:
    write_column(row, "plain-token")
    assert loaded(row).secret
    assert_unreadable(row)


def test_a_token_of_the_same_key_that_is_not_one_of_ours_does_not_open(row: Row) -> None:
    for text in ("plain", "[]", '{"a": 1}', "[1, 2, 3, 4, 5]", "null"):
        write_column(row, kept_library.encrypt_str(text).decode())
        assert_unreadable(row)


def test_changing_a_rows_organization_or_key_refuses_to_save_a_secret_that_would_be_lost(
    row: Row,
) -> None:
    moved = loaded(row)
    moved.organization_id = SECOND
    with pytest.raises(UnreadableSecret), atomic():
        moved.save()
    cloned = loaded(row)
    cloned.pk = None
    cloned._state.adding = True
    with pytest.raises(UnreadableSecret), atomic():
        cloned.save()
    assert loaded(row).secret.open() == SECRET
    assert Row.objects.count() == 1


def test_a_secret_assigned_from_another_row_is_sealed_for_its_new_place(row: Row) -> None:
    other = Row.objects.create(organization_id=SECOND, secret=loaded(row).secret)
    assert column(other) != column(row)
    assert loaded(other).secret.open() == SECRET


def test_values_give_no_secret_away_without_their_row(row: Row) -> None:
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
    before = column(row)
    assert_unreadable(row)
    again = loaded(row)
    again.name = "renamed"
    with pytest.raises(UnreadableSecret), atomic():
        again.save()
    with pytest.raises(UnreadableSecret), atomic():
        Row.objects.bulk_update([again], ["secret"])
    again.save(update_fields=["name"])
    assert loaded(row).name == "renamed"
    assert column(row) == before


def test_a_secret_can_be_entered_again_after_a_lost_key(row: Row, other_key: Fernet) -> None:
    again = loaded(row)
    again.secret = "entered again"
    again.save()
    assert loaded(row).secret.open() == "entered again"


def test_all_keys_of_a_ring_open_and_the_first_seals(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = kept_library.CRYPTER, Fernet(Fernet.generate_key())
    monkeypatch.setattr(kept_library, "CRYPTER", MultiFernet([new, *old._fernets]))
    assert loaded(row).secret.open() == SECRET
    row.secret = "sealed with the new key"
    row.save()
    monkeypatch.setattr(kept_library, "CRYPTER", MultiFernet([new]))
    assert loaded(row).secret.open() == "sealed with the new key"


def test_rotating_a_column_keeps_the_place(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = kept_library.CRYPTER, Fernet(Fernet.generate_key())
    ring = MultiFernet([new, *old._fernets])
    write_column(row, ring.rotate(column(row).encode()).decode())
    monkeypatch.setattr(kept_library, "CRYPTER", MultiFernet([new]))
    assert loaded(row).secret.open() == SECRET


# Searching


@pytest.mark.parametrize(
    "lookup",
    ["secret", "secret__icontains", "secret__in", "secret__startswith", "secret__regex"],
)
def test_nobody_can_search_for_a_secret(row: Row, lookup: str) -> None:
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
    assert column(row) not in dumped
    assert MASK in dumped


@pytest.mark.usefixtures("installed")
def test_loaddata_refuses_the_mask_rather_than_write_it(row: Row) -> None:
    dumped = serializers.serialize("json", Row.objects.all())
    with pytest.raises(DeserializationError, match="how a stored secret is shown"):
        list(serializers.deserialize("json", dumped))


@pytest.mark.usefixtures("table", "db", "installed")
def test_loaddata_seals_what_a_fixture_says_in_the_clear() -> None:
    fixture = [
        {
            "model": "sealed_tests.row",
            "pk": str(uuid.uuid4()),
            "fields": {"organization_id": str(FIRST), "secret": "clear", "document": {"a": 1}},
        }
    ]
    objects = list(serializers.python.Deserializer(fixture))
    for found in objects:
        found.save()
    (saved,) = Row.objects.all()
    assert saved.secret.open() == "clear"
    assert saved.document.open() == {"a": 1}


# Forms


class RowForm(forms.ModelForm):
    class Meta:
        model = Row
        fields = ("name", "secret", "document")
        widgets = {"document": forms.Textarea}


class RequiredForm(forms.ModelForm):
    class Meta:
        model = Row
        fields = ("other",)


def submitted(row: Row, **data: str) -> Row:
    form = RowForm(data, instance=loaded(row))
    assert form.is_valid(), form.errors
    form.save()
    return loaded(row)


def test_a_form_never_renders_a_secret_whatever_widget_it_proposes(row: Row) -> None:
    row.document = {"client_secret": SECRET}
    row.save()
    html = RowForm(instance=loaded(row)).as_p()
    assert SECRET not in html
    assert column(row) not in html
    assert "stored" in html
    assert "<textarea" not in html
    assert "stored" not in RowForm(instance=Row()).as_p()


def test_a_form_that_is_shown_again_does_not_give_the_typed_secret_back(row: Row) -> None:
    form = RowForm({"name": "x" * 50, "secret": "typed just now"}, instance=loaded(row))
    assert not form.is_valid()
    assert "typed just now" not in form.as_p()


@pytest.mark.parametrize("typed", ["", "   ", MASK])
def test_a_blank_input_keeps_what_is_stored(row: Row, typed: str) -> None:
    assert submitted(row, name="renamed", secret=typed).secret.open() == SECRET
    assert loaded(row).name == "renamed"
    assert not RowForm({"name": "renamed", "secret": typed}, instance=loaded(row)).has_changed()


def test_a_typed_secret_replaces_what_is_stored(row: Row) -> None:
    found = submitted(row, secret=" new \n", document='{"a": [1]}')
    assert found.secret.open() == "new"
    assert found.document.open() == {"a": [1]}


def test_ciphertext_pasted_into_a_form_is_not_decrypted(row: Row) -> None:
    stolen = column(row)
    assert submitted(row, secret=stolen).secret.open() == stolen


def test_a_form_says_where_json_is_wrong(row: Row) -> None:
    form = RowForm({"document": "{not json"}, instance=loaded(row))
    assert not form.is_valid()
    assert "document" in form.errors


def test_a_required_secret_is_asked_for_once(row: Row) -> None:
    assert "other" in RequiredForm({"other": ""}, instance=Row(organization_id=FIRST)).errors
    form = RequiredForm({"other": "given"}, instance=loaded(row))
    assert form.is_valid()
    assert form.save().other.open() == "given"
    assert RequiredForm({"other": ""}, instance=loaded(row)).is_valid()


def test_the_widget_keeps_browsers_from_filling_it_in(row: Row) -> None:
    html = SealedInput().render("secret", loaded(row).secret)
    assert 'type="password"' in html
    assert 'autocomplete="new-password"' in html
    assert "value=" not in html


# Models


def test_full_clean_checks_the_plain_value_and_keeps_the_secret(row: Row) -> None:
    row.other = "x"
    row.full_clean()
    assert row.secret.open() == SECRET
    row.other = None
    with pytest.raises(ValidationError) as refusal:
        Row(organization_id=FIRST, other="").full_clean()
    assert set(refusal.value.message_dict) == {"other"}


def test_every_sealed_field_of_the_product_is_known() -> None:
    found = {f"{field.model._meta.label}.{field.name}" for field in sealed_fields()}
    assert "mcp_servers.Secret.value" in found
    assert not any(label.startswith("sealed_tests") for label in found)


def test_a_model_without_organization_or_key_is_refused_by_the_checks() -> None:
    class Homeless(models.Model):
        secret = SealedTextField()

        class Meta:
            app_label = "sealed_tests"

        def __str__(self) -> str:
            return ""

    found = [message.id for message in Homeless._meta.get_field("secret").check()]
    assert found == ["sealed.E001", "sealed.E002"]
    assert Row._meta.get_field("secret").check() == []
