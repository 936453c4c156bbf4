"""The store, its schedules, accounting, notifications and device marks in one SQLite file.

Nothing outside of this package knows a table or a statement.
"""
