"""Downloads: the audit as a file, written while it is read."""

from collections.abc import AsyncIterator

from asgiref.sync import sync_to_async
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from django.utils import timezone

from bonobot.ledger.exporting import MEDIA, Form, pages
from bonobot.ledger.models import AuditRow


def download(rows: QuerySet[AuditRow], form: Form) -> StreamingHttpResponse:
    """Answer with a file of these rows; one page at a time is in memory."""
    response = StreamingHttpResponse(_read(rows, form), content_type=MEDIA[form])
    name = f"audit-{timezone.now():%Y-%m-%d}.{form}"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


async def _read(rows: QuerySet[AuditRow], form: Form) -> AsyncIterator[str]:
    found = pages(rows, form)

    def read() -> str:
        return next(found, "")

    while page := await sync_to_async(read)():
        yield page
