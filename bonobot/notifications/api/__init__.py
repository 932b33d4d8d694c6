"""REST of notices: channels and the outbox."""
