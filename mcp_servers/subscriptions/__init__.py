"""What servers notify of: changed lists and updated resources."""
