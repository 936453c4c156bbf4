"""Container images, addressed by what goes into them.

``images.store.ImageStore`` is the entry: it answers which image an accelerator's jobs
run in and builds it when no image with that digest exists.  Nothing here knows of jobs,
devices or the daemon.
"""
