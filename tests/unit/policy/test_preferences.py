"""The narrowest choice that fits a message counts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.catalog.rules import Category, Channel
from services.policy.decision import Preference
from services.policy.gates import find_preference

MARKETING, VERIFICATION = Category.MARKETING, Category.VERIFICATION
EMAIL, SMS = Channel.EMAIL, Channel.SMS

# From the widest to the narrowest.
WIDTHS = [(None, None), (None, EMAIL), (MARKETING, None), (MARKETING, EMAIL)]

CHOICES = st.lists(
    st.builds(
        Preference,
        category=st.none() | st.sampled_from(Category),
        channel=st.none() | st.sampled_from(Channel),
        opt_in=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda preference: (preference.category, preference.channel),
)


def choice(category: Category | None = None, channel: Channel | None = None) -> Preference:
    return Preference(category=category, channel=channel, opt_in=False)


@pytest.mark.parametrize(("wide", "narrow"), list(itertools.combinations(WIDTHS, 2)))
def test_the_narrower_of_two_choices_counts(
    wide: tuple[Category | None, Channel | None], narrow: tuple[Category | None, Channel | None]
) -> None:
    for chosen in itertools.permutations([choice(*wide), choice(*narrow)]):
        assert find_preference(chosen, channel=EMAIL, category=MARKETING) == choice(*narrow)


def test_a_choice_about_another_channel_or_category_does_not_count() -> None:
    others = [choice(channel=SMS), choice(Category.ALERT), choice(MARKETING, SMS)]
    assert find_preference(others, channel=EMAIL, category=MARKETING) is None


def test_verification_heeds_only_a_choice_that_names_it() -> None:
    assert find_preference([choice(), choice(channel=SMS)], channel=SMS, category=VERIFICATION) is None
    named = choice(VERIFICATION)
    assert find_preference([named], channel=SMS, category=VERIFICATION) == named


@given(CHOICES, st.sampled_from(Channel), st.sampled_from(Category))
def test_the_order_in_which_choices_were_made_does_not_matter(
    chosen: list[Preference], channel: Channel, category: Category
) -> None:
    found = find_preference(chosen, channel=channel, category=category)
    assert find_preference(chosen[::-1], channel=channel, category=category) == found
