"""Tests that start processes, but need no container engine: the same packages as in tests/unit."""
