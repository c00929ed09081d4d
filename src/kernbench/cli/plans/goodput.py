"""How much of its time a long run works for good, when devices fail now and then."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, log, sqrt
from random import Random
from typing import TypedDict

_MANY = 700.0
"""An exponent from which on nothing is left."""


@dataclass(frozen=True, kw_only=True)
class Failing:
    """A run whose devices fail at random times of an exponential distribution; all in seconds.

    A failure loses what was done since the last checkpoint, and costs a restart, in which devices
    may fail, too.
    """

    mtbf_s: float
    """Mean time between failures of the whole run."""
    checkpoint_s: float
    """How long training stops for one."""
    restart_s: float

    def goodput(self, interval_s: float) -> float:
        """Return the share of time that goes to work that lasts.

        A checkpoint follows each interval of work.

        Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
        dumps", Future Generation Computer Systems 22 (2006), its complete cost function.
        """
        segment = (interval_s + self.checkpoint_s) / self.mtbf_s
        restart = self.restart_s / self.mtbf_s
        if segment + restart > _MANY:
            return 0.0
        return interval_s / (self.mtbf_s * exp(restart) * expm1(segment))

    def young_s(self) -> float:
        """Return Young's estimate of the best interval.

        Source: J. W. Young, "A first order approximation to the optimum checkpoint interval",
        Communications of the ACM 17 (1974).

        >>> Failing(mtbf_s=7200, checkpoint_s=36, restart_s=0).young_s()
        720.0
        """
        return sqrt(2 * self.checkpoint_s * self.mtbf_s)

    def daly_s(self) -> float:
        """Return Daly's estimate, which holds for long checkpoints, too; see :meth:`goodput`."""
        ratio = self.checkpoint_s / (2 * self.mtbf_s)
        if ratio >= 1:
            return self.mtbf_s
        return self.young_s() * (1 + sqrt(ratio) / 3 + ratio / 9) - self.checkpoint_s

    def best_s(self) -> float:
        """Return the interval with the highest goodput, found by bisection of its slope."""
        low, high = 0.0, 2 * self.mtbf_s
        for _ in range(200):
            middle = (low + high) / 2
            # The slope of log(goodput) is that of log(x) - log(expm1((x + checkpoint) / mtbf)).
            segment = (middle + self.checkpoint_s) / self.mtbf_s
            rises = middle <= 0 or log(self.mtbf_s / middle) > segment - log(expm1(segment))
            low, high = (middle, high) if rises else (low, middle)
        return low

    def simulated(self, interval_s: float, duration_s: float, random: Random) -> float:
        """Return the share of a duration that went to work that lasted, in one history of it.

        What is in progress at the end lasts.
        """
        now_s, done_s, segment_s = 0.0, 0.0, interval_s + self.checkpoint_s
        while True:
            up_s = random.expovariate(1 / self.mtbf_s)
            left_s = duration_s - now_s
            count, rest_s = divmod(min(up_s, left_s), segment_s)
            done_s += count * interval_s
            if up_s >= left_s:
                return (done_s + min(rest_s, interval_s)) / duration_s
            now_s += up_s
            restarts = True
            while restarts:
                failed_s = random.expovariate(1 / self.mtbf_s)
                restarts = failed_s < self.restart_s
                now_s += min(failed_s, self.restart_s)
                if now_s >= duration_s:
                    return done_s / duration_s


class IntervalReport(TypedDict):
    """What one interval between checkpoints gives."""

    interval_s: float
    steps: float | None
    """Between two checkpoints; None where the time of a step was not given."""
    goodput: float
    """The goodput by the closed form, of a run that never ends."""
    simulated: float
    """Mean over histories of the given length."""
    low: float
    """What 5 % of these histories stay below."""
    high: float


class Goodput(TypedDict):
    """What ``kernbench goodput --json`` prints."""

    devices: int
    mtbf_s: float
    checkpoint_s: float
    restart_s: float
    hours: float
    seed: int
    young_s: float
    daly_s: float
    best: IntervalReport
    intervals: list[IntervalReport]


_SHOWN = (0.25, 0.5, 1, 2, 4)
"""Intervals that are shown, by the best one."""


def goodput_of(
    failing: Failing,
    devices: int,
    hours: float,
    seed: int,
    *,
    step_s: float | None,
    interval_s: float | None,
    histories: int,
) -> Goodput:
    """Return the goodput of a run for several intervals between checkpoints, or for a given one.

    Intervals are whole steps where ``step_s`` is known.
    """

    def whole(time_s: float) -> float:
        return time_s if step_s is None else max(round(time_s / step_s), 1) * step_s

    def report(time_s: float) -> IntervalReport:
        random = Random(f"{seed}/{time_s!r}")
        numbers = sorted(failing.simulated(time_s, hours * 3600, random) for _ in range(histories))
        return {
            "interval_s": time_s,
            "steps": None if step_s is None else round(time_s / step_s),
            "goodput": failing.goodput(time_s),
            "simulated": sum(numbers) / histories,
            "low": numbers[histories // 20],
            "high": numbers[-1 - histories // 20],
        }

    best_s = whole(failing.best_s())
    asked = [best_s * number for number in _SHOWN] if interval_s is None else [interval_s]
    return {
        "devices": devices,
        "mtbf_s": failing.mtbf_s,
        "checkpoint_s": failing.checkpoint_s,
        "restart_s": failing.restart_s,
        "hours": hours,
        "seed": seed,
        "young_s": failing.young_s(),
        "daly_s": failing.daly_s(),
        "best": report(best_s),
        "intervals": [report(number) for number in dict.fromkeys(map(whole, asked))],
    }
