"""All forms that add an object have the same layout."""

import re
from collections.abc import Iterator
from contextlib import suppress

import pytest
from django.contrib import admin
from django.urls import NoReverseMatch, reverse

from bonobot.accounts.models import Organization
from tests import admin_client


def _iterate_add_urls() -> Iterator[str]:
    """Yield the addresses of all forms that add an object; some models have none."""
    reverse("admin:index")  # registers the models
    for model in admin.site._registry:
        with suppress(NoReverseMatch):
            yield reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_add")


pytestmark = pytest.mark.django_db


@pytest.fixture
def administrator() -> admin_client.AdminClient:
    return admin_client.sign_in(Organization.objects.create(slug="acme", name="Acme"), None)


def test_each_form_has_its_button_below_it(administrator: admin_client.AdminClient) -> None:
    pages = {}
    for url in _iterate_add_urls():
        response = administrator.client.get(url, follow=True)
        if response.status_code == 200:
            pages[url] = response.content.decode()
    assert len(pages) > 10
    counts = {url: len(re.findall(r'class="bb[^"]* bb-saves', page)) for url, page in pages.items()}
    assert {url: count for url, count in counts.items() if count != 1} == {}
    assert [url for url, page in pages.items() if 'id="submit-row"' in page] == []
