"""Rendering: exact text, no way out of the sandbox, bounded, and never a broken document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.catalog.rules import Channel
from services.catalog.templates import TemplateHead
from services.dispatcher.render import RenderError, render

_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_characters="\x00")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def template(
    parts: Mapping[tuple[Channel, str], str], *, required: str = "value", optional: str = "", noise: str = ""
) -> TemplateHead:
    return TemplateHead(
        name="t",
        version="v1",
        required=frozenset(required.split()),
        optional=frozenset(optional.split()),
        noise=frozenset(noise.split()),
        parts=MappingProxyType({(channel.value, part): source for (channel, part), source in parts.items()}),
        channels=frozenset(channel for channel, _ in parts),
    )


def text(source: str, variables: Mapping[str, Any], **head: str) -> str:
    return render(template({(Channel.SMS, "text"): source}, **head), Channel.SMS, variables, 10_000).body


def reason_of(source: str, variables: Mapping[str, Any], channel: Channel = Channel.SMS, part: str = "text") -> str:
    with pytest.raises(RenderError) as error:
        render(template({(channel, part): source}), channel, variables, 10_000)
    return error.value.reason


def test_the_text_is_exactly_what_the_template_says() -> None:
    assert text("Grüezi {{ value }}\n  €\n", {"value": "Zoë"}) == "Grüezi Zoë\n  €"


def test_a_missing_variable_is_named_as_the_reason() -> None:
    assert reason_of("{{ value }}", {}) == "variable_missing"
    assert reason_of("{{ value }}", {"value": None}) == "variable_missing"
    assert reason_of("{{ value | tojson }}", {}) == "variable_missing", "a filter that chokes on it hides no reason"


def test_an_optional_variable_may_be_missing() -> None:
    assert text("a{% if extra %}b{% endif %}{{ extra }}", {"value": 1}, optional="extra") == "a"


def test_a_channel_without_a_part_is_refused() -> None:
    with pytest.raises(RenderError) as error:
        render(template({(Channel.SMS, "text"): "x"}), Channel.EMAIL, {"value": 1}, 100)
    assert error.value.reason == "no_template_part"


@pytest.mark.parametrize(
    "attempt",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ value.__class__.__base__.__subclasses__() }}",
        "{{ ''|attr('__class__') }}{{ (''|attr('__class__')).mro() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ '{0.__class__.__mro__}'.format(value) }}",
        "{{ value.append(1) }}",
        "{{ range(10000000)|length }}",
    ],
)
def test_a_template_does_not_get_out_of_its_sandbox(attempt: str) -> None:
    assert reason_of(attempt, {"value": [1]}) in {"render_failed", "variable_missing"}


def test_what_an_agent_writes_is_text_and_never_a_template() -> None:
    assert text("{{ value }}", {"value": "{{ 7 * 7 }}{% raw %}"}) == "{{ 7 * 7 }}{% raw %}"


@pytest.mark.parametrize(
    "fault",
    [
        "{{ value|dictsort }}",  # AttributeError
        "{{ 1 // 0 }}",  # ArithmeticError
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",  # RecursionError
        "{{ value|int + 'x' }}",  # TypeError
        "{{ '%c'|format(0) }}",  # NUL, which PostgreSQL refuses
        "{{ '%c'|format(55296) }}",  # half a surrogate pair
    ],
)
def test_whatever_goes_wrong_inside_fails_that_message_only(fault: str) -> None:
    assert reason_of(fault, {"value": "x"}) == "render_failed"


def test_output_is_capped_while_it_grows() -> None:
    endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}xxxx{% endfor %}{% endfor %}{% endfor %}"
    assert reason_of(endless, {"value": 1}) == "too_large"


def test_the_cap_counts_bytes_over_all_parts_of_the_message() -> None:
    head = template({(Channel.EMAIL, "subject"): "{{ value }}", (Channel.EMAIL, "text"): "{{ value }}"})
    render(head, Channel.EMAIL, {"value": "ü" * 10}, 40)
    with pytest.raises(RenderError) as error:
        render(head, Channel.EMAIL, {"value": "ü" * 10}, 39)
    assert error.value.reason == "too_large"


def test_html_is_escaped_and_plain_text_is_not() -> None:
    head = template(
        {(Channel.EMAIL, part): "{{ value }}" for part in ("subject", "text", "html")},
    )
    content = render(head, Channel.EMAIL, {"value": "<b>&'\""}, 1_000)
    assert content.body == content.subject == "<b>&'\""
    assert content.html == "&lt;b&gt;&amp;&#39;&#34;"


@given(st.text())
def test_a_subject_is_one_line_whatever_is_in_it(value: str) -> None:
    if "\x00" in value:
        return
    head = template({(Channel.EMAIL, "subject"): "S {{ value }}", (Channel.EMAIL, "text"): "x"})
    subject = render(head, Channel.EMAIL, {"value": value}, 10_000).subject
    assert len(subject.splitlines()) == 1


@given(_ANYTHING)
def test_a_webhooks_body_is_json_whatever_the_values(value: object) -> None:
    head = template({(Channel.WEBHOOK, "json"): '{\n  "value": {{ value[0] | tojson }}\n}'})
    body = render(head, Channel.WEBHOOK, {"value": [value]}, 100_000).body
    assert json.loads(body) == {"value": value}


def test_a_webhook_with_a_text_part_gets_it_as_json() -> None:
    head = template({(Channel.WEBHOOK, "text"): 'say "{{ value }}"'})
    assert json.loads(render(head, Channel.WEBHOOK, {"value": "ü"}, 100).body) == {"text": 'say "ü"'}


@pytest.mark.parametrize("source", ['{"a": {{ value }}}', '{"a": NaN}', '{"a": Infinity}', "[" * 9_000])
def test_a_webhook_template_that_gives_no_json_fails(source: str) -> None:
    assert reason_of(source, {"value": 'x"'}, Channel.WEBHOOK, "json") == "render_failed"


def test_the_fingerprint_forgets_noise_and_keeps_the_order() -> None:
    head = template({(Channel.SMS, "text"): "{{ order }} at {{ hour }}"}, required="order hour", noise="hour")

    def of(order: int, hour: int, **more: str) -> bytes:
        return render(head, Channel.SMS, {"order": order, "hour": hour, **more}, 100).fingerprint

    assert of(17, 20) == of(17, 30)
    assert of(20, 20) != of(30, 30)
    assert of(17, 20, request_id="a") == of(17, 20, request_id="b"), "what no template knows makes no other message"


def gathered(parts: list[dict[str, Any]], *, noise: str = "") -> bytes:
    source = "{% for item in items %}{{ item.value }} {{ item.at }};{% endfor %}"
    head = template({(Channel.SMS, "text"): source}, required="value", optional="at items count", noise=noise)
    variables = {**parts[0], "items": parts, "count": len(parts)}
    return render(head, Channel.SMS, variables, 10_000, parts).fingerprint


def test_the_noise_of_a_digests_parts_makes_no_other_message_and_their_values_do() -> None:
    one, later, other = (
        [{"value": value, "at": at}, {"value": 2, "at": "9:30"}]
        for value, at in ((1, "9:00"), (1, "9:01"), (3, "9:00"))
    )
    assert gathered(one, noise="at") == gathered(later, noise="at") != gathered(other, noise="at")
    assert gathered(one) != gathered(later), "what is not called noise distinguishes"
