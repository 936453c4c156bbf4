"""The errors of ``images``; callers translate them to their own.

Messages are one line for people, and name the next step where there is one.
"""


class EngineUnavailable(Exception):
    """The container engine does not answer, so nothing is known about the image."""


class EngineForbidden(EngineUnavailable):
    """The caller may not use the container engine."""


class BuildFailed(Exception):
    """The image cannot be built as asked; the text is the last lines of the build's log."""


class ImageRefused(BuildFailed):
    """No container may be made of an image; the text says why."""


class BuildCancelled(Exception):
    """The build was cancelled because no job waits for the image any more."""
