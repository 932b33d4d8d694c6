"""Sessions: the list, and the page with the conversation, live while it runs."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.conversation import conversation, latest
from agents.admin.readers import READERS
from agents.approvals import revoke
from agents.attachments import FIELD, LARGEST_TOGETHER, MOST, Attachment
from agents.budgets import session_budgets_in_use
from agents.evaluation.recordings import RESTING
from agents.holding import held_by_session
from agents.models import Recording, Session, SessionGrant
from agents.pictures import as_answer, kept_of
from agents.sessions import requests
from agents.sessions.exporting import as_file
from bonobot.lib.admin import MultipleChoicesDropdownFilter, WithinFilter, display, register
from bonobot.lib.untrusted import visible
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import PagedAdmin, Visit, fragment
from bonobot.tenancy.templatetags.bonobot import ago, badge_html, dollars
from mcp_servers.admin.label_names import WORDS


@register(Session)
class SessionAdmin(PagedAdmin):
    """The active organization's sessions; members see their own."""

    needs_to_view = READERS
    list_display = ("session", "agent", "state", "started", "by", "calls", "tokens", "cost")
    list_filter = (("status", MultipleChoicesDropdownFilter), ("created_at", WithinFilter))
    search_fields = ("title", "agent__name", "started_by", "error_code")
    ordering = ("-created_at",)
    list_select_related = ("agent",)
    change_list_template = "admin/sessions/list.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Session]:
        """Return the sessions that the person may read."""
        return Session.objects.visible_to(self.principal(request)).select_related("agent")

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Offer none."""
        return {}

    @display(description=_("session"))
    def session(self, session: Session) -> str:
        """Return the first words."""
        return visible(str(session), 90)

    @display(description=_("status"), ordering="status")
    def state(self, session: Session) -> str:
        """Return the badge."""
        return badge_html(session.status, session.get_status_display(), session.error_code)

    @display(description=_("started"), ordering="created_at")
    def started(self, session: Session) -> Any:
        """Return when it was started."""
        return ago(session.created_at)

    @display(description=_("by"), ordering="started_by")
    def by(self, session: Session) -> str:
        """Return who started it."""
        return visible(session.started_by)

    @display(description=_("tokens"), ordering="input_tokens")
    def tokens(self, session: Session) -> str:
        """Return the tokens in and out."""
        return f"{session.input_tokens + session.output_tokens:,}"

    @display(description=_("cost"), ordering="cost_microusd")
    def cost(self, session: Session) -> str:
        """Return what it cost."""
        return dollars(session.cost_microusd)


@SessionAdmin.add_page("image", needs=READERS)
def image(visit: Visit) -> HttpResponseBase:
    """Return an image of the conversation."""
    return as_answer(kept_of(visit.object, visit.request.GET.get("sha256", "")))


@SessionAdmin.add_page("file", needs=READERS)
def file(visit: Visit) -> HttpResponseBase:
    """Return a text that somebody attached."""
    return as_answer(kept_of(visit.object, visit.request.GET.get("sha256", ""), what="files"))


@SessionAdmin.add_page("export", needs=READERS)
def export(visit: Visit) -> HttpResponseBase:
    """Return the session written down (`?as=markdown` or `json`)."""
    return as_file(visit.object, visit.request.GET.get("as", "markdown"))


@SessionAdmin.add_page("change", _("Conversation"), needs=READERS)
def show(visit: Visit) -> HttpResponseBase:
    """Show the conversation: its end, or what is behind `?after=`."""
    session: Session = visit.object
    since = _after(visit)
    return visit.show(
        "sessions/session.html",
        session=session,
        held=[(WORDS[one.label], one) for one in held_by_session(session)],
        talk=(
            latest(session, visit.principal)
            if since is None
            else conversation(session, visit.principal, since)
        ),
        budgets=session_budgets_in_use(session),
        grants=session.grants.all(),
        may_run=requests.may_run(visit.principal, session.agent),
        recorded=(recorded := _recorded(visit)),
        may_record=not recorded
        and visit.principal.may(Action.MANAGE_AGENTS)
        and session.status in RESTING,
    )


@SessionAdmin.add_page("steps", needs=READERS)
def steps(visit: Visit) -> HttpResponseBase:
    """Return what is new behind `?after=`, as a piece of the page."""
    session: Session = visit.object
    return fragment(
        visit.request,
        "sessions/steps.html",
        session=session,
        talk=conversation(session, visit.principal, _after(visit) or 0),
        may_run=requests.may_run(visit.principal, session.agent),
    )


@SessionAdmin.add_deed("send", needs=Action.RUN_AGENTS)
def send(visit: Visit) -> None:
    """Send another message."""
    files = uploaded(visit.request)
    requests.send(visit.principal, visit.object, visit.request.POST.get("text", ""), files)


@SessionAdmin.add_deed("retry", needs=Action.RUN_AGENTS)
def retry(visit: Visit) -> None:
    """Send a message again in its place: as it was, or (`text`) in other words."""
    said = visit.request.POST
    seq = said.get("seq", "")
    requests.send_again(
        visit.principal,
        visit.object,
        int(seq) if seq.isdecimal() and len(seq) < 10 else None,
        said.get("text"),
        uploaded(visit.request),
    )


@SessionAdmin.add_deed("cancel", needs=Action.RUN_AGENTS)
def cancel(visit: Visit) -> None:
    """Ask for the session to be cancelled."""
    if requests.cancel(visit.principal, visit.object):
        messages.success(visit.request, _t("It is being cancelled."))
    else:
        messages.info(visit.request, _t("Nothing runs here, so there is nothing to cancel."))


@SessionAdmin.add_deed("revoke", needs=Action.APPROVE_CALLS)
def take_back(visit: Visit) -> None:
    """Take back a yes for the session."""
    grants = SessionGrant.objects.filter(session=visit.object)
    organization_id = visit.principal.organization_id
    grant: SessionGrant = grants.get_or_404(organization_id, pk=visit.request.POST.get("grant"))
    revoke(visit.principal, grant)
    text = _t("%(tool)s is asked about again from the next call on.")
    messages.success(visit.request, text % {"tool": visible(grant.label, 120)})


def uploaded(request: HttpRequest) -> list[Attachment]:
    """Return the files that were sent with a message; one too many, or too long, is refused."""
    files: list[Any] = request.FILES.getlist(FIELD)[: MOST + 1]
    return [Attachment(one.name or "", bytes(one.read(LARGEST_TOGETHER + 1))) for one in files]


def _recorded(visit: Visit) -> UUID | None:
    """Return the id of the session's recording, for those who may look at it."""
    if not visit.principal.may(Action.VIEW):
        return None
    mine = Recording.objects.filter(agent=visit.object.agent_id, session_id=visit.object.pk)
    found: UUID | None = mine.values_list("pk", flat=True).first()
    return found


def _after(visit: Visit) -> int | None:
    said = visit.request.GET.get("after", "")
    return min(int(said), 2**31 - 1) if said.isdecimal() and len(said) < 12 else None
