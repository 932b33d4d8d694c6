"""Notifications by email or webhook, created in the transaction of their event."""
