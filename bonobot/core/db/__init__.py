"""Database settings, fields, transactions and versions of rows."""
