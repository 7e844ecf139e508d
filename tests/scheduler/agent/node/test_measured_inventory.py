"""When the machine is measured, and when the server gets the inventory."""

from __future__ import annotations

from pathlib import Path

from scheduler.agent.node.inventory import MEASURE_SECONDS, MeasuredInventory, Overrides


def test_an_inventory_is_sent_once_and_again_when_the_server_has_lost_it(tmp_path: Path) -> None:
    now = [1000.0]
    inventory = MeasuredInventory(Overrides(no_gpus=True), tmp_path, None, clock=lambda: now[0])
    first = inventory.to_send()
    assert first is not None
    assert inventory.to_send() is first  # until a call has succeeded

    inventory.was_sent(first)
    assert inventory.to_send() is None
    inventory.send_again()

    assert inventory.to_send() is first


def test_it_is_measured_again_after_a_while_and_sent_only_where_it_differs(tmp_path: Path) -> None:
    now = [1000.0]
    inventory = MeasuredInventory(Overrides(fake_gpus="1xT4-16GB"), tmp_path, None, clock=lambda: now[0])
    first = inventory.current()
    inventory.was_sent(first)
    assert inventory.current() is first

    now[0] += MEASURE_SECONDS + 1

    assert inventory.current() is not first
    assert inventory.to_send() is None
    inventory.was_sent({**first, "cpu_millis": 1})
    assert inventory.to_send() == first
