"""The documentation: its pages, and in `docs.making` what makes a site of them."""
