"""The commands of ``runner``: one module a command, and what they share. Nothing imports this package."""
