"""The documentation that the product serves at `/docs`."""
