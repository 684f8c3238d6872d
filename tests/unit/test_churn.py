"""The stamp that Claude Code puts into its system text is made constant, and nothing else is."""

from __future__ import annotations

import pytest

from strata_server.dialects.churn import without_billing_stamp

HEADER = "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; "


def test_two_requests_of_a_client_become_the_same() -> None:
    first, second = (without_billing_stamp(f"{HEADER}cch={s};") for s in ("a5145", "0C9fe"))
    assert first == second == f"{HEADER}cch=fffff;"


def test_text_after_the_stamp_stays() -> None:
    text = "You are Claude Code.\ncch=12345; is an example; cch=abcde;"
    assert without_billing_stamp(f"{HEADER}cch=a5145;{text}") == f"{HEADER}cch=fffff;{text}"
    assert without_billing_stamp(f"{HEADER}cch=a5145;\n{text}") == f"{HEADER}cch=fffff;\n{text}"


@pytest.mark.parametrize("stamp", ["0", "abc", "0123456789abcdef"])
def test_a_stamp_of_another_length_keeps_its_length(stamp: str) -> None:
    found = without_billing_stamp(f"{HEADER}cch={stamp}; more=1;")
    assert found == f"{HEADER}cch={'f' * len(stamp)}; more=1;"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "You are a helper. cch=a5145;",
        " x-anthropic-billing-header: cch=a5145;",
        "X-Anthropic-Billing-Header: cch=a5145;",
        "x-anthropic-billing-header: cc_version=2.1;",
        "x-anthropic-billing-header: cch=xyz;",
        "x-anthropic-billing-header: cch=a5145",
        "x-anthropic-billing-header: ccch=a5145;",
        "x-anthropic-billing-header: cc_version=2.1;\ncch=a5145;",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert without_billing_stamp(text) == text
