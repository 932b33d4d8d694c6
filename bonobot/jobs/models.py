"""Leases: which process has an exclusive role in an installation."""

from django.db import models


class Lease(models.Model):
    """An exclusive role, the process that holds it, and until when; see `celery_beat`."""

    name = models.CharField(primary_key=True, max_length=32)
    holder = models.UUIDField()
    expires_at = models.DateTimeField(db_column="until")

    class Meta:
        app_label = "bonobot"

    def __str__(self) -> str:
        return f"{self.name}: {self.holder}"
