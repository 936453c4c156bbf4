"""Policies: facts, conditions, rules and the decision that follows from them.

It imports no other package of the core.
"""
