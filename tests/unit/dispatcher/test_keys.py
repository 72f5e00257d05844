"""Keys: two different messages never share one, the same message always has the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.dispatcher.keys import fingerprint, idempotency_key

_PARTS = st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), max_size=6)] * 4)
_WORD = st.text("abcxyz0123456789", min_size=1, max_size=6)


def test_parts_do_not_run_into_each_other() -> None:
    assert idempotency_key("ab", "c", "email", "v") != idempotency_key("a", "bc", "email", "v")


@given(_PARTS, _PARTS)
def test_equal_keys_mean_equal_parts(one: tuple[str, str, str, str], other: tuple[str, str, str, str]) -> None:
    assert (idempotency_key(*one) == idempotency_key(*other)) is (one == other)


@given(_PARTS)
def test_a_key_is_64_hex_digits_fit_for_any_header(parts: tuple[str, str, str, str]) -> None:
    key = idempotency_key(*parts)
    assert len(key) == 64
    assert set(key) <= set("0123456789abcdef")


def test_white_space_makes_no_other_message() -> None:
    assert fingerprint(["Hello\n  you "], {}, {}) == fingerprint(["Hello you"], {}, {})


def test_parts_of_a_message_do_not_run_into_each_other() -> None:
    assert fingerprint(["ab", "c"], {}, {}) != fingerprint(["a", "bc"], {}, {})


def test_the_value_of_a_noise_variable_makes_no_other_message() -> None:
    one = fingerprint(["Disk full since 10:01"], {"at": "10:01"}, {"disk": "db"})
    other = fingerprint(["Disk full since 10:02"], {"at": "10:02"}, {"disk": "db"})
    assert one == other


def test_noise_is_masked_also_where_it_was_escaped() -> None:
    def of(value: str, escaped: str) -> bytes:
        return fingerprint([f"at {escaped}"], {"at": value}, {})

    assert of('"1" & <2>', "&#34;1&#34; &amp; &lt;2&gt;") == of("3", "3")
    assert of('"1"', '\\"1\\"') == of("3", "3")


def test_a_second_order_is_not_lost_though_its_number_looks_like_the_noise() -> None:
    one = fingerprint(["Order 7 at 7 o'clock"], {"hour": 7}, {"order": 7})
    other = fingerprint(["Order 8 at 8 o'clock"], {"hour": 8}, {"order": 8})
    assert one != other


@given(_WORD, _WORD, _WORD, _WORD)
def test_values_that_nobody_called_noise_always_distinguish(order: str, other: str, hour: str, later: str) -> None:
    one = fingerprint([f"Order {order} at {hour}"], {"hour": hour}, {"order": order})
    two = fingerprint([f"Order {other} at {later}"], {"hour": later}, {"order": other})
    if order != other:
        assert one != two
    elif order == hour == later or not ({order, "Order", "at"} & {hour, later}):
        # The same order; only where the noise cannot be told from the rest may it count as another.
        assert hour in f"Order {order} at" or later in f"Order {order} at" or one == two
