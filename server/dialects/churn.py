"""What clients change in each request without meaning anything by it. Left as it is, no prefix of
the prompt would ever be found in a cache.
"""

from __future__ import annotations

import re

_BILLING = "x-anthropic-billing-header:"
_STAMP = re.compile(r"(?<=[ ;]cch=)[0-9a-fA-F]+(?=;)")


def without_billing_stamp(text: str) -> str:
    """A system text of Claude Code with the stamp in its first line made constant.

    The line begins with `x-anthropic-billing-header:` and holds `cch=<hex>;`, another number in
    each request, which is meant for the company's own servers. Digits become `f`, as many as there
    were, as llama-server does (llama.cpp pull request 21793). Any other text stays as it is.
    """
    if not text.startswith(_BILLING):
        return text
    line, end, rest = text.partition("\n")
    return _STAMP.sub(lambda found: "f" * len(found[0]), line, count=1) + end + rest
