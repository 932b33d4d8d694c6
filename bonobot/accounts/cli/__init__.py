"""Commands about people, tokens and whom an organization trusts."""
