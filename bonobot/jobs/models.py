"""Leases: which process alone does something in an installation."""

from django.db import models


class Lease(models.Model):
    """What one process at a time may do, who it is, and until when; see `celery_beat`."""

    name = models.CharField(primary_key=True, max_length=32)
    holder = models.UUIDField()
    until = models.DateTimeField()

    class Meta:
        app_label = "bonobot"

    def __str__(self) -> str:
        return f"{self.name}: {self.holder}"
