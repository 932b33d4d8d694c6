"""Stored stderr of stdio servers."""

import os
import socket
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from bonobot.core.runtime import get_runtime
from mcp_servers.client.child_process import MAX_STDERR_BYTES, StderrSnapshot
from mcp_servers.models import ErrorOutput, Server

MAX_OUTPUTS_PER_SERVER = 8
RETENTION = timedelta(days=7)


async def save_stderr(snapshot: StderrSnapshot) -> None:
    """Store the stderr of a child; drop it if the server no longer exists."""
    await get_runtime().run_orm(write_snapshot, snapshot)


def write_snapshot(snapshot: StderrSnapshot) -> None:
    """Store one child's stderr; keep the latest eight of each server."""
    columns: dict[str, Any] = {"text": snapshot.text, "ended": snapshot.ended[:500]}
    rows = ErrorOutput.objects.filter(pk=snapshot.child_id)
    if rows.update(**columns, updated_at=timezone.now()):
        return
    try:
        with transaction.atomic():
            if not Server.objects.filter(pk=snapshot.server_id).exists():
                return
            ErrorOutput.objects.create(
                pk=snapshot.child_id,
                organization_id=snapshot.organization_id,
                server_id=snapshot.server_id,
                process=f"{socket.gethostname()}:{os.getpid()}"[-255:],
                **columns,
            )
    except IntegrityError:
        return  # the server was deleted after the check
    older = ErrorOutput.objects.filter(server=snapshot.server_id).values_list("pk", flat=True)
    ErrorOutput.objects.filter(pk__in=list(older[MAX_OUTPUTS_PER_SERVER:])).delete()


def list_error_outputs(server: Server) -> list[ErrorOutput]:
    """Return the stored stderr of the server's latest children, oldest first."""
    return list(server.outputs.all()[:MAX_OUTPUTS_PER_SERVER])[::-1]


def load_latest_output(server: Server) -> str:
    """Return the last 64 KiB of stderr of the server's children, the latest at the end."""
    texts = (row.text.rstrip("\n") for row in list_error_outputs(server) if row.text)
    return "\n".join(texts)[-MAX_STDERR_BYTES:]


def prune_error_outputs() -> int:
    """Delete stderr older than a week; return the number of rows."""
    return ErrorOutput.objects.filter(updated_at__lt=timezone.now() - RETENTION).delete()[0]
