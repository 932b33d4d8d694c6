"""The REST API of notification channels and the outbox."""
