"""Foundations that every package may use: errors, files, units, logging, retry, threads, locks.

It imports nothing else of `runner`.
"""
