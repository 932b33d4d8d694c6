"""What the lists of questions to people have in common: those that wait come first."""

from typing import Any, ClassVar

from django.db.models import Case, IntegerField, Model, QuerySet, When
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from agents.admin.readers import READERS
from agents.models.waiting import WAITING
from bonobot.lib.admin import FieldTextFilter, display
from bonobot.lib.untrusted import visible
from bonobot.tenancy.screens import PagedAdmin
from bonobot.tenancy.templatetags.bonobot import ago, badge_html

WAITING_FIRST = Case(When(state=WAITING, then=0), default=1, output_field=IntegerField())


class Part(FieldTextFilter):
    """A name, looked for by a part of it."""


class InboxAdmin(PagedAdmin):
    """The active organization's questions of one kind; members see their own.

    `tones` are the colours of states that aren't named like one.
    """

    needs_to_view = READERS
    tones: ClassVar[dict[str, str]] = {}
    ordering = (WAITING_FIRST, "-created_at")
    list_select_related = ("agent",)

    @classmethod
    def badge(cls, question: Any) -> SafeString:
        """Return what became of a question; one that is overdue reads as what it is."""
        state = question.state_at(timezone.now())
        return badge_html(cls.tones.get(state, state), question.State(state).label)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the questions that the person may read."""
        rows: Any = self.model._default_manager
        mine: QuerySet[Any] = rows.visible_to(self.principal(request))
        return mine.select_related("agent", "session")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never: people are asked by the door, and by servers."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never: what was asked and answered stays."""
        return False

    @display(description=_("state"), ordering="state")
    def state_now(self, question: Any) -> Any:
        """Return what became of it."""
        return self.badge(question)

    @display(description=_("agent"), ordering="agent__name")
    def agent_name(self, question: Any) -> str:
        """Return the agent."""
        return visible(question.agent.name, 60) if question.agent else "–"

    @display(description=_("server"), ordering="server_name")
    def server(self, question: Any) -> str:
        """Return the server."""
        return visible(question.server_name, 60) or "–"

    @display(description=_("asked"), ordering="created_at")
    def asked_at(self, question: Any) -> Any:
        """Return when it was asked."""
        return ago(question.created_at)

    @display(description=_("answered, or expires"), ordering="expires_at")
    def until(self, question: Any) -> Any:
        """Return when it was answered; where it wasn't, when it expires."""
        return ago(question.answered_at or question.expires_at)
