"""What skills and workflows share as objects that are assigned to agents: lists, forms, tabs."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import READERS, AgentAdmin
from agents.assignments import list_agent_slugs
from agents.models import Agent, Skill, Workflow
from bonobot.accounts.admin_base import (
    ObjectRequest,
    TabbedAdmin,
    add_problem_to_form,
    redirect_to_page,
    render_screen,
)
from bonobot.accounts.models import Deletion
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import render_badge
from bonobot.core.admin.theme import Checkbox, display
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_visible

MAX_VERSIONS = 20
MAX_OFFERED = 500


class AssignableForm(forms.Form):
    """Base of the forms of skills and workflows: agents and enabled state."""

    agents = forms.MultipleChoiceField(
        label=_("Agents"), required=False, widget=forms.CheckboxSelectMultiple
    )
    enabled = forms.BooleanField(label=_("Enabled"), required=False, widget=Checkbox)

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Offer the organization's agents."""
        super().__init__(*args, **kwargs)
        rows = Agent.objects.for_organization(principal.organization_id)
        self.fields["agents"].choices = list(rows.values_list("slug", "name"))  # type: ignore[attr-defined]

    def add_problem(self, problem: Problem) -> None:
        """Show a problem at its field."""
        add_problem_to_form(self, problem)

    def try_save(self, save: Callable[[Any], Any]) -> Any:
        """Return the result of `save`; None if the form has errors, which it shows."""
        if not self.is_valid():
            return None
        try:
            return save(self)
        except Problem as problem:
            self.add_problem(problem)
            return None


class AssignableAdmin(TabbedAdmin):
    """Base of the admins of skills and workflows; members see those of their agents.

    Subclasses set `form_class` and `add_template` and implement `save` and `remove`; `titles` are
    the title of the add page and its success message.
    """

    form_class: ClassVar[type[AssignableForm]]
    add_template: ClassVar[str]
    titles: ClassVar[tuple[str | Promise, str | Promise]]
    needs_to_view = READERS
    needs_to_change = Action.MANAGE_WORKFLOWS
    has_bulk_actions = False  # each row is deleted on its own page
    list_filter = ("enabled",)
    ordering = ("name",)

    def save(self, principal: Principal, form: Any, row: Any = None) -> Any:
        """Create or update a row; raises `Problem`."""
        raise NotImplementedError

    def remove(self, principal: Principal, row: Any) -> Deletion | None:
        """Delete a row; return the deletion if the row can be restored."""
        raise NotImplementedError

    def build_initial(self, principal: Principal) -> dict[str, Any]:
        del principal
        return {"enabled": True}

    @display(description=_("enabled"), ordering="enabled")
    def is_enabled(self, row: Any) -> SafeString:
        if row.enabled:
            return render_badge("ok", _t("enabled"))
        return render_badge("off", _t("disabled"))

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show the form, or create the row."""
        principal = self.get_principal(request)
        principal.require(Action.MANAGE_WORKFLOWS)
        posted = request.POST if request.method == "POST" else None
        initial = self.build_initial(principal) | {"agents": request.GET.getlist("agent")}
        form = self.form_class(principal, posted, initial=initial)
        title, success_message = self.titles
        created = (
            form.try_save(lambda valid_form: self.save(principal, valid_form)) if posted else None
        )
        if created is None:
            return render_screen(request, self.add_template, title=title, form=form, opts=self.opts)
        messages.success(request, str(success_message))
        url_name = f"admin:{self.opts.app_label}_{self.opts.model_name}_change"
        return HttpResponseRedirect(reverse(url_name, args=[created.pk]))

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete through the service."""
        request.deletion = self.remove(self.get_principal(request), obj)  # type: ignore[attr-defined]

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return what is deleted; versions need no permission of their own."""
        objects, counts, _needed, protected = super().get_deleted_objects(objs, request)
        return objects, counts, set(), protected


def edit_assignable(
    visit: ObjectRequest, template: str, initial: dict[str, Any], saved_text: str, **context: Any
) -> HttpResponseBase:
    """Show the form with earlier versions, or update the row and say `saved_text`."""
    admin: Any = visit.admin
    posted = visit.request.POST if visit.request.method == "POST" else None
    initial |= {"agents": list_agent_slugs(visit.object)}
    form = admin.form_class(visit.principal, posted, initial=initial)
    if posted is not None:
        visit.principal.require(Action.MANAGE_WORKFLOWS)
        if form.try_save(lambda valid_form: admin.save(visit.principal, valid_form, visit.object)):
            messages.success(visit.request, saved_text)
            return redirect_to_page(visit, "edit")
    return visit.render_tab(
        template,
        form=form,
        versions=list(visit.object.versions.all()[:MAX_VERSIONS]),
        may_manage=visit.principal.may(Action.MANAGE_WORKFLOWS),
        **context,
    )


def render_assignments(
    visit: ObjectRequest, template: str, rows: Any, attached_rows: Any, **context: Any
) -> HttpResponseBase:
    """Show the rows that are attached to the agent, and those that can be attached."""
    agent: Agent = visit.object
    other_rows = rows.exclude(assignments__agent=agent).order_by("name")
    return visit.render_tab(
        template,
        agent=agent,
        paged=visit.paginate(attached_rows.order_by("name")),
        other_rows=list(other_rows[:MAX_OFFERED]),
        may_manage=visit.principal.may(Action.MANAGE_WORKFLOWS),
        **context,
    )


def add_attach_actions(
    kind: str,
    get_row: Callable[[Principal, str], Any],
    save_row: Callable[[Principal, Any, list[str]], Any],
) -> None:
    """Add the actions of an agent that attach and detach a row of this kind; the row stays.

    `save_row` saves the slugs of the agents that have the row.
    """

    def set_attached(visit: ObjectRequest, *, attached: bool) -> HttpResponseBase:
        agent = visit.object
        row = get_row(visit.principal, visit.request.POST.get("row", ""))
        slugs = [slug for slug in list_agent_slugs(row) if slug != agent.slug]
        save_row(visit.principal, row, [*slugs, agent.slug] if attached else slugs)
        return _redirect_with_message(visit, row, f"{kind}s", attached=attached)

    for verb, attached in (("assign", True), ("unassign", False)):
        add_action = AgentAdmin.add_object_action(
            f"{verb}_{kind}", required_actions=Action.MANAGE_WORKFLOWS
        )
        add_action(partial(set_attached, attached=attached))


def _redirect_with_message(
    visit: ObjectRequest, row: Skill | Workflow, page: str, *, attached: bool
) -> HttpResponseBase:
    text = (
        _t("%(name)s was attached to %(agent)s.")
        if attached
        else _t("%(name)s was detached from %(agent)s.")
    )
    names = {"agent": make_visible(visit.object.name, 60), "name": make_visible(str(row), 80)}
    messages.success(visit.request, text % names)
    return redirect_to_page(visit, page)
