"""Programs that may start stdio servers."""

import uuid

from django.db import models
from django.utils.translation import gettext_lazy as _


class Launcher(models.Model):
    """An entry of the platform's launcher allowlist, in addition to `BONOBOT_LAUNCHERS`.

    Launchers run code on this host, so only a platform administrator may create one.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    command = models.CharField(_("command"), max_length=255, unique=True)
    note = models.CharField(_("note"), max_length=255, blank=True, default="")
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        ordering = ("command",)
        verbose_name = _("launcher")
        verbose_name_plural = _("launchers")

    def __str__(self) -> str:
        return self.command
