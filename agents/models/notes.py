"""Notes of agents."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel
from bonobot.core.db.changed_fields import SavesChangedFields
from mcp_servers.flow_labels import FlowLabel, decode_labels

MAX_TITLE_LENGTH = 200
MAX_NOTE_LENGTH = 4_000
MAX_NOTES = 500


class Note(SavesChangedFields, OrganizationModel):
    """A note of one agent, identified by its title.

    `labels` are the flow labels of the session that wrote it, as the ledger's bits; sessions that
    read the note get them, too.
    """

    agent = models.ForeignKey("agents.Agent", on_delete=models.CASCADE, related_name="notes")
    title = models.CharField(_("title"), max_length=MAX_TITLE_LENGTH)
    text = models.TextField(_("text"), max_length=MAX_NOTE_LENGTH)
    labels = models.PositiveSmallIntegerField(_("flow labels"), default=0)
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
    def flow_labels(self) -> tuple[FlowLabel, ...]:
        """The flow labels that a session gets by reading it."""
        return decode_labels(self.labels)
