"""Database settings, fields, transactions and object versions."""
