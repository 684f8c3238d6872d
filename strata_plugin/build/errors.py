"""The one exception of the build: its text is what the user reads, without a traceback."""


class BuildError(Exception):
    """The build cannot go on; the message says why and what to do about it."""
