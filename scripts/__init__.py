"""What `make` starts: the demonstrations, and what goes before and after the tests."""
