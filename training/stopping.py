"""Being told to stop: a run finishes its step, saves, and ends with a code that says "run me again"."""

import signal

# What sysexits.h calls a temporary failure: the same command, later, will do.
RUN_AGAIN_EXIT_CODE = 75


class RunAgain(Exception):
    """The run was interrupted after it saved; the same command continues it."""


class StopSignals:
    """Catches SIGTERM and SIGINT while a run goes on. The second SIGINT stops at once, as it always does."""

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self):
        self.received = False

    def __enter__(self):
        self._before = {number: signal.signal(number, self._note) for number in self._SIGNALS}
        return self

    def __exit__(self, *error):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, frame):
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = True
