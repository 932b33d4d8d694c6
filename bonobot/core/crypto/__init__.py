"""Keys, encrypted fields, signatures."""
