"""The dashboard: pages in a browser about the machine and its jobs.

It runs as the user who typed ``runner dash`` and asks the daemon over its socket, as every command does.  So
the pages show and change what that user may see and change, by the same code, and the daemon itself listens
nowhere.  Read ``app`` first.
"""
