"""Text: masked secrets, untrusted text, JSON and YAML readers."""
