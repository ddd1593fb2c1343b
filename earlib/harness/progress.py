"""Lines on the screen while notebooks run: one for each that has ended, with the time left."""

import contextlib
import json
import sys
import threading
import time

from earlib import paths


class Progress:
    """Tells how each plan ended, "[3/22] fig03_sample_efficiency 5.9 s", and about how long the others will take.

    The estimate takes the durations of earlier runs, kept in `build/durations.json`, at the pace of this run; a
    notebook that never ran counts as much as the mean of those that have.
    """

    def __init__(self, plans, jobs):
        self.plans, self.jobs = plans, jobs
        self.begun, self.ended, self.taken = {}, set(), {}
        self.earlier, self.lock = _durations(), threading.Lock()

    def begin(self, name):
        """Start the clock of a plan."""
        self.begun[name] = time.monotonic()

    def seconds(self, name):
        """Seconds since a plan began; 0 if it has not."""
        return time.monotonic() - self.begun.get(name, time.monotonic())

    def end(self, plan, seconds, said="", failed=False, keep=True):
        """Tell in a line that a plan ended; keep the duration, unless it failed, for later estimates."""
        with self.lock:
            self.ended.add(plan.name)
            if not failed:
                self.taken[plan.name] = seconds
                if keep:
                    _keep(_key(plan), seconds)
            left = self.left()
            line = f"[{len(self.ended)}/{len(self.plans)}] {plan.name}{' FAILED after' * failed} {seconds:.1f} s"
            after = f", about {rounded(left)} left" if left else ""
            stream = sys.stderr if failed else sys.stdout
            stream.write(f"{line}: {said}\n" if failed else f"{line}{said}{after}\n")
            stream.flush()

    def left(self):
        """Seconds that the plans which have not ended will take; None if nothing is known of one of them."""
        before = {plan.name: self.earlier[_key(plan)] for plan in self.plans if _key(plan) in self.earlier}
        both = before.keys() & self.taken.keys()
        pace = sum(self.taken[name] for name in both) / sum(before[name] for name in both) if both else 1.0
        mean = sum(self.taken.values()) / len(self.taken) if self.taken else None
        open_ends = []
        for plan in self.plans:
            if plan.name not in self.ended:
                whole = pace * before[plan.name] if plan.name in before else mean
                if whole is None:
                    return None
                open_ends.append(max(whole - self.seconds(plan.name), 0.0))
        return max(sum(open_ends) / self.jobs, max(open_ends, default=0.0))


def rounded(seconds):
    """A duration in one unit: "40 s", "4 min", "1.5 h"."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _key(plan):
    return f"{plan.profile}/{plan.name}"


def _durations():
    """Seconds by profile and name of earlier runs; none if the file cannot be read, which only costs the estimate."""
    try:
        kept = json.loads((paths.build() / "durations.json").read_text(encoding="utf-8"))
        return {key: float(seconds) for key, seconds in kept.items() if seconds > 0}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _keep(key, seconds):
    with contextlib.suppress(OSError):
        kept = _durations() | {key: max(round(seconds, 1), 0.1)}
        paths.write_atomically(paths.build() / "durations.json", json.dumps(kept, indent=1) + "\n")
