"""The tiny models' tokenizer: byte-level BPE over all 256 bytes, so that any text can be tokenised.

Merges make common English words and spaces one or a few tokens; five control tokens and a ChatML
template make the models usable through chat routes.
"""

from __future__ import annotations

import itertools

import gguf

BOS, IM_START, IM_END = "<|bos|>", "<|im_start|>", "<|im_end|>"
EOT, PAD = "<|endoftext|>", "<|pad|>"
CONTROL_TOKENS = (EOT, BOS, IM_START, IM_END, PAD)
N_VOCAB = 512

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_WORDS = (
    "the of and to in is that it was for on are with as be at this have from or one had by word"
    " but not what all were we when your can said there use an each which she do how their if will"
    " up other about out many then them these so some her would make like him into time has look"
    " two more write go see number no way could people my than first water been call who oil its"
    " now find long down day did get come made may part system user assistant hello world good new"
    " think also back after work year because through"
)


def _byte_letters() -> list[str]:
    """One printable letter per byte, in GPT-2's order: the alphabet that BPE merges work on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in printable)
    letters = {b: chr(b) for b in printable}
    letters.update(zip(others, map(chr, itertools.count(256)), strict=False))
    return [letters[b] for b in range(256)]


def _merges(n: int) -> list[tuple[str, str]]:
    """The first `n` merges that build the word list left to right; each makes one new token."""
    made: dict[str, tuple[str, str]] = {}
    for word in _WORDS.split():
        left = "Ġ" + word[0]  # Ġ stands for the space byte
        made.setdefault(left, ("Ġ", word[0]))
        for letter in word[1:]:
            made.setdefault(left + letter, (left, letter))
            left += letter
    return list(made.values())[:n]


def never_greedy() -> list[int]:
    """Ids no model should produce by chance: control tokens, bytes outside printable ASCII."""
    n_control = len(CONTROL_TOKENS)
    return [*range(n_control), *(n_control + b for b in range(256) if not 0x20 <= b < 0x7F)]


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Writes the vocabulary of `N_VOCAB` tokens, its special ids and the chat template."""
    letters = _byte_letters()
    merges = _merges(N_VOCAB - len(letters) - len(CONTROL_TOKENS))
    tokens = [*CONTROL_TOKENS, *letters, *(a + b for a, b in merges)]
    if len(tokens) != N_VOCAB:
        raise ValueError(f"word list makes {len(tokens)} tokens, not {N_VOCAB}")
    types = [gguf.TokenType.CONTROL] * len(CONTROL_TOKENS)
    types += [gguf.TokenType.NORMAL] * (N_VOCAB - len(CONTROL_TOKENS))

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([int(t) for t in types])
    writer.add_token_merges([f"{a} {b}" for a, b in merges])
    writer.add_bos_token_id(CONTROL_TOKENS.index(BOS))
    writer.add_eos_token_id(CONTROL_TOKENS.index(IM_END))
    writer.add_eot_token_id(CONTROL_TOKENS.index(EOT))
    writer.add_pad_token_id(CONTROL_TOKENS.index(PAD))
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
