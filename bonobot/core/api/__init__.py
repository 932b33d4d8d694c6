"""What all REST views share: bodies, lists, errors."""
