"""What people write for agents, skills and workflows: their lists, and the page to write one."""

from collections.abc import Callable
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from agents.admin.readers import READERS
from agents.models import Agent
from bonobot.lib.admin import Checkbox, display
from bonobot.lib.problems import Problem
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import PagedAdmin, refuse, screen

VERSIONS_SHOWN = 20


class WrittenForm(forms.Form):
    """A form that says, beside what is written, which agents have it and whether it is on."""

    agents = forms.MultipleChoiceField(
        label=_("Agents that have it"), required=False, widget=forms.CheckboxSelectMultiple
    )
    enabled = forms.BooleanField(label=_("Switched on"), required=False, widget=Checkbox)

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Offer the organization's agents."""
        super().__init__(*args, **kwargs)
        rows = Agent.objects.for_organization(principal.organization_id)
        self.fields["agents"].choices = list(rows.values_list("slug", "name"))  # type: ignore[attr-defined]

    def refuse(self, problem: Problem) -> None:
        """Show a problem at its field."""
        refuse(self, problem)

    def written(self, write: Callable[[Any], Any]) -> Any:
        """Return what `write` makes of the entered form; None where it is refused, at its field."""
        if not self.is_valid():
            return None
        try:
            return write(self)
        except Problem as problem:
            self.refuse(problem)
            return None


class WrittenAdmin(PagedAdmin):
    """The active organization's rows; members see those of their agents.

    Subclasses say by `written_form` and `save` what is written, by `remove` how one goes; `titles`
    is what the page to write one (`add_template`) says before and after.
    """

    written_form: ClassVar[type[WrittenForm]]
    add_template: ClassVar[str]
    titles: ClassVar[tuple[str | Promise, str | Promise]]
    needs_to_view = READERS
    needs_to_change = Action.MANAGE_WORKFLOWS
    list_filter = ("enabled",)
    ordering = ("name",)

    def save(self, principal: Principal, form: Any, row: Any = None) -> Any:
        """Write a new row, or change one; raises `Problem`."""
        raise NotImplementedError

    def remove(self, principal: Principal, row: Any) -> None:
        """Remove a row."""
        raise NotImplementedError

    def beginning(self, principal: Principal) -> dict[str, Any]:
        """Return what stands in the form of a new one."""
        del principal
        return {"enabled": True}

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Offer none: each is removed on its own page."""
        return {}

    @display(description=_("on"), boolean=True, ordering="enabled")
    def on(self, row: Any) -> bool:
        """Return whether it is switched on."""
        return bool(row.enabled)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show our own form, or write what was entered."""
        principal = self.principal(request)
        principal.require(Action.MANAGE_WORKFLOWS)
        posted = request.POST if request.method == "POST" else None
        initial = self.beginning(principal) | {"agents": request.GET.getlist("agent")}
        form = self.written_form(principal, posted, initial=initial)
        title, done = self.titles
        made = form.written(lambda entered: self.save(principal, entered)) if posted else None
        if made is None:
            return screen(request, self.add_template, title=title, form=form, opts=self.opts)
        messages.success(request, str(done))
        address = f"admin:{self.opts.app_label}_{self.opts.model_name}_change"
        return HttpResponseRedirect(reverse(address, args=[made.pk]))

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Remove by the operation."""
        self.remove(self.principal(request), obj)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Name what goes: one with its versions, which nobody deletes on their own."""
        found, counts, _needed, protected = super().get_deleted_objects(objs, request)
        return found, counts, set(), protected
