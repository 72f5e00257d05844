"""Keys know the same intent again, and never two different ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import assume, given
from hypothesis import strategies as st

from services.chassis.hashing import hash_parts, length_prefixed
from services.intake.keys import IntentKey, content_hash, derived_key, given_key

texts = st.lists(st.text(max_size=8), max_size=5)
moments = st.datetimes(min_value=datetime(2020, 1, 1), max_value=datetime(2040, 1, 1)).map(  # noqa: DTZ001 - made aware
    lambda moment: moment.replace(tzinfo=UTC)
)


def _derived(now: datetime, window: timedelta = timedelta(hours=1), **changes: str) -> IntentKey:
    fields = {"user_id": "u1", "scene": "order", "template_version": "v1", **changes}
    return derived_key(now, window, content_hash=b"c", **fields)


def test_parts_do_not_run_into_each_other() -> None:
    assert hash_parts("ab", "c") != hash_parts("a", "bc")


@given(texts, texts)
def test_different_lists_of_texts_have_different_bytes(one: list[str], other: list[str]) -> None:
    assume(one != other)
    assert length_prefixed(one) != length_prefixed(other)


@given(moments, st.integers(0, 3_599))
def test_within_a_window_the_same_content_shares_a_bucket_with_its_repetition(now: datetime, later: int) -> None:
    first, second = _derived(now), _derived(now + timedelta(seconds=later))
    assert first.hash in {second.hash, second.earlier}


@given(moments)
def test_after_two_windows_no_bucket_is_shared(now: datetime) -> None:
    second = _derived(now + timedelta(hours=2))
    assert _derived(now).hash not in {second.hash, second.earlier}


@given(st.sampled_from(["user_id", "scene", "template_version"]))
def test_another_user_scene_or_template_is_another_intent(field: str) -> None:
    now = datetime(2026, 5, 4, tzinfo=UTC)
    assert _derived(now).hash != _derived(now, **{field: "other"}).hash  # type: ignore[arg-type]  # one of the texts


def test_a_given_key_is_never_a_derived_one() -> None:
    assert given_key("k").hash != _derived(datetime(2026, 5, 4, tzinfo=UTC)).hash
    assert given_key("k").earlier is None


@given(st.text(max_size=10), st.text(max_size=10))
def test_content_is_what_the_person_would_get(one: str, other: str) -> None:
    def of(variables: str) -> bytes:
        return content_hash(
            user_id="u", address="", scene="s", template="t", canonical_variables=variables, channels=()
        )

    assert (of(one) == of(other)) == (one == other)
