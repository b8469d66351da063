"""Signals that ask a run to stop set a flag and nothing else."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from dist_mp.train.stopping import SIGNALS, StopRequest


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_remembered(number: int) -> None:
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert stop.number == 0
        os.kill(os.getpid(), number)
        assert stop.number == number
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.number == number, "the first one counts"
    assert signal.getsignal(number) == before


def test_a_second_interrupt_interrupts() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert stop.number == signal.SIGINT


def test_outside_the_main_thread_signals_stay_as_they_are() -> None:
    found = []

    def body() -> None:
        with StopRequest() as stop:
            found.append((signal.getsignal(signal.SIGTERM), stop.number))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert found == [(signal.getsignal(signal.SIGTERM), 0)]
