"""Budgets of an organization in the admin, with their usage."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django import forms
from django.contrib.admin.utils import unquote
from django.db.models import F, QuerySet
from django.http import HttpRequest, QueryDict
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import parse_amount
from agents.budgets.preview import (
    DAY,
    PREVIEW_DAYS,
    BudgetedDay,
    BudgetPace,
    BudgetPreview,
    build_preview,
    compute_next_period,
    compute_pace,
)
from agents.budgets.services import (
    DEFAULT_WARN_AT,
    BudgetLine,
    BudgetUse,
    Owner,
    build_line,
    delete_budget,
    load_budget_use,
    save_budget,
)
from agents.models import Agent, Budget
from agents.models.budgets import format_amount
from bonobot.accounts.admin_base import ServiceFormAdmin, render_fragment
from bonobot.accounts.admin_base.svg_charts import (
    Chart,
    ChartColumn,
    ChartValue,
    build_bars,
    choose_axis,
    place_labels,
)
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import amount as shown_amount
from bonobot.accounts.templatetags.display import (
    icon,
    monogram,
    percent_of,
    plain_dollars,
    render_badge,
)
from bonobot.core.admin.theme import Checkbox, IntegerInput, Select, TextInput, display, register
from bonobot.core.i18n.localization import format_day, format_number, format_percent
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.admin.usage import build_time_filters
from mcp_servers.models import Server

AGENT_PREFIX = "agent:"
NUMBER_HINT = _("Enter a whole number.")
DOLLARS_HINT = _("Enter an amount in dollars.")
ORGANIZATION = "organization"


@dataclass(frozen=True)
class BudgetForecast:
    """What a budget of a form counts, when it resets, and its last 30 days."""

    owner: Owner
    line: BudgetLine
    has_limit: bool  # False: the form has no valid limit yet
    resets_at: datetime | None
    preview: BudgetPreview | None
    chart: Chart | None
    use: BudgetUse | None = None  # of a saved budget, in the current period

    @property
    def kind(self) -> str:
        """organization, agent, session, or server."""
        if isinstance(self.owner, Server):
            return "server"
        if isinstance(self.owner, Agent):
            return "session" if self.line.each_session else "agent"
        return "organization"

    @property
    def limit(self) -> str:
        return format_amount(self.line.limit, self.line.unit)

    @property
    def warning(self) -> str:
        """The amount at which people are warned."""
        return format_amount(-(-self.line.limit * self.line.warn_at // 100), self.line.unit)

    @property
    def used(self) -> str:
        """What the current period has used of the limit."""
        if self.use is None:
            return ""
        amounts = {"spent": self.use.spent, "limit": self.use.line.limit}
        shown = {name: shown_amount(value, self.line.unit) for name, value in amounts.items()}
        return _t("%(spent)s of %(limit)s") % shown

    @property
    def status(self) -> SafeString:
        return render_budget_status(self.use) if self.use else SafeString()

    @property
    def is_estimate(self) -> bool:
        """Whether the limit isn't in effect: what it would have denied is estimated."""
        return self.has_limit and (self.use is None or self.use.line.limit != self.line.limit)

    @property
    def highest(self) -> str:
        return format_amount(self.preview.highest, self.line.unit) if self.preview else ""

    @property
    def total(self) -> str:
        return format_amount(self.preview.total, self.line.unit) if self.preview else ""

    @property
    def days(self) -> int:
        return PREVIEW_DAYS


def read_line(data: QueryDict, row: Budget | None) -> tuple[BudgetLine, bool]:
    """Return the line of a form that may be incomplete, and whether its limit is valid."""
    unit = row.unit if row else _choose(data.get("unit"), Budget.Unit.values, Budget.Unit.TOKENS)
    period = (
        row.period
        if row
        else _choose(data.get("period"), Budget.Period.values, Budget.Period.MONTH)
    )
    is_separate = "each_session" in data and is_agent_key(data.get("owner_key", ""))
    each_session = row.each_session if row else is_separate
    has_limit, limit = True, 0
    try:
        limit = parse_amount(unit, data.get("amount", ""))
    except InvalidInput:
        has_limit = False
    warn_at = data.get("warn_at", "")
    is_percentage = warn_at.isdecimal() and 1 <= int(warn_at) <= 100
    return (
        BudgetLine(
            unit,
            period=period,
            limit=limit,
            each_session=each_session,
            warn_at=int(warn_at) if is_percentage else DEFAULT_WARN_AT,
        ),
        has_limit and limit >= 0,
    )


def is_agent_key(owner_key: str) -> bool:
    """Return whether the owner that a form names is an agent."""
    return owner_key.startswith(AGENT_PREFIX)


def _choose(value: str | None, choices: list[str], default: str) -> str:
    return value if value in choices else default


def build_forecast(
    principal: Principal, owner: Owner, line: BudgetLine, *, has_limit: bool = True
) -> BudgetForecast:
    """Return what a budget does; past usage only for those who may read the audit log."""
    now = timezone.now()
    preview = None
    if principal.may(Action.VIEW_AUDIT):
        preview = build_preview(principal.organization_id, owner, line, now)
    return BudgetForecast(
        owner,
        line=line,
        has_limit=has_limit,
        resets_at=compute_next_period(line.period, now),
        preview=preview,
        chart=_build_chart(preview, owner, line, has_limit) if preview and preview.total else None,
    )


def _build_chart(preview: BudgetPreview, owner: Owner, line: BudgetLine, has_limit: bool) -> Chart:
    """Return a bar per day: its usage, or for longer periods what the period has used so far."""
    is_daily = line.period == Budget.Period.DAY or not has_limit
    amounts = [day.usage.amount if is_daily else day.requested for day in preview.days]
    highest = max(*amounts, line.limit if has_limit else 0, 1)
    axis = choose_axis(highest)
    stacks = [
        [("", min(amount, line.limit)), ("bad", max(0, amount - line.limit))]
        if has_limit
        else [("", amount)]
        for amount in amounts
    ]
    columns = [
        ChartColumn(
            bar,
            format_day(day.usage.day),
            _build_audit_url(day.usage.day, owner),
            _build_values(day, line, has_limit),
        )
        for bar, day in zip(build_bars(stacks, axis[0]), preview.days, strict=True)
    ]
    return Chart(
        title=_t("Usage"),
        axis=[shown_amount(number, line.unit) for number in axis],
        columns=columns,
        labels=place_labels([column.title for column in columns]),
        limit_at=100 - 100 * line.limit / axis[0] if has_limit else None,
        limit_text=format_amount(line.limit, line.unit),
    )


def _build_values(day: BudgetedDay, line: BudgetLine, has_limit: bool) -> tuple[ChartValue, ...]:
    values = [ChartValue(_t("used"), format_amount(day.usage.amount, line.unit), "bar")]
    if has_limit and line.period != Budget.Period.DAY:
        values.append(ChartValue(_t("in the period"), format_amount(day.requested, line.unit)))
    if has_limit:
        values.append(ChartValue(_t("denied calls"), format_number(day.denied), "failed"))
    return tuple(values)


def _build_audit_url(day: datetime, owner: Owner) -> str:
    filters: dict[str, Any] = {"kind": "call", **build_time_filters(day, day + DAY)}
    if isinstance(owner, Agent):
        filters["agent_id"] = owner.pk
    elif isinstance(owner, Server):
        filters["server_id"] = owner.pk
    return f"{reverse('admin:ledger_auditrow_changelist')}?{urlencode(filters)}"


class BudgetForm(forms.ModelForm):
    """Owner, unit, period and limit; money is in dollars."""

    owner_key = forms.ChoiceField(
        label=_("Applies to"), widget=Select(attrs={"data-searchable-options": True})
    )
    each_session = forms.BooleanField(
        label=_("Count each session separately"),
        required=False,
        widget=Checkbox(attrs={"data-shows": "owner_key=agent:*"}),
        help_text=_("Every session of the agent has the full limit."),
    )
    amount = forms.CharField(
        label=_("Limit"),
        widget=TextInput(attrs={"inputmode": "decimal"}),
        help_text=format_lazy(
            '<span data-shows="unit=tokens|calls|seconds">{}</span>'
            '<span data-shows="unit=microusd">{}</span>',
            NUMBER_HINT,
            DOLLARS_HINT,
        ),
    )
    warn_at = forms.IntegerField(
        label=_("Warn at (%)"), min_value=1, max_value=100, initial=80, widget=IntegerInput
    )

    class Meta:
        model = Budget
        fields = ("each_session", "unit", "period", "warn_at")

    principal: Principal

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Offer the organization, its agents, and its servers."""
        super().__init__(*args, **kwargs)
        if "owner_key" not in self.fields:
            return
        self.fields["owner_key"].choices = _list_owner_choices(self.principal)  # type: ignore[attr-defined]
        row = self.instance
        if not row._state.adding:
            self.fields["owner_key"].initial = _format_owner_key(row)
            is_money = row.unit == Budget.Unit.MONEY
            self.fields["amount"].initial = plain_dollars(row.limit) if is_money else row.limit
            self.fields["amount"].help_text = DOLLARS_HINT if is_money else NUMBER_HINT
            for name in {"owner_key", "each_session", "unit", "period"} & set(self.fields):
                self.fields[name].disabled = True

    def build_line(self) -> BudgetLine:
        """Return the budget line of the form; raises `InvalidInput`."""
        values = self.cleaned_data
        return BudgetLine(
            values["unit"],
            values["period"],
            parse_amount(values["unit"], values["amount"]),
            each_session=values["each_session"] and is_agent_key(values["owner_key"]),
            warn_at=values["warn_at"],
        )


@register(Budget)
class BudgetAdmin(ServiceFormAdmin):
    """The active organization's budgets."""

    add_label = _("Create budget")
    # The services check the permission that each owner requires.
    needs_to_change = Action.MANAGE_AGENTS
    has_bulk_actions = False  # each budget is deleted on its own page
    delete_note = _("The limit stops applying with the next call.")
    form = BudgetForm
    change_form_template = "admin/budgets/form.html"
    fields = ("owner_key", "each_session", "unit", "period", "amount", "warn_at")
    problem_fields = {"budgets": "amount", "budgets[0].unit": "unit"}
    list_display = ("owner", "limit_text", "status", "spent", "reserved")
    list_display_links = ("owner",)
    list_filter = ("unit", "period")
    list_select_related = ("agent", "server", "organization")
    search_fields = ("agent__name", "server__name")
    # Budgets of the organization first, then by agent and by server.
    ordering = (
        F("agent__name").asc(nulls_first=True),
        F("server__name").asc(nulls_first=True),
        "each_session",
        "unit",
        "period",
    )
    empty_icon = "savings"
    empty_text = _(
        "A budget limits what the organization, an agent, each session of an agent, or a "
        "server can use: tokens, dollars, calls, or seconds."
    )

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Load the usage of all budgets of a page together."""
        changelist = super().get_changelist_instance(request)
        rows = list(changelist.result_list)
        for row, usage in zip(rows, load_budget_use(rows), strict=True):
            row.use = usage
        changelist.result_list = rows
        return changelist

    def get_queryset(self, request: HttpRequest) -> QuerySet[Budget]:
        """Return the budgets with their owners."""
        rows: QuerySet[Budget] = super().get_queryset(request)
        return rows.select_related("agent", "server", "organization")

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """Return the form class bound to the principal."""
        form = super().get_form(request, obj, change=change, **kwargs)
        return type("Form", (form,), {"principal": self.get_principal(request)})

    def get_urls(self) -> list[Any]:
        """Add the preview of a budget that isn't saved."""
        view = self.admin_site.admin_view(self.show_preview)
        return [path("preview/", view, name="agents_budget_preview"), *super().get_urls()]

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Show what the budget does next to the form."""
        principal = self.get_principal(request)
        row = self.get_object(request, unquote(object_id)) if object_id else None
        context = {
            "forecast": _build_form_forecast(principal, row, request.POST),
            "preview_query": f"?budget={row.pk}" if row else "",
        }
        return super().changeform_view(
            request, object_id, form_url, context | (extra_context or {})
        )

    def show_preview(self, request: HttpRequest) -> HttpResponseBase:
        """Return what the budget of a form would do."""
        principal = self.get_principal(request)
        principal.require(Action.VIEW)
        row_id = request.GET.get("budget")
        row = self.get_object(request, row_id) if row_id else None
        forecast = _build_form_forecast(principal, row, request.POST)
        return render_fragment(request, "budgets/forecast.html", forecast=forecast)

    @display(description=_("Applies to"))
    def owner_key(self, row: Budget) -> str:
        """Return the name of the owner, for people who may not change the budget."""
        return make_visible(str(row.agent or row.server or row.organization), 80)

    @display(description=_("Limit"))
    def amount(self, row: Budget) -> str:
        """Return the limit, for people who may not change the budget."""
        return shown_amount(row.limit, row.unit)

    @display(description=_("Applies to"))
    def owner(self, row: Budget) -> SafeString:
        """Return the owner whose spending counts."""
        name = make_visible(str(row.agent or row.server or row.organization), 80)
        kinds = {
            "organization": _t("organization"),
            "agent": _t("agent"),
            "session": _t("each session"),
            "server": _t("server"),
        }
        owner_kind = "server" if row.server_id else "agent"
        mark = (
            render_to_string("admin/parts/monogram.html", monogram(name, owner_kind))
            if row.agent_id or row.server_id
            else icon("apartment")
        )
        return format_html(
            '<span class="bb-owner">{} {} <span class="bb-quiet">{}</span></span>',
            mark,
            name,
            kinds[row.scope],
        )

    @display(description=_("limit"), ordering="unit")
    def limit_text(self, row: Budget) -> str:
        """Return the limit with its unit and period."""
        return str(row)

    @display(description=_("spent"))
    def spent(self, row: Any) -> SafeString | str:
        """Return a meter of the current period: what is spent, and how much time has passed."""
        if row.each_session:
            return _t("shown on each session")
        usage: BudgetUse = row.use
        pace = compute_pace(usage, timezone.now())
        return format_html(
            '<span class="bb-use"><span class="bb-meter" data-tone="{}"><i style="width:{}%"></i>{}'
            '</span><span class="bb-quiet">{}</span></span>',
            usage.tone,
            percent_of(usage.spent, row.limit),
            format_html('<b style="left:{}%"></b>', pace.elapsed) if pace else "",
            " · ".join(
                filter(
                    None,
                    (
                        _t("%(spent)s of %(limit)s")
                        % {
                            "spent": shown_amount(usage.spent, row.unit),
                            "limit": shown_amount(row.limit, row.unit),
                        },
                        format_percent(usage.percent, ",d"),
                        _describe_pace(pace),
                    ),
                )
            ),
        )

    @display(description=_("reserved by running calls"))
    def reserved(self, row: Any) -> str:
        """Return the amount reserved by running calls."""
        return shown_amount(row.use.reserved, row.unit) if row.use.reserved else "–"

    @display(description=_("status"))
    def status(self, row: Any) -> SafeString | str:
        """Return whether the limit or the warning level is reached."""
        return "–" if row.each_session else render_budget_status(row.use)

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Budget:
        """Save through the service."""
        line = form.build_line()
        owner = _get_owner(self.get_principal(request), form.cleaned_data["owner_key"])
        save_budget(self.get_principal(request), owner, line)
        owner_lookup: dict[str, Any] = (
            {"agent": owner} if isinstance(owner, Agent) else {"server": owner}
        )
        if isinstance(owner, Organization):
            owner_lookup = {"agent": None, "server": None}
        return Budget.objects.select_related("agent", "server", "organization").get(
            organization_id=self.get_principal(request).organization_id,
            unit=line.unit,
            period=line.period,
            each_session=line.each_session,
            **owner_lookup,
        )

    def delete_model(self, request: HttpRequest, obj: Budget) -> None:
        """Delete through the service."""
        delete_budget(self.get_principal(request), obj)


def render_budget_status(use: BudgetUse) -> SafeString:
    """Return whether the limit or the warning level is reached."""
    warn_at = format_percent(use.line.warn_at, "d")
    title = _t("A notification is sent at %(percent)s.") % {"percent": warn_at}
    if use.spent >= use.line.limit:
        return render_badge("hard", _t("limit reached"), title)
    if use.warned:
        return render_badge("soft", _t("above %(percent)s") % {"percent": warn_at}, title)
    return render_badge("ok", _t("within limit"), title)


def _describe_pace(pace: BudgetPace | None) -> str:
    if pace is None:
        return ""
    projected = format_percent(pace.projected_percent, ",d")
    return _t("on pace for %(percent)s") % {"percent": projected}


def _build_form_forecast(
    principal: Principal, row: Budget | None, data: QueryDict
) -> BudgetForecast:
    """Return what a budget does with the values that were typed, else with its saved ones."""
    if row is None:
        owner: Owner = _get_owner(principal, data.get("owner_key") or ORGANIZATION)
    else:
        owner = row.agent or row.server or row.organization
    line, has_limit = (build_line(row), True) if row and not data else read_line(data, row)
    forecast = build_forecast(principal, owner, line, has_limit=has_limit)
    if row is None or row.each_session:
        return forecast
    return replace(forecast, use=load_budget_use([row])[0])


def _format_owner_key(row: Budget) -> str:
    if row.agent_id:
        return f"{AGENT_PREFIX}{row.agent_id}"
    return f"server:{row.server_id}" if row.server_id else ORGANIZATION


def _list_owner_choices(principal: Principal) -> list[tuple[str, Any]]:
    agents = Agent.objects.for_organization(principal.organization_id).order_by("name")
    servers = Server.objects.for_organization(principal.organization_id).order_by("name")
    choices: list[tuple[str, Any]] = [(ORGANIZATION, _("Entire organization"))]
    choices.append((_t("Agents"), [(f"{AGENT_PREFIX}{owner.pk}", owner.name) for owner in agents]))
    choices.append((_t("Servers"), [(f"server:{owner.pk}", owner.name) for owner in servers]))
    return choices


def _get_owner(principal: Principal, owner_key: str) -> Owner:
    kind, _colon, owner_id = owner_key.partition(":")
    if kind == ORGANIZATION:
        return Organization.objects.get(pk=principal.organization_id)
    if kind not in ("agent", "server"):
        raise InvalidInput(
            "A budget must apply to the organization, an agent, or a server.",
            field="owner_key",
            remedy="Choose one from the list.",
        )
    model: Any = Server if kind == "server" else Agent
    owner: Owner = model.objects.get_or_404(principal.organization_id, pk=owner_id)
    return owner
