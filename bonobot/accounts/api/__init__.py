"""The base of all REST views, and the REST API of accounts."""
