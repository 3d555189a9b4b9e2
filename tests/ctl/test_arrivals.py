"""What the main thread waits for, and the signals that it hears meanwhile."""

import queue
import signal
import threading
import time

import pytest

from ddtreectl.apply.interrupts import handled
from ddtreectl.hosts.arrivals import arrival


def test_a_signal_that_another_thread_was_given_is_heard() -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    waits, over = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: (waits.set(), over.wait()))

    def give() -> None:
        waits.wait()
        signal.pthread_kill(other.ident or 0, signal.SIGTERM)

    with handled(told.put):
        other.start()
        threading.Thread(target=give).start()
        assert arrival(told) == "SIGTERM"
    over.set()
    other.join()


def test_what_does_not_come_in_time_is_waited_for_no_longer() -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    began = time.monotonic()
    with pytest.raises(queue.Empty):
        arrival(told, within=0.3)
    assert time.monotonic() - began >= 0.3
    with pytest.raises(queue.Empty):
        arrival(told, within=-1.0)
    told.put("there")
    assert arrival(told, within=0.0) == "there"
