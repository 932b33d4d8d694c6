"""Links to the pages where a person answers."""

from uuid import uuid4

import pytest
from django.urls import reverse

from agents.models import AccessRequest, Approval, ElicitationRequest
from agents.models.page_urls import build_page_path, build_page_url


@pytest.mark.parametrize("model", [AccessRequest, Approval, ElicitationRequest])
def test_a_link_opens_the_row_in_the_admin(
    model: type[AccessRequest | Approval | ElicitationRequest],
) -> None:
    row = model(pk=uuid4())
    path = reverse(f"admin:agents_{model._meta.model_name}_change", args=[row.pk])
    assert build_page_path(row) == path
    assert build_page_url(row).endswith(path)
    assert build_page_url(row).startswith("http")
