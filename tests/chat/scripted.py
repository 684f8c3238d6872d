"""A model that says what its table tells it to: the next token depends on the last one alone.

It answers a ChatML prompt in Hermes' format for tool calls. Which of its `SCRIPTS` it says, a
request chooses by its `logit_bias`, which also lets it disagree with a grammar. Everything around
it is real: tokenizer, template, sampler, grammar, parser.
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np

from strata_plugin.cache_folder import cache_folder
from tests.models.vocab import _byte_letters

__all__ = ["SCRIPTS", "TEMPLATE", "scripted_model"]

END, START = "<|im_end|>", "<|im_start|>"
SURE, LIKELY, UNLIKELY = 1.0, 0.9, 0.5  # shares of the highest logit, about 18
WORDS = tuple(f" w{n}" for n in range(8))

# What may follow a token. "" is the end of a prompt, where an answer begins; where a template ends
# its prompts with a space, it is a call.
_NEXT: dict[str, dict[str, float]] = {
    "": {"Hello": SURE, "<think>": 0.95, "<tool_call>": LIKELY, "So": LIKELY},
    " ": {"<tool_call>": SURE},
    "Hello": {" there": SURE},
    " there": {".": SURE},
    ".": {END: SURE, "<tool_call>": UNLIKELY},
    "<think>": {"A greeting": SURE},
    "A greeting": {"</think>": SURE},
    "</think>": {"Hello": SURE, "<tool_call>": LIKELY},
    "<tool_call>": {'\n{"name": "': SURE},
    '\n{"name": "': {"get_weather": SURE, "add_note": LIKELY},
    "get_weather": {'", "arguments": ': SURE},
    "add_note": {'", "arguments": ': SURE},
    '", "arguments": ': {'{"city": "': SURE, '{"text": "': LIKELY},
    '{"city": "': {"Paris": SURE},
    "Paris": {'", "days": ': SURE},
    '", "days": ': {"2": SURE},
    "2": {"}}": SURE},
    '{"text": "': {"a < b": SURE},
    "a < b": {'"}}': SURE},
    "}}": {"\n</tool_call>": SURE},
    '"}}': {"\n</tool_call>": SURE},
    "\n</tool_call>": {END: SURE, "\n<tool_call>": LIKELY},
    "\n<tool_call>": {'\n{"name": "add_note", "arguments": {"text": "so"}}\n</tool_call>\n': SURE},
    '\n{"name": "add_note", "arguments": {"text": "so"}}\n</tool_call>\n': {END: SURE},
    "So": dict.fromkeys(WORDS, SURE),  # and so on, at random
    **{word: dict.fromkeys(WORDS, SURE) for word in WORDS},
}
# logit_bias that chooses what is said
SCRIPTS: dict[str, list[tuple[str, float]]] = {
    "text": [],
    "reasoning": [("<think>", 4)],
    "call": [("<tool_call>", 4)],
    "calls": [("<tool_call>", 4), ("\n<tool_call>", 4)],
    "reasoning-call": [("<think>", 4), ("<tool_call>", 4)],
    "random": [("So", 4)],
}
TEMPLATE = (Path(__file__).parent / "scripted.jinja").read_text(encoding="utf-8")

_SPECIAL = ("<|endoftext|>", START, END)
_PIECES = tuple(dict.fromkeys([*filter(None, _NEXT), *(t for n in _NEXT.values() for t in n)]))
_TOKENS = (*_SPECIAL, *_byte_letters(), *(t for t in _PIECES if t not in _SPECIAL and len(t) > 1))
_N_EMBD, _N_HEAD, _N_FF, _N_CTX = 320, 4, 32, 4096  # one direction for each token, and room


def _ids() -> dict[str, int]:
    return {token: number for number, token in enumerate(_TOKENS)}


def _write(path: Path) -> None:
    ids = _ids()
    if len(_TOKENS) > _N_EMBD:
        raise ValueError(f"{len(_TOKENS)} tokens, but only {_N_EMBD} directions")
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_name("scripted")
    writer.add_context_length(_N_CTX)
    writer.add_embedding_length(_N_EMBD)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_N_FF)
    writer.add_head_count(_N_HEAD)
    writer.add_head_count_kv(_N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_N_EMBD // _N_HEAD)
    writer.add_vocab_size(len(_TOKENS))
    kinds = [gguf.TokenType.CONTROL] * len(_SPECIAL) + [gguf.TokenType.NORMAL] * 256
    kinds += [gguf.TokenType.USER_DEFINED] * (len(_TOKENS) - len(kinds))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(list(_TOKENS))
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(ids[END])
    writer.add_bos_token_id(ids["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    embedding = np.eye(len(_TOKENS), _N_EMBD, dtype=np.float32)
    output = np.zeros((len(_TOKENS), _N_EMBD), dtype=np.float32)
    for token, followers in _NEXT.items():
        last = ids[{"": "Ċ", " ": "Ġ"}.get(token, token)]  # a prompt ends with a line break
        for follower, share in followers.items():
            output[ids[follower], last] = share
    ones = np.ones(_N_EMBD, dtype=np.float32)
    square = np.zeros((_N_EMBD, _N_EMBD), dtype=np.float32)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", output)
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", ones)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add_tensor(f"blk.0.{name}.weight", square)
    for name in ("ffn_gate", "ffn_up"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((_N_FF, _N_EMBD), dtype=np.float32))
    writer.add_tensor("blk.0.ffn_down.weight", np.zeros((_N_EMBD, _N_FF), dtype=np.float32))
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@functools.cache
def scripted_model() -> Path:
    """Path of the model's GGUF (1 MB), written on first use under a key over all that goes in."""
    digest = hashlib.sha256(version("gguf").encode())
    for source in ("scripted.py", "scripted.jinja"):
        digest.update((Path(__file__).parent / source).read_bytes())
    path = cache_folder("tiny-models") / f"scripted-{digest.hexdigest()[:16]}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # two runs may write at once
            unfinished = Path(folder) / path.name
            _write(unfinished)
            unfinished.replace(path)
    return path
