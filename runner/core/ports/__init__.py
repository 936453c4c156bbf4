"""The protocols that adapters and services implement, and the values that cross them.

It imports the other packages of the core; nothing in the core but ports imports it.
"""
