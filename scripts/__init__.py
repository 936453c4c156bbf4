"""Programs that `make` starts: the demonstrations, and steps before and after the tests."""
