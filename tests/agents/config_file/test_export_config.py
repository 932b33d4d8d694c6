"""Exporting the configuration file; `test_cli.py` tests the command."""

import json

import pytest

from agents.config_file.export_config import export_config
from agents.config_file.field_readers import list_plain_fields
from agents.config_file.read_config import read_config_file
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from bonobot.accounts.models import Organization
from tests import factories

pytestmark = pytest.mark.django_db


SETTINGS = {
    "name": "Big",
    "kind": "offline",
    "base_url": "https://models.example.com/v1",
    "model": "big-1",
    "allow_private": True,
    "timeout_s": 30,
    "input_price": 0,
    "output_price": 1,
    "cache_read_price": 0,
    "cache_write_price": 125,
    "region": "eu-central-1",
    "access_key_id": "AKIA",
    "api_version": "2024-10-21",
    "max_tokens": 100,
    "context_window": 200,
    "thinking": "low",
    "thinking_summaries": True,
    "native_tools": False,
    "image_input": True,
    "pdf_input": True,
    "prompt_caching": False,
    "retries": 0,
    "selectable": True,
}


def test_each_setting_of_an_endpoint_is_read_back(acme: Organization) -> None:
    assert SETTINGS.keys() == list_plain_fields(ModelEndpointSpec).keys() - {
        "api_key",
        "fallback_on",
    }
    administrator = factories.build_administrator(acme)
    save_endpoint(administrator, ModelEndpointSpec(**SETTINGS, api_key=""))
    exported = export_config(administrator)
    file = read_config_file(json.dumps({"bonobot": 1} | exported), {})
    assert file.problems == []
    assert file.endpoints["big"].values == SETTINGS


def test_an_endpoint_with_defaults_is_exported_with_its_kind_and_timeout(
    acme: Organization,
) -> None:
    administrator = factories.build_administrator(acme)
    save_endpoint(administrator, ModelEndpointSpec(name="Big", kind="offline", api_key=""))
    endpoint = export_config(administrator)["model_endpoints"]["big"]
    assert endpoint == {"name": "Big", "kind": "offline", "timeout_s": 120}
