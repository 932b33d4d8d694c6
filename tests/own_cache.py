"""Django's cache as one test process sees it: Redis is shared with the other processes."""

import redis
from django.conf import settings
from django.core.cache import cache


def clear_cache() -> None:
    """Remove this process's own keys; `cache.clear()` would empty Redis for all of them."""
    if not settings.REDIS_URL:
        cache.clear()
        return
    store = redis.Redis.from_url(settings.REDIS_URL)
    if keys := list(store.scan_iter(f"{settings.BONOBOT_REDIS_PREFIX}:1:*")):
        store.delete(*keys)
    store.close()
