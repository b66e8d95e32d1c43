"""Run a task again when it fails for a reason that may pass."""
import random
import time


class GiveUp(Exception):
    """Raised when a task failed as often as it may."""


def with_backoff(task, attempts=5, base=0.2, limit=30.0):
    """Call task; wait exponentially longer, with jitter, after each failure."""
    for attempt in range(attempts):
        try:
            return task()
        except ConnectionError as error:
            if attempt + 1 == attempts:
                raise GiveUp(str(error)) from error
            delay = min(limit, base * 2 ** attempt)
            time.sleep(delay * random.uniform(0.5, 1.5))


class Scheduler:
    """Starts tasks when they are due."""

    def __init__(self, clock):
        self.clock = clock
        self.queue = []

    def every(self, seconds, task):
        self.queue.append((self.clock.now() + seconds, seconds, task))

    def run_due(self):
        now = self.clock.now()
        for entry in [entry for entry in self.queue if entry[0] <= now]:
            self.queue.remove(entry)
            entry[2]()
            self.every(entry[1], entry[2])
