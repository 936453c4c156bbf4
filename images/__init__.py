"""Container images, addressed by the digest of their content.

``images.store.ImageStore`` is the entry: it returns the image of an accelerator, and builds it if the engine
has none with its digest.  The package imports nothing of ``runner`` and knows neither jobs nor devices.
"""
