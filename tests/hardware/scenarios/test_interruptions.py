"""Interruptions are a Poisson process, of which work pays for what delays it."""

from __future__ import annotations

from random import Random

import pytest

from kernbench.hardware import Interruptions

US, S = 10**6, 10**12


@pytest.mark.adr("0176-D4")
@pytest.mark.parametrize(("per_s", "length_us"), [(10, 2_500), (100, 250), (1_000, 25)])
def test_work_without_a_pause_loses_the_published_share(per_s: int, length_us: int) -> None:
    """Each of the three patterns of Ferreira and others takes 2.5 % of a CPU."""
    apart_ps = S / per_s - length_us * US
    noise = Interruptions(Random(1), apart_ps, length_us * US)
    end_ps, num_chunks, chunk_ps = 0, 200_000, 100 * US
    for _ in range(num_chunks):
        end_ps += chunk_ps + noise.delay_ps(end_ps, end_ps + chunk_ps)
    lost_ps = end_ps - num_chunks * chunk_ps
    assert lost_ps % (length_us * US) == 0
    count = lost_ps // (length_us * US)
    # Standard deviation of a Poisson count is its root.
    expected = end_ps * per_s / S
    assert abs(count - expected) < 4 * expected**0.5


@pytest.mark.adr("0176-D4")
def test_who_waits_loses_nothing() -> None:
    """Work of 1 us, a tenth of a second apart, of which 2.5 % are taken: mostly it is not met."""
    noise = Interruptions(Random(1), 0.975 * S / 1000, 25 * US)
    late = [noise.delay_ps(at, at + US) for at in range(0, 200 * S, S // 10)]
    met = sum(item > 0 for item in late)
    # One that is under way at the start delays by its rest; one that begins later, by all of it.
    expected = 2000 * 0.026
    assert met == pytest.approx(expected, abs=4 * expected**0.5)
    assert 0 < sum(late) / met < 25 * US
    assert max(late) <= 50 * US
