"""URLs of the pages where a person answers."""

from django.conf import settings

from agents.models import AccessRequest, Approval, ElicitationRequest
from bonobot.core.admin.page_paths import get_page_path


def build_page_path(row: AccessRequest | Approval | ElicitationRequest) -> str:
    # Not by `reverse`: listing them must not load the whole admin.
    return f"/admin/{get_page_path(type(row))}/{row.pk}/change/"


def build_page_url(row: AccessRequest | Approval | ElicitationRequest) -> str:
    return f"{settings.BONOBOT_URL}{build_page_path(row)}"
