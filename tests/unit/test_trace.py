"""A trace is read whole or refused with the number of the damaged line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_plugin.scheduling.trace import (
    BLOCK_TOKENS,
    TraceError,
    TraceRequest,
    common_prefix,
    read_trace,
)


def _line(**changes: Any) -> str:
    fields: dict[str, Any] = {
        "timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 2353],
    }  # fmt: skip
    fields |= changes
    return json.dumps({name: value for name, value in fields.items() if value is not ...})


def test_mooncakes_form_and_our_two_fields_are_read() -> None:
    assert read_trace(
        [
            _line(timestamp=0),
            _line(timestamp=1500.5, tenant="agent 1", cancel_after_ms=250, model="ignored"),
            "\n",
        ]
    ) == [
        TraceRequest(0.0, 600, 52, (46, 2353)),
        TraceRequest(1.5005, 600, 52, (46, 2353), "agent 1", 0.25),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "expected a JSON object, not list"),
        ("17", "expected a JSON object, not 17"),
        ("[" * 100_000, "nested too deeply"),
        (_line(timestamp=...), "`timestamp` is missing"),
        (_line(input_length=...), "`input_length` is missing"),
        (_line(output_length=...), "`output_length` is missing"),
        (_line(hash_ids=...), "`hash_ids` is missing"),
        (_line(timestamp=-1), "`timestamp` must be 0 or more, not -1"),
        (_line(timestamp="12"), "`timestamp` must be a number"),
        (_line(timestamp=None), "`timestamp` must be a number, not null"),
        (_line(timestamp=float("nan")), "`timestamp` must be 0 or more"),
        (_line(timestamp=float("inf")), "`timestamp` must be 0 or more"),
        (_line(timestamp=10**400), "`timestamp` must be 0 or more"),
        (_line(input_length=-600), "`input_length` must be 1 to"),
        (_line(input_length=0), "`input_length` must be 1 to"),
        (_line(input_length=600.5), "`input_length` must be a whole number"),
        (_line(input_length=True), "`input_length` must be a whole number"),
        (_line(input_length=1 << 40), "`input_length` must be 1 to"),
        (_line(output_length=0), "`output_length` must be 1 to"),
        (_line(hash_ids=[46]), "600 prompt tokens are 2 blocks of 512, but `hash_ids` has 1"),
        (_line(hash_ids=[1, 2, 3]), "but `hash_ids` has 3"),
        (_line(hash_ids="46"), "`hash_ids` must be a list"),
        (_line(hash_ids=[46, -1]), "`hash_ids` must be whole numbers of 0 or more, not -1"),
        (_line(hash_ids=[46, 1.5]), "`hash_ids` must be whole numbers"),
        (_line(tenant=7), "`tenant` must be a string, not 7"),
        (_line(cancel_after_ms=-5), "`cancel_after_ms` must be 0 or more, not -5"),
        (_line(timestamp=27481), "timestamps go back, from 27482 to 27481 ms"),
    ],
)
def test_a_damaged_line_is_named_with_its_number(line: str, problem: str) -> None:
    with pytest.raises(TraceError) as raised:
        read_trace([_line(), line, _line()])
    assert raised.value.line == 2
    assert str(raised.value).startswith("line 2: ")
    assert problem in str(raised.value)


def test_an_empty_line_between_requests_is_a_hole_and_one_at_the_end_is_not() -> None:
    assert len(read_trace([_line(), "\n", " \n"])) == 1
    with pytest.raises(TraceError, match="line 2: the trace has a hole"):
        read_trace([_line(), "", "", _line()])


@pytest.mark.parametrize("lines", [[], ["", "\n"]])
def test_a_trace_without_requests_is_refused(lines: list[str]) -> None:
    with pytest.raises(TraceError, match="holds no requests"):
        read_trace(lines)


def test_a_shared_prefix_ends_at_the_first_different_block_or_at_the_shorter_prompts_end() -> None:
    def request(n_prompt: int, *ids: int) -> TraceRequest:
        return TraceRequest(0.0, n_prompt, 1, ids)

    assert common_prefix(request(1100, 1, 2, 3), request(1100, 1, 2, 4)) == 2 * BLOCK_TOKENS
    assert common_prefix(request(600, 1, 2), request(1100, 1, 2, 3)) == 600
    assert common_prefix(request(600, 1, 2), request(600, 3, 2)) == 0


@given(st.text() | st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids", "tenant"])
        | st.text(), inner),
).map(json.dumps))  # fmt: skip
def test_whatever_a_line_holds_it_is_read_or_refused_with_a_trace_error(line: str) -> None:
    try:
        requests = read_trace([line])
    except TraceError as exc:
        assert exc.line == 1
    else:
        assert len(requests) == 1
