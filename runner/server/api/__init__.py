"""The HTTP API: routes, request bodies, JSON views and metrics.

It translates requests to services and decides nothing itself.
"""
