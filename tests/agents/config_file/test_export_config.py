"""Exporting the configuration file; `test_cli.py` tests the command."""

import json

import pytest

from agents.config_file.export_config import export_config
from agents.config_file.read_config import read_config_file
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from bonobot.accounts.models import Organization
from tests import factories

pytestmark = pytest.mark.django_db


def test_caching_thinking_and_pdf_settings_of_an_endpoint_are_read_back(
    acme: Organization,
) -> None:
    values = {
        "cache_read_price": 0,
        "cache_write_price": 125,
        "prompt_caching": False,
        "pdf_input": True,
        "thinking_summaries": True,
    }
    administrator = factories.build_administrator(acme)
    save_endpoint(administrator, ModelEndpointSpec(name="Big", kind="offline", **values))
    exported = export_config(administrator)
    file = read_config_file(json.dumps({"bonobot": 1} | exported), {})
    assert file.problems == []
    assert values.items() <= dict(file.endpoints["big"].values).items()
