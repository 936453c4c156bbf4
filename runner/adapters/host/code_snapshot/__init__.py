"""Snapshots of code: what a directory holds at a submission, kept by content and given to every attempt.

``walk`` reads a directory in a process that is its user's; ``store`` keeps files by digest, for each user
apart; ``snapshots`` joins the two.
"""
