"""Note: what an agent keeps for later sessions (FEATURES D6)."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.lib.changed_fields import SavesChangedFields
from bonobot.tenancy.scoped import OrganizationModel
from mcp_servers.labels import Label, labels_in

LONGEST_TITLE = 200
LONGEST_NOTE = 4_000
MOST_NOTES = 500


class Note(SavesChangedFields, OrganizationModel):
    """A note of one agent: its title is what it is found and replaced by.

    `labels` are those that its writer held when it was written, as the ledger has them: whoever
    reads the note holds them too (FEATURES X9).
    """

    agent = models.ForeignKey("agents.Agent", on_delete=models.CASCADE, related_name="notes")
    title = models.CharField(_("title"), max_length=LONGEST_TITLE)
    text = models.TextField(_("text"), max_length=LONGEST_NOTE)
    labels = models.PositiveSmallIntegerField(_("brings"), default=0)
    written_by = models.CharField(_("written by"), max_length=255)
    session_id = models.UUIDField(null=True)

    class Meta:
        ordering = ("-updated_at", "-pk")
        verbose_name = _("note")
        verbose_name_plural = _("notes")
        constraints = (models.UniqueConstraint(fields=["agent", "title"], name="note_once"),)

    def __str__(self) -> str:
        return self.title

    @property
    def brought(self) -> tuple[Label, ...]:
        """What reading it brings."""
        return labels_in(self.labels)
