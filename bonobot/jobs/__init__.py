"""Celery: broker, queues and schedules."""
