"""The tests of bootguard."""
