"""Tokens: issued, restricted, verified and cached."""
