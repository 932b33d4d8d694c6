"""Keys, encrypted fields and signatures."""
