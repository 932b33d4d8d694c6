"""Model providers, one module each, loaded by the registry."""
