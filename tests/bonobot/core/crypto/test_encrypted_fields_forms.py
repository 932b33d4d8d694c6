"""Sealed fields in forms: written, never read back."""

import pytest
from django import forms

from bonobot.core.crypto.encrypted_fields import SealedInput
from bonobot.core.text.masking import MASK
from tests.bonobot.core.crypto.encrypted_rows import FIRST, SECRET, Row, column, loaded


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


def test_a_form_never_renders_a_secret_with_any_widget(row: Row) -> None:
    row.document = {"client_secret": SECRET}
    row.save()
    html = RowForm(instance=loaded(row)).as_p()
    assert SECRET not in html
    assert column(row) not in html
    assert "stored" in html
    assert "<textarea" not in html
    assert "stored" not in RowForm(instance=Row()).as_p()


def test_a_form_that_is_shown_again_doesnt_contain_the_entered_secret(row: Row) -> None:
    form = RowForm({"name": "x" * 50, "secret": "typed just now"}, instance=loaded(row))
    assert not form.is_valid()
    assert "typed just now" not in form.as_p()


@pytest.mark.parametrize("typed", ["", "   ", MASK])
def test_a_blank_input_keeps_the_stored_secret(row: Row, typed: str) -> None:
    assert submitted(row, name="renamed", secret=typed).secret.open() == SECRET
    assert loaded(row).name == "renamed"
    assert not RowForm({"name": "renamed", "secret": typed}, instance=loaded(row)).has_changed()


def test_an_entered_secret_replaces_the_stored_one(row: Row) -> None:
    found = submitted(row, secret=" new \n", document='{"a": [1]}')
    assert found.secret.open() == "new"
    assert found.document.open() == {"a": [1]}


def test_ciphertext_pasted_into_a_form_is_not_decrypted(row: Row) -> None:
    stolen = column(row)
    assert submitted(row, secret=stolen).secret.open() == stolen


def test_a_form_reports_where_json_is_invalid(row: Row) -> None:
    form = RowForm({"document": "{not json"}, instance=loaded(row))
    assert not form.is_valid()
    assert "document" in form.errors


def test_a_required_secret_must_be_entered_only_once(row: Row) -> None:
    assert "other" in RequiredForm({"other": ""}, instance=Row(organization_id=FIRST)).errors
    form = RequiredForm({"other": "given"}, instance=loaded(row))
    assert form.is_valid()
    assert form.save().other.open() == "given"
    assert RequiredForm({"other": ""}, instance=loaded(row)).is_valid()


def test_the_widget_disables_autofill(row: Row) -> None:
    html = SealedInput().render("secret", loaded(row).secret)
    assert 'type="password"' in html
    assert 'autocomplete="new-password"' in html
    assert "value=" not in html
