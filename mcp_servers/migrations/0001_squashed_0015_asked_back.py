import bonobot.lib.sealed
import django.core.validators
import django.db.models.deletion
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    replaces = [
        ("mcp_servers", "0001_initial"),
        ("mcp_servers", "0002_oauth"),
        ("mcp_servers", "0003_outages"),
        ("mcp_servers", "0004_preset_columns"),
        ("mcp_servers", "0005_oauth_registrations"),
        ("mcp_servers", "0006_openapi"),
        ("mcp_servers", "0007_confinement"),
        ("mcp_servers", "0008_watch_leases"),
        ("mcp_servers", "0009_flow_labels"),
        ("mcp_servers", "0010_waiting_definitions"),
        ("mcp_servers", "0011_only_tools"),
        ("mcp_servers", "0012_server_prices"),
        ("mcp_servers", "0013_rules_version"),
        ("mcp_servers", "0014_unasked_and_resolution"),
        ("mcp_servers", "0015_asked_back"),
    ]

    initial = True

    dependencies = [
        ("tenancy", "0001_squashed_0007_first_run"),
    ]

    operations = [
        migrations.CreateModel(
            name="Launcher",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("command", models.CharField(max_length=255, unique=True, verbose_name="command")),
                (
                    "note",
                    models.CharField(blank=True, default="", max_length=255, verbose_name="note"),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
            ],
            options={
                "verbose_name": "launcher",
                "verbose_name_plural": "launchers",
                "ordering": ("command",),
            },
        ),
        migrations.CreateModel(
            name="OAuthClient",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("issuer", models.CharField(max_length=500)),
                ("redirect_uri", models.CharField(max_length=500)),
                ("client_id", models.CharField(max_length=2048)),
                ("client_secret", bonobot.lib.sealed.SealedTextField(blank=True, default="")),
                ("method", models.CharField(default="none", max_length=32)),
                ("expires_at", models.DateTimeField(null=True)),
                ("registration_url", models.CharField(blank=True, default="", max_length=2048)),
                ("registration_token", bonobot.lib.sealed.SealedTextField(blank=True, default="")),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "OAuth client",
                "verbose_name_plural": "OAuth clients",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "issuer", "redirect_uri"),
                        name="oauth_client_per_issuer",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Preset",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("slug", models.SlugField(max_length=64, verbose_name="slug")),
                ("name", models.CharField(max_length=255, verbose_name="name")),
                (
                    "description",
                    models.TextField(blank=True, default="", verbose_name="description"),
                ),
                (
                    "category",
                    models.CharField(
                        blank=True, default="", max_length=64, verbose_name="category"
                    ),
                ),
                (
                    "icon",
                    models.CharField(blank=True, default="", max_length=64, verbose_name="icon"),
                ),
                (
                    "documentation_url",
                    models.CharField(
                        blank=True,
                        default="",
                        max_length=500,
                        validators=[django.core.validators.URLValidator()],
                        verbose_name="documentation",
                    ),
                ),
                ("transport_type", models.CharField(max_length=10, verbose_name="transport")),
                ("endpoint_config", models.JSONField(default=dict, verbose_name="endpoint")),
                (
                    "auth_type",
                    models.CharField(default="none", max_length=16, verbose_name="sign-in"),
                ),
                (
                    "auth_config",
                    models.JSONField(blank=True, default=dict, verbose_name="sign-in details"),
                ),
                (
                    "confinement",
                    models.CharField(default="none", max_length=10, verbose_name="confinement"),
                ),
                ("network", models.CharField(default="host", max_length=4, verbose_name="network")),
                (
                    "parameters",
                    models.JSONField(blank=True, default=list, verbose_name="parameters"),
                ),
                (
                    "labels",
                    models.JSONField(blank=True, default=list, verbose_name="what its tools do"),
                ),
                (
                    "program",
                    models.CharField(
                        blank=True, default="", max_length=100, verbose_name="program"
                    ),
                ),
                (
                    "replaces",
                    models.JSONField(blank=True, default=list, verbose_name="stands in for"),
                ),
                ("proof", models.JSONField(blank=True, default=dict, verbose_name="proof")),
                (
                    "resolution",
                    models.JSONField(
                        blank=True, default=dict, editable=False, verbose_name="registry's answer"
                    ),
                ),
                (
                    "catalogue",
                    models.CharField(blank=True, default="", editable=False, max_length=64),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                (
                    "organization",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "preset",
                "verbose_name_plural": "presets",
                "ordering": ("category", "name"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "slug"), name="preset_slug_in_organization"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("organization__isnull", True)),
                        fields=("slug",),
                        name="preset_slug_of_platform",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Server",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("scope_id", models.UUIDField(editable=False, verbose_name="scope")),
                ("name", models.CharField(max_length=255, verbose_name="name")),
                ("slug", models.SlugField(max_length=64, verbose_name="slug")),
                (
                    "description",
                    models.CharField(
                        blank=True, default="", max_length=500, verbose_name="description"
                    ),
                ),
                (
                    "transport_type",
                    models.CharField(
                        choices=[("stdio", "stdio"), ("http", "HTTP"), ("openapi", "OpenAPI")],
                        max_length=10,
                        verbose_name="transport",
                    ),
                ),
                ("endpoint_config", models.JSONField(default=dict, verbose_name="endpoint")),
                (
                    "auth_type",
                    models.CharField(
                        choices=[
                            ("none", "none"),
                            ("bearer_token", "bearer token"),
                            ("api_key", "API key"),
                            ("oauth2", "OAuth 2"),
                        ],
                        default="none",
                        max_length=16,
                        verbose_name="sign-in",
                    ),
                ),
                (
                    "auth_config",
                    models.JSONField(blank=True, default=dict, verbose_name="sign-in details"),
                ),
                ("enabled", models.BooleanField(default=True, verbose_name="enabled")),
                (
                    "approval",
                    models.CharField(
                        choices=[
                            ("manual", "a person approves each"),
                            ("first", "the first discovery is trusted"),
                            ("always", "everything is trusted, always"),
                        ],
                        default="manual",
                        max_length=8,
                        verbose_name="approval",
                    ),
                ),
                (
                    "only_tools",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="A tool that is seen for the first time and fits none is switched off.",
                        verbose_name="keep to these tools",
                    ),
                ),
                (
                    "allow_private",
                    models.BooleanField(
                        default=False,
                        help_text="Only a platform administrator may allow a private or loopback address.",
                        verbose_name="private address allowed",
                    ),
                ),
                (
                    "confinement",
                    models.CharField(
                        choices=[
                            ("none", "what this machine offers"),
                            ("namespaces", "namespaces of its own"),
                            ("bubblewrap", "bubblewrap: files can only be read"),
                        ],
                        default="none",
                        max_length=10,
                        verbose_name="confinement",
                    ),
                ),
                (
                    "network",
                    models.CharField(
                        choices=[
                            ("host", "all that this machine reaches"),
                            ("none", "nothing but its own loopback"),
                        ],
                        default="host",
                        max_length=4,
                        verbose_name="network",
                    ),
                ),
                (
                    "call_price",
                    models.PositiveBigIntegerField(
                        db_default=0,
                        default=0,
                        help_text="In micro-dollars; counts in money budgets. 0 where calls are free.",
                        verbose_name="price of a call",
                    ),
                ),
                (
                    "second_price",
                    models.PositiveBigIntegerField(
                        db_default=0,
                        default=0,
                        help_text="In micro-dollars, for each second that a call runs.",
                        verbose_name="price of a second",
                    ),
                ),
                (
                    "calls_per_minute",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Of everybody together; empty: as many as agents and tokens may.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="calls a minute",
                    ),
                ),
                (
                    "sampling",
                    models.CharField(
                        choices=[
                            ("off", "no"),
                            ("ask", "a person is asked each time"),
                            ("allow", "yes, within its tokens"),
                        ],
                        db_default="off",
                        default="off",
                        max_length=5,
                        verbose_name="may use the model",
                    ),
                ),
                (
                    "sampling_tokens",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="What the server may use for itself; empty: as the setting says.",
                        null=True,
                        verbose_name="tokens a day of the model",
                    ),
                ),
                (
                    "elicitation",
                    models.BooleanField(
                        db_default=True,
                        default=True,
                        help_text="Questions go to the person who runs the session.",
                        verbose_name="may ask people",
                    ),
                ),
                (
                    "roots",
                    models.BooleanField(
                        db_default=False, default=False, verbose_name="is told the working folder"
                    ),
                ),
                (
                    "era",
                    models.CharField(
                        blank=True, default="", editable=False, max_length=10, verbose_name="era"
                    ),
                ),
                ("discovery", models.JSONField(editable=False, null=True)),
                ("server_info", models.JSONField(default=dict, editable=False)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("connecting", "connecting"),
                            ("connected", "connected"),
                            ("disconnected", "not connected yet"),
                            ("error", "error"),
                            ("needs_reauth", "needs new credentials"),
                            ("disabled", "disabled"),
                        ],
                        default="disconnected",
                        editable=False,
                        max_length=16,
                        verbose_name="status",
                    ),
                ),
                (
                    "status_code",
                    models.CharField(blank=True, default="", editable=False, max_length=64),
                ),
                ("status_detail", models.TextField(blank=True, default="", editable=False)),
                (
                    "checked_at",
                    models.DateTimeField(editable=False, null=True, verbose_name="checked"),
                ),
                (
                    "discovered_at",
                    models.DateTimeField(editable=False, null=True, verbose_name="discovered"),
                ),
                (
                    "last_connected_at",
                    models.DateTimeField(editable=False, null=True, verbose_name="last connected"),
                ),
                (
                    "latency_ms",
                    models.PositiveIntegerField(
                        editable=False, null=True, verbose_name="latency (ms)"
                    ),
                ),
                ("failures", models.PositiveIntegerField(default=0, editable=False)),
                ("next_check_at", models.DateTimeField(db_index=True, editable=False, null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "preset",
                    models.ForeignKey(
                        blank=True,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="mcp_servers.preset",
                    ),
                ),
            ],
            options={
                "verbose_name": "MCP server",
                "verbose_name_plural": "MCP servers",
                "ordering": ("name",),
                "indexes": [models.Index(fields=["organization", "name"], name="server_by_name")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("scope_id", "slug"), name="server_slug_in_scope"
                    ),
                    models.UniqueConstraint(
                        fields=("scope_id", "name"), name="server_name_in_scope"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("transport_type__in", ["stdio", "http", "openapi"])),
                        name="server_transport",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApiDocument",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("text", models.TextField()),
                ("digest", models.CharField(max_length=64)),
                ("etag", models.CharField(blank=True, default="", max_length=255)),
                ("fetched_at", models.DateTimeField(verbose_name="fetched")),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "server",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="document",
                        to="mcp_servers.server",
                    ),
                ),
            ],
            options={
                "verbose_name": "OpenAPI document",
                "verbose_name_plural": "OpenAPI documents",
            },
        ),
        migrations.CreateModel(
            name="Check",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("health", "health check"),
                            ("discovery", "discovery"),
                            ("test", "test"),
                        ],
                        max_length=10,
                        verbose_name="kind",
                    ),
                ),
                ("ok", models.BooleanField(verbose_name="ok")),
                ("latency_ms", models.PositiveIntegerField(null=True, verbose_name="latency (ms)")),
                (
                    "code",
                    models.CharField(blank=True, default="", max_length=64, verbose_name="code"),
                ),
                ("detail", models.TextField(blank=True, default="", verbose_name="detail")),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "server",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="checks",
                        to="mcp_servers.server",
                    ),
                ),
            ],
            options={
                "verbose_name": "check",
                "verbose_name_plural": "checks",
                "ordering": ("-created_at",),
                "indexes": [models.Index(fields=["server", "-created_at"], name="check_by_server")],
            },
        ),
        migrations.CreateModel(
            name="Definition",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("tool", "tool"),
                            ("resource", "resource"),
                            ("resource_template", "resource template"),
                            ("prompt", "prompt"),
                            ("instructions", "instructions"),
                        ],
                        max_length=20,
                        verbose_name="kind",
                    ),
                ),
                ("name", models.CharField(blank=True, max_length=512, verbose_name="name")),
                (
                    "title",
                    models.CharField(blank=True, default="", max_length=255, verbose_name="title"),
                ),
                (
                    "description",
                    models.TextField(blank=True, default="", verbose_name="description"),
                ),
                ("payload", models.JSONField(default=dict, verbose_name="declaration")),
                ("digest", models.CharField(max_length=64, verbose_name="digest")),
                ("schema_verdict", models.CharField(blank=True, default="", max_length=10)),
                ("fault", models.TextField(blank=True, default="", verbose_name="fault")),
                ("findings", models.JSONField(blank=True, default=list, verbose_name="findings")),
                (
                    "rules_version",
                    models.PositiveIntegerField(db_default=0, default=0, editable=False),
                ),
                (
                    "pinned",
                    models.JSONField(blank=True, null=True, verbose_name="approved declaration"),
                ),
                ("pinned_digest", models.CharField(blank=True, default="", max_length=64)),
                ("pinned_at", models.DateTimeField(blank=True, null=True, verbose_name="approved")),
                (
                    "pinned_by",
                    models.CharField(
                        blank=True, default="", max_length=255, verbose_name="approved by"
                    ),
                ),
                ("labels", models.JSONField(blank=True, null=True, verbose_name="flow labels")),
                ("enabled", models.BooleanField(default=True, verbose_name="switched on")),
                ("present", models.BooleanField(default=True, verbose_name="still offered")),
                (
                    "last_seen_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="last seen"),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "server",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="definitions",
                        to="mcp_servers.server",
                    ),
                ),
            ],
            options={
                "verbose_name": "definition",
                "verbose_name_plural": "definitions",
                "ordering": ("kind", "name"),
                "indexes": [
                    models.Index(
                        fields=["organization", "kind", "name"], name="definition_by_name"
                    ),
                    models.Index(fields=["rules_version"], name="definition_by_rules"),
                    models.Index(
                        condition=models.Q(
                            ("present", True),
                            models.Q(("pinned_digest", models.F("digest")), _negated=True),
                        ),
                        fields=["organization", "server"],
                        name="definition_waiting",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("server", "kind", "name"), name="definition_once_per_server"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ErrorOutput",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "process",
                    models.CharField(
                        blank=True, default="", max_length=255, verbose_name="process"
                    ),
                ),
                ("text", models.TextField(blank=True, default="", verbose_name="output")),
                (
                    "ended",
                    models.CharField(blank=True, default="", max_length=500, verbose_name="end"),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "server",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="outputs",
                        to="mcp_servers.server",
                    ),
                ),
            ],
            options={
                "verbose_name": "error output",
                "verbose_name_plural": "error outputs",
                "ordering": ("-created_at",),
                "indexes": [
                    models.Index(fields=["server", "-created_at"], name="output_by_server")
                ],
            },
        ),
        migrations.CreateModel(
            name="OAuthGrant",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("subject", models.UUIDField(verbose_name="subject")),
                ("binding", models.CharField(blank=True, default="", max_length=64)),
                (
                    "issuer",
                    models.CharField(blank=True, default="", max_length=500, verbose_name="issuer"),
                ),
                (
                    "client_id",
                    models.CharField(
                        blank=True, default="", max_length=2048, verbose_name="client id"
                    ),
                ),
                ("authority", models.JSONField(default=dict)),
                ("access_token", bonobot.lib.sealed.SealedTextField(blank=True, default="")),
                ("refresh_token", bonobot.lib.sealed.SealedTextField(blank=True, default="")),
                ("expires_at", models.DateTimeField(null=True, verbose_name="expires")),
                ("scope", models.TextField(blank=True, default="", verbose_name="scope")),
                ("wanted_scope", models.TextField(blank=True, default="")),
                ("version", models.PositiveIntegerField(default=0)),
                ("failure", models.JSONField(default=dict)),
                ("failed_at", models.DateTimeField(null=True)),
                ("lease_holder", models.UUIDField(null=True)),
                ("lease_until", models.DateTimeField(null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "server",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="grants",
                        to="mcp_servers.server",
                    ),
                ),
            ],
            options={
                "verbose_name": "OAuth grant",
                "verbose_name_plural": "OAuth grants",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("server", "subject"), name="grant_once_per_subject"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="OAuthLogin",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("subject", models.UUIDField()),
                ("binding", models.CharField(max_length=64)),
                ("state_digest", models.CharField(max_length=64, unique=True)),
                ("session_digest", models.CharField(max_length=64)),
                ("verifier", bonobot.lib.sealed.SealedTextField()),
                ("authority", models.JSONField(default=dict)),
                ("client_id", models.CharField(max_length=2048)),
                ("redirect_uri", models.CharField(max_length=2048)),
                ("scope", models.TextField(blank=True, default="")),
                ("expires_at", models.DateTimeField()),
                ("used_at", models.DateTimeField(null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "server",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="mcp_servers.server",
                    ),
                ),
            ],
            options={
                "verbose_name": "login",
                "verbose_name_plural": "logins",
            },
        ),
        migrations.CreateModel(
            name="Outage",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("began_at", models.DateTimeField(verbose_name="began")),
                ("ended_at", models.DateTimeField(null=True, verbose_name="ended")),
                ("code", models.CharField(max_length=64, verbose_name="code")),
                ("detail", models.TextField(blank=True, default="", verbose_name="detail")),
                (
                    "failures",
                    models.PositiveIntegerField(default=1, verbose_name="failed contacts"),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "server",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="outages",
                        to="mcp_servers.server",
                    ),
                ),
            ],
            options={
                "verbose_name": "outage",
                "verbose_name_plural": "outages",
                "ordering": ("-began_at",),
                "indexes": [
                    models.Index(fields=["server", "-began_at"], name="outage_by_server"),
                    models.Index(fields=["organization", "-began_at"], name="outage_by_time"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at__isnull", True)),
                        fields=("server",),
                        name="outage_open_once",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Secret",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "placement",
                    models.CharField(
                        choices=[
                            ("header", "HTTP header"),
                            ("env", "environment variable"),
                            ("auth", "credential"),
                        ],
                        max_length=8,
                    ),
                ),
                ("name", models.CharField(max_length=255)),
                ("value", bonobot.lib.sealed.SealedTextField()),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "server",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="secrets",
                        to="mcp_servers.server",
                    ),
                ),
            ],
            options={
                "verbose_name": "secret",
                "verbose_name_plural": "secrets",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("server", "placement", "name"), name="secret_once_per_place"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Unasked",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("began_at", models.DateTimeField(verbose_name="began")),
                ("ended_at", models.DateTimeField(verbose_name="ended")),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "server",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="unasked",
                        to="mcp_servers.server",
                    ),
                ),
            ],
            options={
                "verbose_name": "time without contacts",
                "verbose_name_plural": "times without contacts",
                "ordering": ("-began_at",),
                "indexes": [models.Index(fields=["server", "-ended_at"], name="unasked_by_server")],
                "constraints": [
                    models.UniqueConstraint(fields=("server", "began_at"), name="unasked_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Watch",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated_at", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("asks", models.CharField(blank=True, default="", max_length=40)),
                ("holder", models.UUIDField(null=True)),
                ("beat_at", models.DateTimeField(null=True)),
                ("listening_since", models.DateTimeField(null=True)),
                ("noticed_at", models.DateTimeField(null=True)),
                ("refused_at", models.DateTimeField(null=True)),
                ("code", models.CharField(blank=True, default="", max_length=64)),
                ("detail", models.TextField(blank=True, default="")),
                ("stale_at", models.DateTimeField(db_index=True, null=True)),
                ("reread_after", models.DateTimeField(null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenancy.organization",
                    ),
                ),
                (
                    "server",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="watch",
                        to="mcp_servers.server",
                    ),
                ),
            ],
            options={
                "verbose_name": "watch",
                "verbose_name_plural": "watches",
                "indexes": [models.Index(fields=["holder"], name="watch_by_holder")],
            },
        ),
    ]
