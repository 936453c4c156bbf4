"""From a job file to accepted jobs: request, resolution into revisions, admission, dependencies.

It imports no other service; ``runner.services.context`` holds what it is given.
"""
