import bonobot.accounts.models.organizations
import bonobot.accounts.roles
import bonobot.core.crypto.encrypted_fields
import django.contrib.auth.validators
import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models

from bonobot.core.db.migration_operations import BatchedMigration


class Migration(BatchedMigration):

    replaces = [('tenancy', '0001_initial'), ('tenancy', '0002_rename_fields'), ('tenancy', '0003_deletions'), ('tenancy', '0004_organization_registry'), ('tenancy', '0005_membership_name'), ('tenancy', '0006_issuer_help_text')]

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
    ]

    operations = [
        migrations.CreateModel(
            name='Attempts',
            fields=[
                ('key', models.CharField(max_length=64, primary_key=True, serialize=False)),
                ('tat', models.BigIntegerField(db_index=True)),
            ],
        ),
        migrations.CreateModel(
            name='Organization',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=255, verbose_name='name')),
                ('slug', models.SlugField(max_length=64, unique=True, verbose_name='slug')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('halted_at', models.DateTimeField(editable=False, null=True, verbose_name='kill switch enabled')),
                ('four_eyes', models.BooleanField(default=False, help_text="The person who requested a call or started its session can't approve it.", verbose_name='no self-approval')),
                ('approval_hours', models.PositiveSmallIntegerField(blank=True, help_text='From 1 to 720. After that, the call is denied. If empty, the platform default applies.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(720)], verbose_name='approval deadline (hours)')),
                ('calls_per_minute', models.PositiveIntegerField(blank=True, help_text='For all agents and tokens combined. 0 means no limit. If empty, the value from settings applies.', null=True, verbose_name='calls per minute')),
                ('second_factor', models.BooleanField(db_default=False, default=False, help_text='Members without one must set one up before they can do anything else.', verbose_name='require a second factor')),
                ('single_sign_on', models.BooleanField(db_default=False, default=False, help_text='Passwords then give no access to this organization, except for platform administrators.', verbose_name='require single sign-on')),
                ('audit_days', models.PositiveIntegerField(blank=True, help_text='Older entries are deleted. 0 means never. If empty, the platform default applies.', null=True, validators=[django.core.validators.MaxValueValidator(36500)], verbose_name='audit retention (days)')),
                ('registry', models.CharField(choices=[('off', 'no one'), ('token', 'clients with a token'), ('public', 'everyone who can reach this address')], db_default='off', default='off', help_text='Lists approved servers and agents. Clients can allow only the listed ones.', max_length=6, verbose_name='registry for MCP clients')),
            ],
            options={
                'verbose_name': 'organization',
                'verbose_name_plural': 'organizations',
                'ordering': ('name',),
            },
        ),
        migrations.CreateModel(
            name='User',
            fields=[
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('username', models.CharField(error_messages={'unique': 'A user with that username already exists.'}, help_text='Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.', max_length=150, unique=True, validators=[django.contrib.auth.validators.UnicodeUsernameValidator()], verbose_name='username')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('email', models.EmailField(blank=True, max_length=254, verbose_name='email address')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('language', models.CharField(blank=True, choices=[('', 'browser default'), ('en', 'English'), ('de', 'Deutsch')], db_default='', default='', help_text='For pages and messages.', max_length=8, verbose_name='language')),
                ('time_zone', models.CharField(blank=True, db_default='', default='', help_text='Times are shown in this time zone, such as Europe/Berlin. If empty, UTC.', max_length=64, validators=[bonobot.accounts.models.organizations._is_zone], verbose_name='time zone')),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
            options={
                'verbose_name': 'user',
                'verbose_name_plural': 'users',
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='FactorSecret',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('secret', bonobot.core.crypto.encrypted_fields.SealedTextField()),
                ('organization_id', models.UUIDField(editable=False, null=True)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='FirstRun',
            fields=[
                ('organization', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='first_run', serialize=False, to='tenancy.organization')),
                ('skipped', models.JSONField(default=list)),
                ('closed_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='Provider',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('name', models.CharField(help_text='Shown on the sign-in page.', max_length=255, verbose_name='name')),
                ('url', models.CharField(help_text="The issuer's URL, exactly as in the claim iss of its tokens.", max_length=512, verbose_name='issuer')),
                ('client_id', models.CharField(max_length=255, verbose_name='client ID')),
                ('client_secret', bonobot.core.crypto.encrypted_fields.SealedTextField(blank=True, default='', verbose_name='client secret')),
                ('domains', models.JSONField(blank=True, default=list, verbose_name='email domains')),
                ('trusts_email', models.BooleanField(default=False, help_text="For providers that verify every email address but don't send email_verified.", verbose_name='trust email addresses')),
                ('creates', models.BooleanField(default=False, help_text='Users known to the provider become members at their first sign-in.', verbose_name='create accounts')),
                ('role', models.CharField(blank=True, choices=[('owner', 'owner'), ('operator', 'operator'), ('reviewer', 'reviewer'), ('auditor', 'auditor'), ('member', 'member')], default=bonobot.accounts.roles.Role['MEMBER'], help_text='For users without a role from a claim. If empty, they have no access.', max_length=16, verbose_name='role')),
                ('role_claim', models.CharField(blank=True, default='', help_text='Such as groups. Each sign-in then sets the role. Use a dot to reach a nested field.', max_length=255, verbose_name='role claim')),
                ('roles', models.JSONField(blank=True, default=dict, verbose_name='roles by claim value')),
                ('second_factor', models.BooleanField(default=False, help_text="Otherwise, the provider's sign-in counts as the second factor.", verbose_name="require Bonobot's second factor")),
                ('announced', models.BooleanField(default=True, help_text='Shows its name to everyone. Otherwise, people need its URL.', verbose_name='show on sign-in page')),
                ('allow_private', models.BooleanField(default=False, help_text='Also allows http.', verbose_name='allow private address')),
                ('enabled', models.BooleanField(default=True, verbose_name='enabled')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
            ],
            options={
                'verbose_name': 'identity provider',
                'verbose_name_plural': 'identity providers',
                'ordering': ('name',),
                'constraints': [models.UniqueConstraint(fields=('organization', 'url', 'client_id'), name='provider_once'), models.CheckConstraint(condition=models.Q(('role__in', ['', 'owner', 'operator', 'reviewer', 'auditor', 'member'])), name='provider_role')],
            },
        ),
        migrations.CreateModel(
            name='Identity',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('subject', models.CharField(max_length=255)),
                ('email', models.CharField(blank=True, default='', max_length=254, verbose_name='email address')),
                ('used_at', models.DateTimeField(null=True, verbose_name='last used')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('provider', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='identities', to='tenancy.provider')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('provider', 'subject'), name='identity_subject_once'), models.UniqueConstraint(fields=('provider', 'user'), name='identity_user_once')],
            },
        ),
        migrations.CreateModel(
            name='StoredResponse',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('principal', models.CharField(max_length=300)),
                ('key', models.CharField(max_length=255)),
                ('request_digest', models.CharField(max_length=64)),
                ('status', models.PositiveSmallIntegerField(null=True)),
                ('body', bonobot.core.crypto.encrypted_fields.SealedTextField(blank=True, default='', label='tenancy.keptanswer.body')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
            ],
            options={
                'verbose_name': 'stored response',
                'verbose_name_plural': 'stored responses',
                'db_table': 'tenancy_keptanswer',
                'indexes': [models.Index(fields=['organization', 'created_at'], name='answer_by_age')],
                'constraints': [models.UniqueConstraint(fields=('organization', 'principal', 'key'), name='answer_once_per_key')],
            },
        ),
        migrations.CreateModel(
            name='Token',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('name', models.CharField(max_length=255, verbose_name='name')),
                ('key', models.CharField(editable=False, max_length=16, unique=True, verbose_name='key')),
                ('pepper_id', models.PositiveSmallIntegerField(editable=False)),
                ('digest', models.CharField(editable=False, max_length=64)),
                ('role', models.CharField(choices=[('owner', 'owner'), ('operator', 'operator'), ('reviewer', 'reviewer'), ('auditor', 'auditor'), ('member', 'member')], default=bonobot.accounts.roles.Role['MEMBER'], max_length=16, verbose_name='role')),
                ('scopes', models.JSONField(blank=True, default=list, verbose_name='scopes')),
                ('agent_ids', models.JSONField(blank=True, default=list, verbose_name='only for agents')),
                ('networks', models.JSONField(blank=True, default=list, verbose_name='allowed networks')),
                ('client', models.CharField(blank=True, default='', max_length=64, verbose_name='client')),
                ('calls_per_minute', models.PositiveIntegerField(blank=True, null=True, verbose_name='calls per minute')),
                ('expires_at', models.DateTimeField(blank=True, null=True, verbose_name='expires')),
                ('last_used_at', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='last used')),
                ('revoked_at', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='revoked')),
                ('client_id', models.CharField(blank=True, db_default='', default='', editable=False, max_length=255, verbose_name='client ID')),
                ('resource', models.CharField(blank=True, db_default='', default='', editable=False, max_length=512, verbose_name='URL')),
                ('access_expires_at', models.DateTimeField(blank=True, db_column='fresh_until', editable=False, null=True)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
                ('user', models.ForeignKey(blank=True, editable=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='granted by')),
            ],
            options={
                'verbose_name': 'token',
                'verbose_name_plural': 'tokens',
                'ordering': ('-created_at',),
                'constraints': [models.CheckConstraint(condition=models.Q(('role__in', ['owner', 'operator', 'reviewer', 'auditor', 'member'])), name='token_role'), models.CheckConstraint(condition=models.Q(models.Q(('access_expires_at__isnull', True), ('resource', ''), ('user__isnull', True)), models.Q(('user__isnull', False), models.Q(('resource', ''), _negated=True)), _connector='OR'), name='token_grant_has_an_address')],
            },
        ),
        migrations.CreateModel(
            name='Deletion',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('kind', models.CharField(max_length=32, verbose_name='type')),
                ('object_id', models.CharField(max_length=64)),
                ('name', models.CharField(max_length=255, verbose_name='name')),
                ('deleted_by', models.CharField(max_length=255, verbose_name='deleted by')),
                ('expires_at', models.DateTimeField(db_index=True, verbose_name='can be restored until')),
                ('rows', bonobot.core.crypto.encrypted_fields.SealedJSONField()),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
            ],
            options={
                'verbose_name': 'deletion',
                'verbose_name_plural': 'recently deleted',
                'ordering': ('-created_at',),
                'indexes': [models.Index(fields=['organization', '-created_at'], name='deletion_by_organization')],
            },
        ),
        migrations.CreateModel(
            name='Invitation',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('email', models.EmailField(max_length=254, verbose_name='email address')),
                ('role', models.CharField(choices=[('owner', 'owner'), ('operator', 'operator'), ('reviewer', 'reviewer'), ('auditor', 'auditor'), ('member', 'member')], default=bonobot.accounts.roles.Role['MEMBER'], max_length=16, verbose_name='role')),
                ('agent_ids', models.JSONField(blank=True, default=list, verbose_name='agents')),
                ('key', models.CharField(editable=False, max_length=16, unique=True)),
                ('pepper_id', models.PositiveSmallIntegerField(editable=False)),
                ('digest', models.CharField(editable=False, max_length=64)),
                ('invited_by', models.CharField(editable=False, max_length=255, verbose_name='invited by')),
                ('expires_at', models.DateTimeField(editable=False, verbose_name='expires')),
                ('mailed_at', models.DateTimeField(editable=False, null=True, verbose_name='email sent')),
                ('accepted_at', models.DateTimeField(editable=False, null=True, verbose_name='accepted')),
                ('revoked_at', models.DateTimeField(editable=False, null=True, verbose_name='revoked')),
                ('accepted_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
            ],
            options={
                'verbose_name': 'invitation',
                'verbose_name_plural': 'invitations',
                'ordering': ('-created_at',),
                'constraints': [models.UniqueConstraint(condition=models.Q(('accepted_at', None), ('revoked_at', None)), fields=('organization', 'email'), name='invitation_open_once'), models.CheckConstraint(condition=models.Q(('role__in', ['owner', 'operator', 'reviewer', 'auditor', 'member'])), name='invitation_role')],
            },
        ),
        migrations.CreateModel(
            name='Issuer',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('name', models.CharField(max_length=255, verbose_name='name')),
                ('url', models.CharField(help_text="The issuer's URL, exactly as in the claim iss of its tokens.", max_length=512, unique=True, verbose_name='issuer')),
                ('audience', models.CharField(blank=True, default='', help_text='Required value in aud. If empty, the exact URL that the token is used at.', max_length=512, verbose_name='audience')),
                ('subject_claim', models.CharField(default='sub', max_length=255, verbose_name='subject claim')),
                ('label_claim', models.CharField(blank=True, default='', help_text='Shown in the audit log, such as email. If empty, the subject is shown.', max_length=255, verbose_name='name claim')),
                ('role', models.CharField(blank=True, choices=[('owner', 'owner'), ('operator', 'operator'), ('reviewer', 'reviewer'), ('auditor', 'auditor'), ('member', 'member')], default=bonobot.accounts.roles.Role['MEMBER'], help_text='For users without a role from a claim. If empty, they have no access.', max_length=16, verbose_name='role')),
                ('role_claim', models.CharField(blank=True, default='', help_text='Its values are mapped to roles below. Use a dot to reach a nested field.', max_length=255, verbose_name='role claim')),
                ('roles', models.JSONField(blank=True, default=dict, verbose_name='roles by claim value')),
                ('scope_claim', models.CharField(blank=True, default='scope', help_text='If empty, every token has all scopes allowed here.', max_length=255, verbose_name='scopes claim')),
                ('scopes', models.JSONField(blank=True, default=list, verbose_name='scopes')),
                ('agent_ids', models.JSONField(blank=True, default=list, verbose_name='only for agents')),
                ('calls_per_minute', models.PositiveIntegerField(blank=True, null=True, verbose_name='calls per minute')),
                ('any_type', models.BooleanField(default=False, help_text="For issuers that don't mark access tokens with the type at+jwt.", verbose_name='accept tokens of type JWT')),
                ('allow_private', models.BooleanField(default=False, help_text='Also allows http.', verbose_name='allow private address')),
                ('announced', models.BooleanField(default=True, help_text="Whether Bonobot's public metadata names it.", verbose_name='advertised to clients')),
                ('enabled', models.BooleanField(default=True, verbose_name='enabled')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
            ],
            options={
                'verbose_name': 'external issuer',
                'verbose_name_plural': 'external issuers',
                'ordering': ('name',),
                'constraints': [models.CheckConstraint(condition=models.Q(('role__in', ['', 'owner', 'operator', 'reviewer', 'auditor', 'member'])), name='issuer_role')],
            },
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('role', models.CharField(choices=[('owner', 'owner'), ('operator', 'operator'), ('reviewer', 'reviewer'), ('auditor', 'auditor'), ('member', 'member')], default=bonobot.accounts.roles.Role['MEMBER'], max_length=16, verbose_name='role')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='tenancy.organization')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name': 'member',
                'verbose_name_plural': 'members',
                'constraints': [models.UniqueConstraint(fields=('organization', 'user'), name='membership_once'), models.CheckConstraint(condition=models.Q(('role__in', ['owner', 'operator', 'reviewer', 'auditor', 'member'])), name='membership_role')],
            },
        ),
    ]
