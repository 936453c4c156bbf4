"""The settings file of the operator: its models and parsing.

Imports no policies.
"""
