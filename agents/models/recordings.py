"""Models of recorded sessions and their replays."""

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from agents.models.agents import filter_by_visible_agents
from agents.models.model_endpoints import ModelEndpoint
from agents.models.sessions import Runner
from bonobot.accounts.models.abstract_models import OrganizationModel, ScopedQuerySet
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.ledger.actor_names import get_actor_name


class RecordingQuerySet(ScopedQuerySet):
    """Filters for recordings."""

    def visible_to(self, principal: Principal) -> "RecordingQuerySet":
        """Keep recordings that a principal may see: for readers, those of visible agents."""
        visible: RecordingQuerySet = filter_by_visible_agents(self, principal)
        return visible if principal.may(Action.VIEW) else visible.none()


class Recording(OrganizationModel):
    """An immutable recording of a session, independent of the session's lifetime.

    `conversation` is `agents.evaluation.compare_transcripts.Transcript` as JSON, secrets masked.
    """

    agent = models.ForeignKey("agents.Agent", on_delete=models.CASCADE, related_name="recordings")
    session_id = models.UUIDField(_("session"))
    # The model endpoint chosen for the session; null: the agent's.
    model_endpoint = models.ForeignKey(
        "agents.ModelEndpoint", on_delete=models.SET_NULL, null=True, related_name="+"
    )
    title = models.CharField(_("title"), max_length=255)
    conversation = models.JSONField()
    size = models.PositiveIntegerField(_("size (bytes)"))
    turns = models.PositiveIntegerField(_("turns"))
    calls = models.PositiveIntegerField(_("calls"))
    tokens = models.PositiveBigIntegerField(_("tokens"))
    cost_microusd = models.PositiveBigIntegerField(_("cost (micro-dollars)"))
    created_by = models.CharField(_("recorded by"), max_length=255, db_column="made_by")

    objects: ClassVar = RecordingQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("recording")
        verbose_name_plural = _("recordings")
        constraints = (
            models.UniqueConstraint(fields=["agent", "session_id"], name="recording_once"),
        )

    def __str__(self) -> str:
        return self.title or str(self.session_id)

    @property
    def effective_endpoint(self) -> ModelEndpoint:
        """Return the first endpoint of a replay: the session's, or the agent's."""
        endpoint: ModelEndpoint = self.model_endpoint or self.agent.model_endpoint
        return endpoint


class Replay(OrganizationModel):
    """A replay of a recording with a changed agent; the results are in `differences`.

    `changed` has the changes of the agent, `rules` its policy for decisions. A runner leases it
    like a session; if the runner is gone, the replay restarts with the next fence.
    """

    class Status(models.TextChoices):
        """The status of a replay."""

        QUEUED = "queued", _("queued")
        RUNNING = "running", _("running")
        DONE = "done", _("completed")
        FAILED = "failed", _("failed")

    recording = models.ForeignKey(Recording, on_delete=models.CASCADE, related_name="replays")
    status = models.CharField(
        _("status"), max_length=10, choices=Status, default=Status.QUEUED, db_index=True
    )
    changed = models.JSONField(default=dict)
    rules = models.JSONField(null=True)
    endpoint = models.ForeignKey(
        "agents.ModelEndpoint", on_delete=models.SET_NULL, null=True, related_name="+"
    )
    conversation = models.JSONField(null=True)
    differences = models.JSONField(default=list)
    differs = models.BooleanField(_("differs"), null=True)
    tokens = models.PositiveBigIntegerField(_("tokens"), default=0)
    cost_microusd = models.PositiveBigIntegerField(_("cost (micro-dollars)"), default=0)
    error_code = models.CharField(_("error code"), max_length=64, blank=True, default="")
    error_detail = models.TextField(_("error"), blank=True, default="")
    started_by_kind = models.CharField(max_length=10)
    started_by_id = models.CharField(max_length=255)
    started_by = models.CharField(_("started by"), max_length=255)
    runner = models.ForeignKey(Runner, on_delete=models.SET_NULL, null=True, related_name="+")
    fence = models.PositiveIntegerField(default=0)
    finished_at = models.DateTimeField(_("finished"), null=True)

    objects: ClassVar = ScopedQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("recording replay")
        verbose_name_plural = _("recording replays")

    def __str__(self) -> str:
        return f"{self.recording_id} {self.created_at:%Y-%m-%d %H:%M}"

    @property
    def starter_name(self) -> str:
        """Who started it as screens name actors; interfaces return `started_by`."""
        return get_actor_name(self.started_by_kind, self.started_by_id, self.started_by)
