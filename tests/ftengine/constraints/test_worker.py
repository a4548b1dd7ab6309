"""A worker does its work in order, on one deep thread, and survives what goes wrong in it."""

from __future__ import annotations

import threading

import pytest

from ftengine.constraints.worker import Worker


def test_work_is_done_in_order_on_one_thread() -> None:
    worker, seen = Worker("test-worker", 16 << 20), []
    before = threading.stack_size()
    futures = [worker.submit(lambda n=n: seen.append((n, threading.get_ident()))) for n in range(9)]
    for future in futures:
        future.result(10)
    worker.close()
    assert [number for number, _ in seen] == list(range(9))
    assert len({thread for _, thread in seen}) == 1
    assert threading.stack_size() == before


def test_error_comes_through_the_future_and_ends_nothing() -> None:
    worker = Worker("test-worker", 0)
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 // 0).result(10)
    assert worker.submit(lambda: 7).result(10) == 7
    worker.close()


def test_many_threads_may_submit_the_first_work() -> None:
    worker, idents = Worker("test-worker", 0), []
    barrier = threading.Barrier(8)

    def first() -> None:
        barrier.wait(10)
        idents.append(worker.submit(threading.get_ident).result(10))

    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    worker.close()
    assert len(idents) == 8
    assert len(set(idents)) == 1
