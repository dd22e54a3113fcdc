"""Programs that measure; run by hand, not by the tests."""
