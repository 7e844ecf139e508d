"""What one client may ask and is sent: an allowance at once, which grows again over time."""

from __future__ import annotations

from scheduler.realtime.consumers import TokenBucket


def test_an_allowance_is_spent_at_once_and_grows_again_up_to_its_size() -> None:
    bucket = TokenBucket(per_second=2.0, at_once=10, now=100.0)

    assert bucket.take(10, now=100.0) == 0
    assert bucket.take(1, now=100.0) == -1
    assert bucket.take(1, now=101.5) == 1
    assert bucket.take(0, now=1000.0) == 10
