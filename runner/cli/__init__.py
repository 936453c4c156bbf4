"""The commands of ``runner``: one module per command, and helpers. No other package imports this one."""
