"""The outbox of emails to people about their account: durable, and retried while mail is down.

A row is created in the transaction of its event and deleted when the mail server accepted the
email. Kinds are registered with a function that builds the email when it is sent, so that no link
waits in the database.
"""

import logging
from datetime import timedelta
from typing import Any

from django.utils import timezone

from bonobot.accounts import email_delivery
from bonobot.accounts.email_kinds import EmailKind, get_email_kind
from bonobot.accounts.models import AccountEmail, User
from bonobot.core.celery_tasks import enqueue_task_on_commit
from bonobot.core.db.outbox import claim_row, compute_retry_delay
from bonobot.core.problems import ServiceUnavailable

logger = logging.getLogger(__name__)

SEND_DUE = "bonobot.accounts.tasks.send_due_account_emails"
BATCH_SIZE = 50
# How long emails that finally failed are kept, and shown by `bonobot doctor`.
RETENTION = timedelta(days=30)


def queue_email(user: User, kind: str, *, address: str = "", **values: Any) -> None:
    """Queue an email with the current transaction, if mail can be sent; a worker sends it.

    Without an `address` it goes to the one that the account has when it is sent. `values` must not
    be secret.
    """
    if email_delivery.can_send() and (address or user.email):
        AccountEmail.objects.create(user=user, kind=kind, address=address, values=values)
        enqueue_task_on_commit(SEND_DUE)


def send_due_emails() -> int:
    """Claim and send due emails, and delete old failed ones; return how many were tried."""
    expired = AccountEmail.objects.given_up().filter(created_at__lt=timezone.now() - RETENTION)
    expired.delete()
    if not email_delivery.can_send():
        return 0
    count = 0
    due = AccountEmail.objects.due().select_related("user").order_by("next_attempt_at")
    for row in due[:BATCH_SIZE]:
        # One at a time: a slow mail server must not outlast the lease of the last one.
        if claim_row(AccountEmail.objects.all(), row):
            _send_row(row)
            count += 1
    return count


def _send_row(row: AccountEmail) -> None:
    kind = get_email_kind(row.kind)
    address = row.address or row.user.email
    rows = AccountEmail.objects.filter(pk=row.pk, next_attempt_at=row.next_attempt_at)
    with email_delivery.override_language(row.user):
        content = kind.build(row.user, **row.values) if address else None
        if content is None:
            rows.delete()
            return
        try:
            email_delivery.send_email(
                address,
                content.subject,
                content.paragraphs,
                # The same for each attempt, so that mail programs show duplicates once.
                message_id=f"<{row.pk}@bonobot>",
            )
        except ServiceUnavailable as problem:
            _settle_failure(row, kind, problem)
        else:
            rows.delete()


def _settle_failure(row: AccountEmail, kind: EmailKind, problem: ServiceUnavailable) -> None:
    delay = compute_retry_delay(row.attempts, kind.retry_delays_min)
    rows = AccountEmail.objects.filter(pk=row.pk, next_attempt_at=row.next_attempt_at)
    rows.update(next_attempt_at=timezone.now() + delay if delay else None, error=str(problem))
    logger.warning(
        "Email %s to the account %s wasn't delivered (%s); %s",
        row.kind,
        row.user_id,
        problem.code,
        f"next attempt in {delay}" if delay else "no further attempt",
    )
