"""Collapsed groups of fields show their values in one line."""

from django import forms

from bonobot.accounts.admin_base.fieldsets import CollapsibleFieldset


class LimitsForm(forms.Form):
    turns = forms.IntegerField(label="Turns", required=False)
    mode = forms.ChoiceField(
        label="Mode", choices=[("a", "Automatic"), ("m", "Manual")], initial="a"
    )
    enabled = forms.BooleanField(label="Enabled", required=False, initial=True)
    members = forms.MultipleChoiceField(
        label="Members", choices=[("anna", "Anna"), ("berta", "Berta")], required=False
    )


def build_fieldset(
    *names: str, initial: dict[str, object] | None = None, lists_defaults: bool = False
) -> CollapsibleFieldset:
    form = LimitsForm(initial=initial or {})
    fields = [form[name] for name in names]
    return CollapsibleFieldset(title="Limits", fields=fields, lists_defaults=lists_defaults)


def test_the_summary_has_the_values_that_differ_from_the_default() -> None:
    assert build_fieldset("turns", "mode", "enabled").summary == "Default"
    changed = build_fieldset(
        "turns", "mode", "enabled", initial={"turns": 3_000, "mode": "m", "enabled": False}
    )
    assert changed.summary == "Turns: 3,000 · Mode: Manual · Enabled: No"


def test_the_summary_can_have_all_values() -> None:
    assert build_fieldset("members", lists_defaults=True).summary == "None"
    members = build_fieldset("members", initial={"members": ["anna"]}, lists_defaults=True)
    assert members.summary == "Anna"
    assert build_fieldset("mode", lists_defaults=True).summary == "Mode: Automatic"


def test_the_summary_has_no_values_of_names_with_values() -> None:
    for value in ({"X-Key": "secret-1"}, [("X-Key", "secret-1")]):
        assert build_fieldset("turns", initial={"turns": value}).summary == "Turns: X-Key"


def test_a_group_is_open_only_if_something_must_be_corrected() -> None:
    form = LimitsForm({"turns": "many", "mode": "a"})
    assert CollapsibleFieldset(title="Limits", fields=[form["turns"]]).open
    assert not CollapsibleFieldset(title="Limits", fields=[form["mode"]]).open
