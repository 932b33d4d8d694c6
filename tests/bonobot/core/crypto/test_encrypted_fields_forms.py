"""Encrypted fields in forms: written, never shown."""

import pytest
from django import forms

from bonobot.core.crypto.encrypted_fields import SealedInput
from bonobot.core.text.masking import MASK
from tests.bonobot.core.crypto.encrypted_rows import FIRST, SECRET, Row, read_column, reload


class RowForm(forms.ModelForm):
    class Meta:
        model = Row
        fields = ("name", "secret", "document")
        widgets = {"document": forms.Textarea}


class RequiredForm(forms.ModelForm):
    class Meta:
        model = Row
        fields = ("other",)


def submit_form(row: Row, **data: str) -> Row:
    form = RowForm(data, instance=reload(row))
    assert form.is_valid(), form.errors
    form.save()
    return reload(row)


def test_a_form_never_renders_a_secret_with_any_widget(row: Row) -> None:
    row.document = {"client_secret": SECRET}
    row.save()
    html = RowForm(instance=reload(row)).as_p()
    assert SECRET not in html
    assert read_column(row) not in html
    assert "stored" in html
    assert "<textarea" not in html
    assert "stored" not in RowForm(instance=Row()).as_p()


def test_a_form_that_is_shown_again_doesnt_contain_the_entered_secret(row: Row) -> None:
    form = RowForm({"name": "x" * 50, "secret": "typed just now"}, instance=reload(row))
    assert not form.is_valid()
    assert "typed just now" not in form.as_p()


@pytest.mark.parametrize("value", ["", "   ", MASK])
def test_a_blank_input_keeps_the_stored_secret(row: Row, value: str) -> None:
    assert submit_form(row, name="renamed", secret=value).secret.open() == SECRET
    assert reload(row).name == "renamed"
    assert not RowForm({"name": "renamed", "secret": value}, instance=reload(row)).has_changed()


def test_an_entered_secret_replaces_the_stored_one(row: Row) -> None:
    saved = submit_form(row, secret=" new \n", document='{"a": [1]}')
    assert saved.secret.open() == "new"
    assert saved.document.open() == {"a": [1]}


def test_ciphertext_pasted_into_a_form_is_not_decrypted(row: Row) -> None:
    stolen = read_column(row)
    assert submit_form(row, secret=stolen).secret.open() == stolen


def test_a_form_reports_where_json_is_invalid(row: Row) -> None:
    form = RowForm({"document": "{not json"}, instance=reload(row))
    assert not form.is_valid()
    assert "document" in form.errors


def test_a_required_secret_must_be_entered_only_once(row: Row) -> None:
    assert "other" in RequiredForm({"other": ""}, instance=Row(organization_id=FIRST)).errors
    form = RequiredForm({"other": "given"}, instance=reload(row))
    assert form.is_valid()
    assert form.save().other.open() == "given"
    assert RequiredForm({"other": ""}, instance=reload(row)).is_valid()


def test_the_widget_disables_autofill(row: Row) -> None:
    html = SealedInput().render("secret", reload(row).secret)
    assert 'type="password"' in html
    assert 'autocomplete="new-password"' in html
    assert "value=" not in html
