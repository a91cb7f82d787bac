"""What went wrong here, for the driver: it knows the reasons and the words for people. Python 3.8, standard library."""


class Failed(Exception):
    """`doing`: start, parse, build, load, run, timings or inspect. `lines`: what the library logged, the earliest first."""

    def __init__(self, doing, text, lines=()):
        super().__init__(text)
        self.doing, self.text, self.lines = doing, text, list(lines)


class Refused(Exception):
    """The request is not for this release, model or device. reason: CamelCase; environment: another node or image may do."""

    def __init__(self, reason, message, hint="", environment=False):
        super().__init__(message)
        self.reason, self.message, self.hint, self.environment = reason, message, hint, environment
