"""Message catalogs: gettext finds the translations of the `.po` files, also after a change."""

import os
import subprocess
from gettext import GNUTranslations
from pathlib import Path

import pytest

from bonobot.core.i18n.catalogs import Message, compile_catalogs, encode_catalog, read_catalog
from tests.parts import ROOT
from tests.translation_catalog import ENGLISH, GERMAN

PO = 'msgid ""\nmsgstr ""\n\nmsgid "Save"\nmsgstr "{}"\n'


def load(path: Path) -> GNUTranslations:
    with path.open("rb") as file:
        return GNUTranslations(file)


@pytest.mark.parametrize("path", [GERMAN, ENGLISH], ids=["de", "en"])
def test_gettext_finds_every_translation_of_a_shipped_catalog(path: Path) -> None:
    catalog = read_catalog(path)
    assert catalog
    compiled = load(path.with_suffix(".mo"))
    for message, texts in catalog.items():
        if message.plural:
            translated = tuple(
                compiled.ngettext(message.text, message.plural, number) for number in (1, 2)
            )
        else:
            translated = (compiled.gettext(message.text),)
        assert translated == texts


def test_git_contains_no_compiled_catalog() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    result = subprocess.run(
        ["git", "ls-files", "*.mo"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == ""


def test_a_catalog_is_compiled_again_only_when_its_source_changed(tmp_path: Path) -> None:
    source = tmp_path / "de" / "LC_MESSAGES" / "django.po"
    source.parent.mkdir(parents=True)
    source.write_text(PO.format("Speichern"), encoding="utf-8")
    target = source.with_suffix(".mo")
    assert compile_catalogs(tmp_path) == [target]
    assert load(target).gettext("Save") == "Speichern"
    assert compile_catalogs(tmp_path) == []

    source.write_text(PO.format("Sichern"), encoding="utf-8")
    # An older modification time too: Git and archives restore past times.
    os.utime(source, ns=(1, 1))
    assert compile_catalogs(tmp_path) == [target]
    assert load(target).gettext("Save") == "Sichern"
    assert sorted(source.parent.iterdir()) == [target, source]


def test_a_message_without_a_translation_stays_in_its_language(tmp_path: Path) -> None:
    path = tmp_path / "django.mo"
    path.write_bytes(encode_catalog({Message("Save"): ("",), Message("Open"): ("Öffnen",)}))
    assert load(path).gettext("Save") == "Save"
    assert load(path).gettext("Open") == "Öffnen"
