"""Generators of the reference pages; `make docs-reference` runs them, and a unit test compares the pages."""
