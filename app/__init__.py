"""bootguard."""
