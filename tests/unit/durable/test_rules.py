"""The rules of the engine that need no database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_reach.durable import (
    Claim,
    EngineSettings,
    Later,
    QueueSettings,
    TableQueue,
    exponential_jitter,
    instance_table,
    queue_indexes,
)
from agent_reach.durable.clock import DatabaseClock
from agent_reach.durable.heap import ClaimHeap
from agent_reach.durable.low_water import LowWater

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


def at(seconds: float, *, priority: int = 5, suspect: bool = False) -> Claim:
    return Claim(uuid4(), uuid4(), 1, 0, EPOCH + timedelta(seconds=seconds), priority, suspect)


class TestBackoff:
    def test_it_starts_at_the_base_doubles_and_stops_at_the_cap(self) -> None:
        waits = [exponential_jitter(attempt, 3, 20, 0, Random(1)) for attempt in range(1, 6)]
        assert waits == [3, 6, 12, 20, 20]

    @given(attempt=st.integers(-5, 10**9), jitter=st.floats(0, 1), seed=st.integers())
    def test_the_jitter_stays_inside_its_share(self, attempt: int, jitter: float, seed: int) -> None:
        exact = exponential_jitter(attempt, 3, 300, 0, Random(seed))
        wait = exponential_jitter(attempt, 3, 300, jitter, Random(seed))
        assert exact * (1 - jitter) - 1e-9 <= wait <= exact * (1 + jitter) + 1e-9

    def test_rows_that_failed_together_do_not_come_back_together(self) -> None:
        random = Random(1)
        assert len({exponential_jitter(1, 3, 300, 0.3, random) for _ in range(100)}) == 100


class TestSettings:
    def test_the_defaults_are_valid(self) -> None:
        assert QueueSettings().preload_seconds == 40
        assert EngineSettings().lease_seconds >= 30

    @pytest.mark.parametrize(
        "wrong",
        [
            {"batch_size": 0},
            {"batch_size": 501},
            {"concurrency": 0},
            {"slots": 10, "concurrency": 11},
            {"scan_interval_seconds": 0},
            {"preload_multiplier": 0.5},
            {"flush_seconds": 2},
            {"full_scan_seconds": 0},
            {"priority_boost_seconds": -1},
            {"failure_base_seconds": 61},
        ],
    )
    def test_a_queue_that_could_not_work_is_refused(self, wrong: dict[str, float]) -> None:
        with pytest.raises(ValueError):
            QueueSettings(**wrong)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "wrong",
        [{"heartbeat_seconds": 0}, {"heartbeat_seconds": 11}, {"sweep_seconds": 0}, {"drain_seconds": -1}],
    )
    def test_a_lease_that_could_not_hold_is_refused(self, wrong: dict[str, float]) -> None:
        with pytest.raises(ValueError):
            EngineSettings(**wrong)


class TestHeap:
    @given(st.lists(st.tuples(st.floats(-1000, 1000), st.integers(0, 9))), st.floats(-1000, 1000))
    def test_all_that_is_due_comes_in_order_of_rank_and_nothing_else(
        self, rows: list[tuple[float, int]], now: float
    ) -> None:
        heap = ClaimHeap(60)
        claims = [at(seconds, priority=priority) for seconds, priority in rows]
        heap.push(claims)
        moment = EPOCH.timestamp() + now
        coming = heap.advance(moment)
        out = heap.pop_due(len(claims))
        ranks = [claim.run_at.timestamp() - 60 * claim.priority for claim in out]
        assert ranks == sorted(ranks)
        assert {claim.id for claim in out} == {claim.id for claim in claims if claim.run_at.timestamp() <= moment}
        later = [claim.run_at.timestamp() for claim in claims if claim.run_at.timestamp() > moment]
        assert coming == min(later, default=None)
        assert len(heap) == len(later)

    def test_suspects_come_one_by_one_when_they_are_due(self) -> None:
        heap = ClaimHeap(60)
        heap.push([at(0, suspect=True), at(0), at(9, suspect=True)])
        now = EPOCH.timestamp() + 1
        heap.advance(now)
        assert len(heap.pop_due(10)) == 1
        assert heap.pop_suspect(now) is not None
        assert heap.pop_suspect(now) is None
        assert heap.advance(now) == EPOCH.timestamp() + 9
        assert heap.suspects == 1

    def test_what_is_lost_is_dropped_wherever_it_lies(self) -> None:
        heap = ClaimHeap(60)
        lost = [at(0), at(50), at(0, suspect=True)]
        heap.push([*lost, at(0), at(50)])
        heap.advance(EPOCH.timestamp())
        assert heap.remove({(claim.id, claim.claim_no) for claim in lost}) == 3
        assert len(heap) == 2
        assert len(heap.clear()) == 2
        assert len(heap) == 0

    @pytest.mark.parametrize("suspect", [False, True])
    def test_of_one_row_only_the_latest_claim_is_held_in_whatever_order_they_come(self, *, suspect: bool) -> None:
        now = EPOCH.timestamp()
        first = at(0, suspect=suspect)
        second = first._replace(claim_no=2)
        for come in [(first, second), (second, first)]:
            heap = ClaimHeap(60)
            for claim in come:
                heap.push([claim])
                heap.advance(now)
            assert len(heap) == 1
            assert heap.remove({first.key}) == 0
            assert ([heap.pop_suspect(now)] if suspect else heap.pop_due(2)) == [second]
            assert heap.claims() == []

    @pytest.mark.parametrize("suspect", [False, True])
    def test_a_row_that_somebody_is_at_work_on_is_held_but_not_handed_out(self, *, suspect: bool) -> None:
        now = EPOCH.timestamp()
        heap = ClaimHeap(60)
        claim, other = at(0, suspect=suspect), at(0, suspect=suspect)
        heap.push([claim, other], busy={claim.id, other.id})
        heap.unpark(busy={claim.id})
        assert heap.parked == {claim.id}
        heap.advance(now)
        assert (len(heap), heap.due + heap.suspects) == (2, 1)
        heap.unpark(busy=())
        heap.advance(now)
        assert (len(heap), heap.due + heap.suspects, heap.parked) == (2, 2, set())

    def test_what_is_parked_is_dropped_too_when_it_is_lost(self) -> None:
        heap = ClaimHeap(60)
        claims = [at(0), at(0)]
        heap.push(claims, busy={claim.id for claim in claims})
        assert heap.remove({claims[0].key}) == 1
        assert heap.clear() == claims[1:]
        heap.unpark(busy=())
        assert heap.advance(EPOCH.timestamp() - 1) is None


class TestLowWater:
    @staticmethod
    def scanned() -> LowWater:
        """Marks that a scan has raised that saw nothing."""
        marks = LowWater()
        marks.begin()
        marks.scanned({}, EPOCH)
        return marks

    def test_it_knows_nothing_at_first(self) -> None:
        assert LowWater().begin() == [None] * 10

    def test_after_a_scan_that_saw_nothing_the_next_starts_a_little_before_it(self) -> None:
        assert self.scanned().begin() == [EPOCH - timedelta(seconds=2)] * 10

    def test_it_stays_below_the_oldest_row_that_a_scan_saw_whoever_claims_it(self) -> None:
        marks = LowWater()
        marks.begin()
        marks.scanned({3: EPOCH - timedelta(seconds=50)}, EPOCH)
        assert marks.marks == [EPOCH - timedelta(seconds=52 if priority == 3 else 2) for priority in range(10)]

    def test_a_row_that_waits_again_lowers_it_in_its_priority_or_in_all(self) -> None:
        marks = self.scanned()
        marks.lower(EPOCH - timedelta(minutes=1), 4)
        assert marks.marks == [EPOCH - timedelta(seconds=60 if priority == 4 else 2) for priority in range(10)]
        marks.lower(EPOCH - timedelta(hours=1))
        assert marks.begin() == [EPOCH - timedelta(hours=1)] * 10

    def test_a_row_that_comes_back_while_a_scan_runs_is_not_forgotten(self) -> None:
        marks = self.scanned()
        marks.begin()
        marks.lower(EPOCH - timedelta(hours=1))
        marks.scanned({}, EPOCH + timedelta(seconds=9))
        assert marks.begin() == [EPOCH - timedelta(hours=1)] * 10

    def test_a_row_that_comes_while_the_very_first_scan_runs_is_not_forgotten(self) -> None:
        marks = LowWater()
        marks.begin()
        marks.lower(EPOCH - timedelta(hours=1))
        marks.scanned({}, EPOCH)
        assert marks.begin() == [EPOCH - timedelta(hours=1)] * 10

    def test_a_database_clock_that_was_set_back_takes_it_along(self) -> None:
        marks = self.scanned()
        marks.begin()
        marks.scanned({}, EPOCH - timedelta(minutes=10))
        assert marks.begin() == [EPOCH - timedelta(minutes=10, seconds=2)] * 10

    @given(st.dictionaries(st.integers(0, 9), st.floats(-1000, 1000)))
    def test_it_is_never_above_the_present(self, seen: dict[int, float]) -> None:
        marks = LowWater()
        marks.begin()
        marks.scanned({priority: EPOCH + timedelta(seconds=ahead) for priority, ahead in seen.items()}, EPOCH)
        assert all(mark is None or mark <= EPOCH for mark in marks.begin())


class TestClock:
    def test_before_the_first_reading_nothing_is_due(self) -> None:
        assert DatabaseClock(lambda: 5.0).time() == 0

    @given(st.lists(st.floats(0, 10), min_size=1), st.floats(0, 100))
    def test_it_is_never_ahead_and_as_near_as_the_fastest_reading(self, delays: list[float], after: float) -> None:
        monotonic = 0.0
        clock = DatabaseClock(lambda: monotonic)
        for delay in delays:
            reading, asked_at = EPOCH + timedelta(seconds=monotonic), monotonic
            monotonic += delay
            clock.observe(reading, asked_at)
        monotonic += after
        true = EPOCH.timestamp() + monotonic
        assert true - min(delays[-16:]) - 1e-3 <= clock.time() <= true + 1e-3

    @pytest.mark.parametrize("step", [-600, -1, 1, 600])
    def test_a_clock_that_is_set_is_followed_with_the_next_reading(self, step: float) -> None:
        monotonic = 0.0
        clock = DatabaseClock(lambda: monotonic)
        for _ in range(20):
            clock.observe(EPOCH + timedelta(seconds=monotonic), monotonic)
            monotonic += 1
        clock.observe(EPOCH + timedelta(seconds=monotonic + step), monotonic)
        assert clock.time() == pytest.approx(EPOCH.timestamp() + monotonic + step, abs=1e-3)

    @pytest.mark.parametrize("readings_after", [1, 20])
    def test_a_step_forward_is_told_once_whoever_read_the_clock_first_after_it(self, readings_after: int) -> None:
        monotonic = 0.0
        clock = DatabaseClock(lambda: monotonic)
        for _ in range(20):
            clock.observe(EPOCH + timedelta(seconds=monotonic), monotonic)
            monotonic += 1
        assert clock.take_step() < 1e-3
        for _ in range(readings_after):
            clock.observe(EPOCH + timedelta(seconds=monotonic + 600), monotonic)
            monotonic += 1
        assert clock.take_step() == pytest.approx(600, abs=1e-3)
        assert clock.take_step() == 0


class TestNames:
    @pytest.mark.parametrize("name", ["tasks", "Work.tasks", "work.tasks; DROP", "work.", "a.b.c", ""])
    def test_a_name_that_would_need_quotes_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError):
            TableQueue(name)
        with pytest.raises(ValueError):
            queue_indexes(name)
        with pytest.raises(ValueError):
            instance_table(f"{name};")


class TestLater:
    def test_it_takes_one_moment_with_a_time_zone(self) -> None:
        with pytest.raises(ValueError):
            Later(run_at=EPOCH, after_seconds=1)
        with pytest.raises(ValueError):
            Later(run_at=datetime(2030, 1, 1))  # noqa: DTZ001 - the mistake to be refused
        with pytest.raises(ValueError):
            Later(after_seconds=-1)
        with pytest.raises(ValueError):
            Later(after_seconds=float("nan"))
