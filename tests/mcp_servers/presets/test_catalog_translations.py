"""Catalog presets are translated; texts of an organization aren't."""

import pytest
from django.utils import translation

from bonobot.accounts.roles import Role
from bonobot.core.i18n.localization import localize_problem
from bonobot.core.problems import InvalidInput
from mcp_servers.models import Preset
from mcp_servers.presets import catalog as preset_catalog
from mcp_servers.presets.services import PresetSpec, create_preset
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db
# These are the same in German.
SAME = {"Browser", "Host", "Partition", "Port", "Repository"}


def test_every_text_of_a_catalog_preset_has_a_german_translation() -> None:
    for preset in Preset.objects.from_platform():
        with translation.override("de"):
            assert preset_catalog.localize_description(preset) != preset.description, (
                f"run `make messages` and translate {preset.description!r}"
            )
            assert preset_catalog.format_category(preset.category) != preset.category, preset.slug
            parameters = preset_catalog.localize_parameters(preset)
        for german, english in zip(parameters, preset.parameters, strict=True):
            assert german["name"] == english["name"]
            for field in ("label", "help"):
                text = english[field]
                assert not text or text in SAME or german[field] != text, (
                    f"translate {text!r}, or add it to `SAME`"
                )
        with translation.override("en"):
            assert preset_catalog.localize_description(preset) == preset.description
            assert preset_catalog.localize_parameters(preset) == preset.parameters


def test_texts_of_an_organization_arent_translated() -> None:
    acme = factories.create_organization()
    folder = {"name": "FOLDER", "label": "Folder", "help": "A name such as Europe/Berlin."}
    text = "Reads, writes, moves, and searches files in a folder."
    url = {"url": "https://files.example.com/${FOLDER}"}
    fields = {"name": "Files", "transport_type": "http", "endpoint_config": url}
    spec = PresetSpec(**fields, description=text, category="ours", parameters=[folder])
    preset = create_preset(factories.build_administrator(acme), spec)
    with translation.override("de"):
        assert preset_catalog.localize_description(preset) == text
        assert preset_catalog.format_category(preset.category) == "ours"
        assert preset_catalog.localize_parameters(preset)[0]["label"] == "Folder"


def test_a_missing_value_is_reported_in_german() -> None:
    entry = next(each for each in preset_catalog.load_catalog() if each.slug == "filesystem")
    with pytest.raises(InvalidInput) as caught:
        preset_catalog.fill_preset(entry, {})
    assert str(caught.value) == "Folder is missing."
    with translation.override("de"):
        expected = (
            "Ordner fehlt. Ein absoluter Pfad. Der Server kann auf nichts außerhalb davon "
            "zugreifen."
        )
        assert localize_problem(caught.value) == expected


def test_rest_returns_presets_in_the_requested_language() -> None:
    client = rest.as_role(factories.create_organization(), Role.OPERATOR)
    english, german = (
        client.get("presets/filesystem", **{"Accept-Language": language}).json
        for language in ("en", "de")
    )
    assert english["description"] == "Reads, writes, moves, and searches files in a folder."
    assert german["description"].startswith("Liest, schreibt")
    assert german["parameters"][0]["label"] == "Ordner"
    assert german["category"] == english["category"] == "files"


def test_the_gallery_and_the_list_show_category_names() -> None:
    browser = admin_client.sign_in(factories.create_organization(), Role.OPERATOR)
    browser.client.defaults["HTTP_ACCEPT_LANGUAGE"] = "de"
    gallery = admin_client.get_text(browser.get("mcp_servers_server_presets", category="files"))
    assert "Dateien" in gallery
    assert "Liest, schreibt, verschiebt" in gallery
    form = admin_client.get_text(browser.get("mcp_servers_server_preset", "filesystem"))
    assert "Ordner" in form
    rows = admin_client.get_text(browser.get("mcp_servers_preset_changelist", category="files"))
    assert "Liest, schreibt, verschiebt" in rows
    assert "Durchsucht das Web" not in rows
