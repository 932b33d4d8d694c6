"""Add prompt caching with its prices, thinking summaries, and PDF input of model endpoints."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Adds six fields."""

    dependencies = [
        ('agents', '0007_gateway_sessions'),
    ]

    operations = [
        migrations.AddField(
            model_name='modelendpoint',
            name='cache_read_price',
            field=models.PositiveBigIntegerField(blank=True, null=True, verbose_name='cache read price'),
        ),
        migrations.AddField(
            model_name='modelendpoint',
            name='cache_write_price',
            field=models.PositiveBigIntegerField(blank=True, null=True, verbose_name='cache write price'),
        ),
        migrations.AddField(
            model_name='modelendpoint',
            name='pdf_input',
            field=models.BooleanField(db_default=False, default=False, verbose_name='PDF input'),
        ),
        migrations.AddField(
            model_name='modelendpoint',
            name='prompt_caching',
            field=models.BooleanField(db_default=True, default=True, verbose_name='prompt caching'),
        ),
        migrations.AddField(
            model_name='modelendpoint',
            name='thinking_summaries',
            field=models.BooleanField(db_default=False, default=False, verbose_name='thinking summaries'),
        ),
        migrations.AddField(
            model_name='session',
            name='cached_tokens',
            field=models.PositiveBigIntegerField(db_default=0, default=0, verbose_name='cached tokens'),
        ),
    ]
