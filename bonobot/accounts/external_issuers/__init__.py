"""External issuers of tokens, and their JSON Web Keys."""
