"""Celery: broker, queues, schedules."""
