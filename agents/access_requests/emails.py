"""Mail the answer of an access request to the person who made it."""

from uuid import UUID

from django.utils.translation import gettext as _t

from agents.access_requests.services import build_page_url
from agents.models import AccessRequest
from bonobot.accounts import email as account_email
from bonobot.accounts.models import User
from bonobot.core.text.untrusted_text import make_visible


def send_answer_email(access_request_id: UUID) -> bool:
    """Mail the answer; return False if there is no mail server or no address."""
    access_request = AccessRequest.objects.filter(
        pk=access_request_id, requested_by_kind="user", answered_at__isnull=False
    ).first()
    if access_request is None or not account_email.can_send():
        return False
    users = User.objects.filter(pk=access_request.requested_by_id, is_active=True)
    user = users.exclude(email="").first()
    if user is None:
        return False
    is_approved = access_request.state == AccessRequest.State.APPROVED
    with account_email.override_language(user):
        values = {
            "target": make_visible(access_request.target, 120),
            "who": make_visible(access_request.answered_by, 120),
        }
        subject = (
            _t("Your request for %(target)s was approved")
            if is_approved
            else _t("Your request for %(target)s was denied")
        )
        paragraphs = [_t("Answered by %(who)s.") % values]
        if access_request.message:
            paragraphs.append(make_visible(access_request.message, 2_000))
        paragraphs.append(build_page_url(access_request))
        account_email.send_email(user.email, subject % values, paragraphs)
    return True
