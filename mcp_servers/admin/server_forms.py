"""ServerForm and its widgets.

Secrets are shown as the mask; a row that keeps the mask keeps its stored value.
"""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin_base.dollar_field import DollarField
from bonobot.accounts.admin_base.fieldsets import CollapsibleFieldset
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import (
    Checkbox,
    IntegerInput,
    SecretInput,
    Select,
    Textarea,
    TextInput,
)
from bonobot.core.text.masking import MASK
from mcp_servers.admin.list_fields import StringListField
from mcp_servers.auth_config import AUTH_FIELDS, mask_auth_config
from mcp_servers.client_capabilities import CAPABILITY_FIELDS, MAX_TOKENS
from mcp_servers.models import Secret, Server
from mcp_servers.server_config import ServerSpec, mask_endpoint_config
from mcp_servers.server_prices import MAX_PRICE, MAX_RATE, PRICE_NAMES

MAX_PAIRS = 100
# Form fields by the field name of a problem.
PROBLEM_FIELDS = {
    "endpoint_config": "command",
    "auth_config": "auth_type",
    "auth_config.type": "auth_type",
    "auth_config.header": "header",
}
GRANT_NAMES = (
    ("client_credentials", _("client credentials, without a person")),
    ("authorization_code", _("a person signs in to the server")),
    ("jwt_bearer", _("the platform's workload token")),
)
DPOP_NAMES = (
    ("auto", _("If the server supports it")),
    ("required", _("Required")),
    ("off", _("Off")),
)
PER_NAMES = (
    ("organization", _("one person for the whole organization")),
    ("user", _("each person separately")),
)


class KeyValueWidget(forms.Widget):
    """Rows of two inputs. A script adds and removes rows; without it there are three empty rows."""

    template_name = "admin/servers/pairs.html"

    def __init__(self, *, name_hint: str, value_hint: str) -> None:
        super().__init__()
        self.name_hint, self.value_hint = name_hint, value_hint

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        context = super().get_context(name, value, attrs)
        pairs = list(value.items()) if isinstance(value, Mapping) else list(value or ())
        context["widget"] |= {
            "pairs": pairs,
            "mask": MASK,
            "name_hint": self.name_hint,
            "value_hint": self.value_hint,
        }
        return context

    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None
    ) -> SafeString:
        """Render the rows with the project's templates."""
        return render_to_string(self.template_name, self.get_context(name, value, attrs))

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[tuple[str, str]]:
        names, values = data.getlist(f"{name}-name"), data.getlist(f"{name}-value")
        rows = zip((text.strip() for text in names), values, strict=False)
        return [(key, value) for key, value in rows if key or value]

    def value_omitted_from_data(self, data: Any, files: Any, name: str) -> bool:
        return f"{name}-name" not in data

    def id_for_label(self, id_: str) -> str:
        """Return an empty string, since there is no single input for the label."""
        return ""


class KeyValueField(forms.Field):
    """A mapping of names to values."""

    widget: Any = KeyValueWidget

    def clean(self, value: Any) -> dict[str, str]:
        """Return the mapping; raises ValidationError for missing or duplicate names."""
        pairs = list(value.items() if isinstance(value, Mapping) else value or ())
        if len(pairs) > MAX_PAIRS:
            raise ValidationError(_("Enter at most %d rows.") % MAX_PAIRS, code="too_many")
        if any(not name for name, _value in pairs):
            raise ValidationError(_("Every value needs a name."), code="missing_name")
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            raise ValidationError(_("A name is used twice."), code="twice")
        return mapping


def _build_text_field(label: Any, help_text: Any = "", **attrs: str) -> forms.CharField:
    return forms.CharField(
        label=label, required=False, help_text=help_text, widget=TextInput(attrs=attrs)
    )


def _build_secret_field(label: Any) -> forms.CharField:
    return forms.CharField(
        label=label,
        required=False,
        strip=True,
        widget=SecretInput(),
    )


class ServerForm(forms.Form):
    """The settings of a server; the transport decides which fields are shown."""

    name = forms.CharField(
        label=_("Name"),
        widget=TextInput(attrs={"autocomplete": "off"}),
        help_text=_("Short and unique, such as “github”. Used in tool names."),
    )
    description = _build_text_field(_("Description"))
    transport_type = forms.ChoiceField(
        label=_("Transport"),
        choices=Server.Transport.choices[:2],  # APIs use ApiServerForm
        initial=Server.Transport.HTTP,
        widget=forms.RadioSelect,
    )

    url = _build_text_field(_("URL"), placeholder="https://mcp.example.com/mcp", inputmode="url")
    headers = KeyValueField(
        label=_("Headers"),
        required=False,
        widget=KeyValueWidget(name_hint="X-Team", value_hint=str(_("value"))),
        help_text=_("Sent with every request. Values are encrypted and never shown again."),
    )
    allow_private = forms.BooleanField(
        label=_("Allow private or loopback address"),
        required=False,
        widget=Checkbox,
        help_text=_(
            "If disabled, Bonobot connects only to public addresses, so that your internal "
            "network can't be reached through it. Only a platform administrator can allow "
            "it."
        ),
    )

    command = _build_text_field(
        _("Command"),
        _("A launcher on the allowlist, such as npx or uvx."),
        placeholder="uvx",
        autocomplete="off",
    )
    args = StringListField(
        label=_("Arguments"),
        required=False,
        widget=Textarea(attrs={"rows": 4, "placeholder": "mcp-server-time==2026.1.1"}),
        help_text=_(
            "One per line, or a JSON array of strings if an argument has line breaks. Pin the "
            "version: an unpinned package can change at any time."
        ),
    )
    env = KeyValueField(
        label=_("Environment"),
        required=False,
        widget=KeyValueWidget(name_hint="API_TOKEN", value_hint=str(_("value"))),
        help_text=_(
            "Environment variables for the program. Values are encrypted and never shown again."
        ),
    )
    env_exceptions = forms.CharField(
        label=_("Environment variable exceptions"),
        required=False,
        widget=Textarea(attrs={"rows": 2, "placeholder": "NODE_OPTIONS: reason"}),
        help_text=_(
            "One NAME: reason per line. Variables such as NODE_OPTIONS, PATH, "
            "and HTTPS_PROXY can change what a program runs and where it "
            "connects, so they require an exception. The audit log records who "
            "added the exception and why."
        ),
    )
    cwd = _build_text_field(
        _("Folder"),
        _("The working directory of the program. If empty, the server gets its own folder."),
    )

    sandbox = forms.ChoiceField(
        label=_("Sandbox"),
        choices=Server.SandboxMode.choices,
        required=False,
        widget=Select,
        help_text=_(
            "The isolation of the process. Without it, the server isn't started. "
            "Sandbox: the process can access only its own folder and the "
            "organization's folders assigned to it. Namespaces: the process "
            "can't see other processes and has no privileges. Bubblewrap: like "
            "namespaces, and the process can write only to its own folder."
        ),
    )
    network = forms.ChoiceField(
        label=_("Network"),
        choices=[
            ("", _("default: egress rules for sandbox, none for bubblewrap")),
            *Server.Network.choices,
        ],
        required=False,
        widget=Select,
        help_text=_("npx and uvx download what they start, so they need network access."),
    )

    auth_type = forms.ChoiceField(
        label=_("Sign-in"), choices=Server.Auth.choices, initial=Server.Auth.NONE, widget=Select
    )
    token = _build_secret_field(_("Bearer token"))
    header = _build_text_field(_("Header"), _("If empty, X-API-Key."), placeholder="X-API-Key")
    key = _build_secret_field(_("API key"))
    grant = forms.ChoiceField(
        label=_("Authentication"), choices=GRANT_NAMES, required=False, widget=Select
    )
    per = forms.ChoiceField(
        label=_("Who signs in"), choices=PER_NAMES, required=False, widget=Select
    )
    client_id = _build_text_field(_("Client ID"), autocomplete="off")
    client_secret = _build_secret_field(_("Client secret"))
    token_url = _build_text_field(
        _("Token URL"), _("If empty, the server's metadata provides it."), inputmode="url"
    )
    scopes = _build_text_field(_("Scopes"), _("Separate with spaces."))
    issuer = _build_text_field(
        _("Issuer"), _("Only needed if a server names several."), inputmode="url"
    )
    workload_token = _build_text_field(
        _("Workload token"), _("The name of a token that the platform administrator provides.")
    )
    dpop = forms.ChoiceField(
        label=_("Bind tokens to a key (DPoP)"), choices=DPOP_NAMES, required=False, widget=Select
    )
    key_id = _build_text_field(_("Key ID"), _("For a private key that replaces the secret."))
    private_key = forms.CharField(
        label=_("Private key (PEM)"),
        required=False,
        widget=Textarea(attrs={"rows": 3, "data-secret": True}),
    )

    approval = forms.ChoiceField(
        label=_("Definition review"),
        choices=Server.Approval.choices,
        widget=Select,
        help_text=_(
            "A definition that changes later must be reviewed again, unless all changes are "
            "trusted."
        ),
    )
    only_tools = forms.CharField(
        label=_("Only these tools"),
        required=False,
        widget=Textarea(attrs={"rows": 2, "placeholder": "read_*", "spellcheck": "false"}),
        help_text=_(
            "One name or glob pattern per line. If empty, all tools. New tools that match "
            "no pattern are disabled."
        ),
    )
    enabled = forms.BooleanField(label=_("Enabled"), required=False, initial=True, widget=Checkbox)
    call_price = DollarField(
        label=_("Price per call"),
        max_microusd=MAX_PRICE,
        help_text=_("In dollars. Counts toward cost budgets."),
    )
    second_price = DollarField(
        label=_("Price per second"),
        max_microusd=MAX_PRICE,
        help_text=_("In dollars, for each second that a call runs."),
    )
    calls_per_minute = forms.IntegerField(
        label=_("Calls per minute"),
        required=False,
        min_value=0,
        max_value=MAX_RATE,
        widget=IntegerInput,
        help_text=_("For all agents and tokens combined. If empty, no limit."),
    )

    sampling = forms.ChoiceField(
        label=_("Sampling"),
        choices=Server.Sampling.choices,
        initial=Server.Sampling.OFF,
        required=False,
        widget=Select,
        help_text=_("Whether the server can use the agent's model for its own requests."),
    )
    sampling_tokens = forms.IntegerField(
        label=_("Sampling tokens per day"),
        required=False,
        min_value=0,
        max_value=MAX_TOKENS,
        widget=IntegerInput,
        help_text=_("For all its sessions combined. If empty, the value from settings applies."),
    )
    elicitation = forms.BooleanField(
        label=_("Allow elicitation requests"),
        required=False,
        initial=True,
        widget=Checkbox,
        help_text=_("Elicitation requests go to the person who runs the session."),
    )
    roots = forms.BooleanField(
        label=_("Share workspace path"),
        required=False,
        widget=Checkbox,
        help_text=_("The path of the session's workspace on this host."),
    )
    session_state = forms.ChoiceField(
        label=_("Keeps session state"),
        choices=Server.SessionState.choices,
        initial=Server.SessionState.AUTO,
        required=False,
        widget=Select,
        help_text=_("If it doesn't, a client's gateway sessions share its processes."),
    )

    CONNECTION = {"http": ("url",), "stdio": ("command", "args", "env")}
    # Rarely changed fields: title, the choice that shows them, field names.
    FIELDSETS = (
        (_("More connection settings"), "transport_type=http", ("allow_private", "headers")),
        (
            _("Folder, sandbox, and network"),
            "transport_type=stdio",
            ("cwd", "sandbox", "network", "env_exceptions", "session_state"),
        ),
        (
            _("Permissions"),
            "",
            ("approval", "only_tools", "elicitation", "sampling", "sampling_tokens", "roots"),
        ),
        (_("Limits and prices"), "", ("calls_per_minute", "call_price", "second_price")),
        (_("Description and status"), "", ("description", "enabled")),
    )
    PLATFORM_FIELDS = ("command", "args", "env", "cwd", "sandbox", "network", "env_exceptions")
    SIGN_IN = {
        "bearer_token": ("token",),
        "api_key": ("header", "key"),
        "oauth2": (
            *("grant", "per", "client_id", "client_secret", "token_url", "scopes", "issuer"),
            *("key_id", "private_key", "workload_token", "dpop"),
        ),
    }
    # Sign-in fields that are shown for one choice only.
    CONDITIONAL_FIELDS = {
        "per": "grant=authorization_code",
        **dict.fromkeys(("token_url", "key_id", "private_key"), "grant=client_credentials"),
        "workload_token": "grant=jwt_bearer",
    }

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Disable what the role may not set; the services check it again."""
        super().__init__(*args, **kwargs)
        self.principal = principal
        # The header of a server has the switch.
        self.fields["enabled"].disabled = "enabled" in self.initial
        self.fields["sandbox"].initial = settings.BONOBOT_STDIO_SANDBOX
        choices = list(Server.Approval.choices)
        if not principal.may(Action.TRUST_ALL_CHANGES):
            choices = [choice for choice in choices if choice[0] != Server.Approval.ALWAYS]
        self.fields["approval"].initial = settings.BONOBOT_DEFINITION_REVIEW
        current_approval = self.initial.get("approval", settings.BONOBOT_DEFINITION_REVIEW)
        if current_approval not in dict(choices):
            choices.append((current_approval, Server.Approval(current_approval).label))
        self.fields["approval"].choices = choices  # type: ignore[attr-defined]
        if not principal.may(Action.ALLOW_PRIVATE_ADDRESS):
            self.fields["allow_private"].disabled = True
        if not principal.platform_admin:
            for name in self.PLATFORM_FIELDS:
                self.fields[name].disabled = bool(self.initial.get("command"))

    @property
    def connection_fields(self) -> list[tuple[str, list[forms.BoundField]]]:
        """Return the transport's fields as (choice that shows them, fields)."""
        return [
            (f"transport_type={transport}", [self[name] for name in names])
            for transport, names in self.CONNECTION.items()
        ]

    @property
    def sign_in_fields(self) -> list[tuple[str, list[tuple[forms.BoundField, str]]]]:
        """Return the sign-in's fields as (choice that shows them, fields with their own choice)."""
        return [
            (
                f"auth_type={kind}",
                [(self[name], self.CONDITIONAL_FIELDS.get(name, "")) for name in names],
            )
            for kind, names in self.SIGN_IN.items()
        ]

    def _is_in_header(self, name: str) -> bool:
        return name == "enabled" and self.fields[name].disabled

    @property
    def folds(self) -> list[CollapsibleFieldset]:
        """Return the collapsible fieldsets with rarely changed fields."""
        is_private_address = self.has_error("url", "private_address")
        return [
            CollapsibleFieldset(
                title=_("Description") if self._is_in_header(names[-1]) else title,
                shows=shows,
                fields=[self[name] for name in names if not self._is_in_header(name)],
                has_related_error=(is_private_address and "allow_private" in names)
                or ("env_exceptions" in names and self.has_error("env")),
            )
            for title, shows, names in self.FIELDSETS
        ]

    def _keep_bundle(self) -> dict[str, Any]:
        """Return the bundle of the edited server: only an import sets one."""
        return {"bundle": self.initial.get("bundle", "")}

    def build_spec(self) -> ServerSpec:
        """Return the server specification for the services."""
        cleaned = self.cleaned_data
        stdio = cleaned["transport_type"] == Server.Transport.STDIO
        return ServerSpec(
            name=cleaned["name"],
            description=cleaned["description"],
            transport_type=cleaned["transport_type"],
            endpoint_config=_build_endpoint_config(cleaned | self._keep_bundle()),
            auth_config={"type": Server.Auth.NONE} if stdio else _build_auth_config(cleaned),
            enabled=cleaned["enabled"],
            approval=cleaned["approval"],
            only_tools=_split_lines(cleaned["only_tools"]) if "only_tools" in cleaned else None,
            allow_private=cleaned["allow_private"] and cleaned["transport_type"] == "http",
            calls_per_minute=cleaned["calls_per_minute"] or 0,
            sampling=cleaned["sampling"] or None,
            sampling_tokens=cleaned["sampling_tokens"] or 0,
            elicitation=cleaned["elicitation"],
            roots=cleaned["roots"],
            session_state=cleaned["session_state"] or None,
            **{name: cleaned[name] or None for name in ("sandbox", "network") if stdio},
            env_exceptions=_parse_env_exceptions(cleaned)
            if stdio and self.principal.platform_admin
            else None,
            call_price=cleaned["call_price"] or 0,
            second_price=cleaned["second_price"] or 0,
        )


def build_initial(server: Server) -> dict[str, Any]:
    """Return a stored server as initial form values, with secrets masked."""
    endpoint, auth = mask_endpoint_config(server), mask_auth_config(server)
    secret_names = [
        secret.name for secret in server.secrets.all() if secret.placement == Secret.Placement.AUTH
    ]
    public = AUTH_FIELDS.get(server.auth_type, (frozenset(), frozenset()))[0]
    return {
        "name": server.name,
        "description": server.description,
        "transport_type": server.transport_type,
        "enabled": server.enabled,
        "approval": server.approval,
        "only_tools": "\n".join(server.only_tools),
        "allow_private": server.allow_private,
        "sandbox": server.sandbox,
        "network": server.network if server.sandbox != Server.SandboxMode.NONE else "",
        "env_exceptions": "\n".join(
            f"{name}: {reason}" for name, reason in server.env_exceptions.items()
        ),
        "auth_type": server.auth_type,
        "calls_per_minute": server.calls_per_minute,
        **{name: getattr(server, name) for name in CAPABILITY_FIELDS},
        **{name: price for name in PRICE_NAMES if (price := getattr(server, name))},
        **{
            name: endpoint[name]
            for name in ("url", "command", "cwd", "headers", "env", "bundle")
            if name in endpoint
        },
        "args": list(endpoint.get("args", ())),
        **{name: auth[name] for name in public if name in auth},
        "scopes": _join_scopes(auth.get("scopes")),
        **dict.fromkeys(secret_names, MASK),
    }


def _build_endpoint_config(cleaned: Mapping[str, Any]) -> dict[str, Any]:
    if cleaned["transport_type"] != Server.Transport.STDIO:
        config: dict[str, Any] = {"url": cleaned["url"]}
        return config | ({"headers": cleaned["headers"]} if cleaned["headers"] else {})
    config = {
        "command": cleaned["command"],
        "args": cleaned["args"],
    }
    optional_fields = {name: cleaned[name] for name in ("env", "cwd", "bundle")}
    return config | {name: value for name, value in optional_fields.items() if value}


def _parse_env_exceptions(cleaned: Mapping[str, Any]) -> dict[str, str]:
    """Return the reasons by name; an empty reason is rejected later."""
    pairs = (line.partition(":") for line in _split_lines(cleaned["env_exceptions"]))
    return {name.strip(): reason.strip() for name, _colon, reason in pairs}


def _split_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _build_auth_config(cleaned: Mapping[str, Any]) -> dict[str, Any]:
    kind = cleaned["auth_type"]
    public, secret = AUTH_FIELDS[kind]
    shown_names = sorted(name for name in public | secret if _is_field_shown(name, cleaned))
    return {"type": kind} | {name: cleaned[name] for name in shown_names if cleaned.get(name)}


def _is_field_shown(name: str, cleaned: Mapping[str, Any]) -> bool:
    """Return whether the choices made show this field; hidden fields are ignored."""
    choice, _equals, value = ServerForm.CONDITIONAL_FIELDS.get(name, "").partition("=")
    return not choice or cleaned.get(choice) == value


def _join_scopes(scopes: Any) -> str:
    return " ".join(scopes) if isinstance(scopes, list) else str(scopes or "")
