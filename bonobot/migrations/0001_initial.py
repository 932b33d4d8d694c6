from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    # The name of this migration in installations made before the migrations were recreated.
    replaces = [("bonobot", "0001_lease")]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name='Lease',
            fields=[
                ('name', models.CharField(max_length=32, primary_key=True, serialize=False)),
                ('holder', models.UUIDField()),
                ('until', models.DateTimeField()),
            ],
        ),
    ]
