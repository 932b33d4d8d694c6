import bonobot.core.crypto.encrypted_fields
import bonobot.accounts.models.organizations
import bonobot.accounts.roles
import django.contrib.auth.validators
import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

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
                ('halted_at', models.DateTimeField(editable=False, null=True, verbose_name='halted')),
                ('four_eyes', models.BooleanField(default=False, help_text="Whoever asked for a call, or started its session, can't approve it.", verbose_name='nobody approves their own calls')),
                ('approval_hours', models.PositiveSmallIntegerField(blank=True, help_text='From 1 to 720; then it is refused. Empty: as the platform has it.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(720)], verbose_name='hours to answer a call that waits')),
                ('calls_per_minute', models.PositiveIntegerField(blank=True, help_text='Of all agents and tokens together; 0: no limit, empty: as the settings say.', null=True, verbose_name='calls a minute')),
                ('second_factor', models.BooleanField(db_default=False, default=False, help_text='Who has none is led to set one up before anything else.', verbose_name='everybody needs a second factor')),
                ('single_sign_on', models.BooleanField(db_default=False, default=False, help_text='Passwords then open nothing here, except for platform administrators.', verbose_name='everybody signs in by an identity provider')),
                ('audit_days', models.PositiveIntegerField(blank=True, help_text='Then old rows leave; 0: never, empty: as the platform has it.', null=True, validators=[django.core.validators.MaxValueValidator(36500)], verbose_name='days that the audit is kept')),
            ],
            options={
                'verbose_name': 'organization',
                'verbose_name_plural': 'organizations',
                'ordering': ('name',),
            },
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
            name='Issuer',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('name', models.CharField(max_length=255, verbose_name='name')),
                ('url', models.CharField(help_text='Letter by letter as its tokens have it in iss.', max_length=512, unique=True, verbose_name='issuer')),
                ('audience', models.CharField(blank=True, default='', help_text='What aud must contain; empty: the very address that a token is used at.', max_length=512, verbose_name='audience')),
                ('subject_claim', models.CharField(default='sub', max_length=255, verbose_name='claim of the subject')),
                ('label_claim', models.CharField(blank=True, default='', help_text='What the audit shows, like email; empty: the subject.', max_length=255, verbose_name='claim of the name')),
                ('role', models.CharField(blank=True, choices=[('owner', 'owner'), ('operator', 'operator'), ('reviewer', 'reviewer'), ('auditor', 'auditor'), ('member', 'member')], default=bonobot.accounts.roles.Role['MEMBER'], help_text='Of whoever no claim gives one; empty: they are not let in.', max_length=16, verbose_name='role')),
                ('role_claim', models.CharField(blank=True, default='', help_text='Its values are looked up below; a member is reached by a dot.', max_length=255, verbose_name='claim of the role')),
                ('roles', models.JSONField(blank=True, default=dict, verbose_name='roles by value')),
                ('scope_claim', models.CharField(blank=True, default='scope', help_text='Empty: each token has all the scopes that are allowed here.', max_length=255, verbose_name='claim of the scopes')),
                ('scopes', models.JSONField(blank=True, default=list, verbose_name='scopes')),
                ('agent_ids', models.JSONField(blank=True, default=list, verbose_name='only for agents')),
                ('calls_per_minute', models.PositiveIntegerField(blank=True, null=True, verbose_name='calls a minute')),
                ('any_type', models.BooleanField(default=False, help_text='For issuers that do not mark access tokens as such (at+jwt).', verbose_name='takes tokens of the type JWT')),
                ('allow_private', models.BooleanField(default=False, help_text='Then http is allowed, too.', verbose_name='may be at a private address')),
                ('announced', models.BooleanField(default=True, help_text='Whether the metadata of our addresses names it, to anybody who asks.', verbose_name='told to clients')),
                ('enabled', models.BooleanField(default=True, verbose_name='enabled')),
            ],
            options={
                'verbose_name': 'issuer of tokens',
                'verbose_name_plural': 'issuers of tokens',
                'ordering': ('name',),
                'constraints': [models.CheckConstraint(condition=models.Q(('role__in', ['', 'owner', 'operator', 'reviewer', 'auditor', 'member'])), name='issuer_role')],
            },
        ),
        migrations.CreateModel(
            name='KeptAnswer',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('principal', models.CharField(max_length=300)),
                ('key', models.CharField(max_length=255)),
                ('request_digest', models.CharField(max_length=64)),
                ('status', models.PositiveSmallIntegerField(null=True)),
                ('body', bonobot.core.crypto.encrypted_fields.SealedTextField(blank=True, default='')),
            ],
            options={
                'verbose_name': 'kept answer',
                'verbose_name_plural': 'kept answers',
                'indexes': [models.Index(fields=['organization', 'created_at'], name='answer_by_age')],
                'constraints': [models.UniqueConstraint(fields=('organization', 'principal', 'key'), name='answer_once_per_key')],
            },
        ),
        migrations.CreateModel(
            name='Provider',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('name', models.CharField(help_text='As the sign-in shows it.', max_length=255, verbose_name='name')),
                ('url', models.CharField(help_text='Letter by letter as its tokens have it in iss.', max_length=512, verbose_name='issuer')),
                ('client_id', models.CharField(max_length=255, verbose_name='client id')),
                ('client_secret', bonobot.core.crypto.encrypted_fields.SealedTextField(blank=True, default='', verbose_name='client secret')),
                ('domains', models.JSONField(blank=True, default=list, verbose_name='e-mail domains')),
                ('trusts_email', models.BooleanField(default=False, help_text='For providers that verify each address, but send no email_verified.', verbose_name='its addresses are proved')),
                ('creates', models.BooleanField(default=False, help_text='Whoever the provider knows joins at their first sign-in.', verbose_name='makes accounts')),
                ('role', models.CharField(blank=True, choices=[('owner', 'owner'), ('operator', 'operator'), ('reviewer', 'reviewer'), ('auditor', 'auditor'), ('member', 'member')], default=bonobot.accounts.roles.Role['MEMBER'], help_text='Of whoever no claim gives one; empty: they are not let in.', max_length=16, verbose_name='role')),
                ('role_claim', models.CharField(blank=True, default='', help_text='Like groups; then each sign-in sets the role. A member is reached by a dot.', max_length=255, verbose_name='claim of the role')),
                ('roles', models.JSONField(blank=True, default=dict, verbose_name='roles by value')),
                ('second_factor', models.BooleanField(default=False, help_text="Else the provider's sign-in counts as one.", verbose_name='asks for our second factor, too')),
                ('announced', models.BooleanField(default=True, help_text='Its name is shown to anybody; else people need its address.', verbose_name='on the sign-in page')),
                ('allow_private', models.BooleanField(default=False, help_text='Then http is allowed, too.', verbose_name='may be at a private address')),
                ('enabled', models.BooleanField(default=True, verbose_name='enabled')),
            ],
            options={
                'verbose_name': 'identity provider',
                'verbose_name_plural': 'identity providers',
                'ordering': ('name',),
                'constraints': [models.UniqueConstraint(fields=('organization', 'url', 'client_id'), name='provider_once'), models.CheckConstraint(condition=models.Q(('role__in', ['', 'owner', 'operator', 'reviewer', 'auditor', 'member'])), name='provider_role')],
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
                ('language', models.CharField(blank=True, choices=[('', 'as the browser asks'), ('en', 'English'), ('de', 'Deutsch')], db_default='', default='', help_text='Of the pages and of messages.', max_length=8, verbose_name='language')),
                ('time_zone', models.CharField(blank=True, db_default='', default='', help_text='Moments are shown by it, such as Europe/Berlin; empty: UTC.', max_length=64, validators=[bonobot.accounts.models.organizations._is_zone], verbose_name='time zone')),
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
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('secret', bonobot.core.crypto.encrypted_fields.SealedTextField()),
                ('organization_id', models.UUIDField(editable=False, null=True)),
            ],
        ),
        migrations.CreateModel(
            name='Identity',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('provider', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='identities', to='tenancy.provider')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('subject', models.CharField(max_length=255)),
                ('email', models.CharField(blank=True, default='', max_length=254, verbose_name='e-mail address')),
                ('used_at', models.DateTimeField(null=True, verbose_name='last used')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('provider', 'subject'), name='identity_subject_once'), models.UniqueConstraint(fields=('provider', 'user'), name='identity_user_once')],
            },
        ),
        migrations.CreateModel(
            name='Invitation',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('email', models.EmailField(max_length=254, verbose_name='e-mail address')),
                ('role', models.CharField(choices=[('owner', 'owner'), ('operator', 'operator'), ('reviewer', 'reviewer'), ('auditor', 'auditor'), ('member', 'member')], default=bonobot.accounts.roles.Role['MEMBER'], max_length=16, verbose_name='role')),
                ('agent_ids', models.JSONField(blank=True, default=list, verbose_name='agents')),
                ('key', models.CharField(editable=False, max_length=16, unique=True)),
                ('pepper_id', models.PositiveSmallIntegerField(editable=False)),
                ('digest', models.CharField(editable=False, max_length=64)),
                ('invited_by', models.CharField(editable=False, max_length=255, verbose_name='invited by')),
                ('expires_at', models.DateTimeField(editable=False, verbose_name='expires')),
                ('mailed_at', models.DateTimeField(editable=False, null=True, verbose_name='mailed')),
                ('accepted_at', models.DateTimeField(editable=False, null=True, verbose_name='accepted')),
                ('accepted_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('revoked_at', models.DateTimeField(editable=False, null=True, verbose_name='revoked')),
            ],
            options={
                'verbose_name': 'invitation',
                'verbose_name_plural': 'invitations',
                'ordering': ('-created_at',),
                'constraints': [models.UniqueConstraint(condition=models.Q(('accepted_at', None), ('revoked_at', None)), fields=('organization', 'email'), name='invitation_open_once'), models.CheckConstraint(condition=models.Q(('role__in', ['owner', 'operator', 'reviewer', 'auditor', 'member'])), name='invitation_role')],
            },
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='tenancy.organization')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('role', models.CharField(choices=[('owner', 'owner'), ('operator', 'operator'), ('reviewer', 'reviewer'), ('auditor', 'auditor'), ('member', 'member')], default=bonobot.accounts.roles.Role['MEMBER'], max_length=16, verbose_name='role')),
            ],
            options={
                'verbose_name': 'membership',
                'verbose_name_plural': 'memberships',
                'constraints': [models.UniqueConstraint(fields=('organization', 'user'), name='membership_once'), models.CheckConstraint(condition=models.Q(('role__in', ['owner', 'operator', 'reviewer', 'auditor', 'member'])), name='membership_role')],
            },
        ),
        migrations.CreateModel(
            name='Token',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenancy.organization')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True, verbose_name='updated')),
                ('name', models.CharField(max_length=255, verbose_name='name')),
                ('key', models.CharField(editable=False, max_length=16, unique=True, verbose_name='key')),
                ('pepper_id', models.PositiveSmallIntegerField(editable=False)),
                ('digest', models.CharField(editable=False, max_length=64)),
                ('role', models.CharField(choices=[('owner', 'owner'), ('operator', 'operator'), ('reviewer', 'reviewer'), ('auditor', 'auditor'), ('member', 'member')], default=bonobot.accounts.roles.Role['MEMBER'], max_length=16, verbose_name='role')),
                ('scopes', models.JSONField(blank=True, default=list, verbose_name='scopes')),
                ('agent_ids', models.JSONField(blank=True, default=list, verbose_name='only for agents')),
                ('networks', models.JSONField(blank=True, default=list, verbose_name='only from networks')),
                ('client', models.CharField(blank=True, default='', max_length=64, verbose_name='for program')),
                ('calls_per_minute', models.PositiveIntegerField(blank=True, null=True, verbose_name='calls a minute')),
                ('expires_at', models.DateTimeField(blank=True, null=True, verbose_name='expires')),
                ('last_used_at', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='last used')),
                ('revoked_at', models.DateTimeField(blank=True, editable=False, null=True, verbose_name='revoked')),
                ('user', models.ForeignKey(blank=True, editable=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='given by')),
                ('client_id', models.CharField(blank=True, db_default='', default='', editable=False, max_length=255, verbose_name='client id')),
                ('resource', models.CharField(blank=True, db_default='', default='', editable=False, max_length=512, verbose_name='address')),
                ('fresh_until', models.DateTimeField(blank=True, editable=False, null=True)),
            ],
            options={
                'verbose_name': 'token',
                'verbose_name_plural': 'tokens',
                'ordering': ('-created_at',),
                'constraints': [models.CheckConstraint(condition=models.Q(('role__in', ['owner', 'operator', 'reviewer', 'auditor', 'member'])), name='token_role'), models.CheckConstraint(condition=models.Q(models.Q(('fresh_until__isnull', True), ('resource', ''), ('user__isnull', True)), models.Q(('user__isnull', False), models.Q(('resource', ''), _negated=True)), _connector='OR'), name='token_grant_has_an_address')],
            },
        ),
    ]
