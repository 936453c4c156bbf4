"""The policy file: parsing, dumping, checks, test cases, journals and JSON Schema.

Imports no settings.
"""
