"""The ways in which an image cannot be had.

``images`` stands alone, so it has its own errors; whoever calls it translates them.
The messages are written for people and name the next step where there is one.
"""


class EngineUnavailable(Exception):
    """The container engine does not answer; nothing is known about the image."""


class EngineForbidden(EngineUnavailable):
    """Whoever asks may not use the container engine; whether it answers others is not known."""


class BuildFailed(Exception):
    """The image cannot be built as asked; the text is the last lines of the build's log."""


class BuildAbandoned(Exception):
    """The build was ended because nobody waited for the image any more; nothing is wrong with it."""
