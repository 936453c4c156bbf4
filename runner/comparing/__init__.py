"""Profiles measured beside each other."""
