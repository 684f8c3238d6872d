"""What flags accept, what they refuse, and llama-server's defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strata_server.flags import UsageError, parse

# from llama-server's --help
DEFAULTS = {
    "ctx_size": 0,
    "parallel": -1,
    "batch_size": 2048,
    "ubatch_size": 512,
    "flash_attn": "auto",
    "cache_type_k": "f16",
    "cache_type_v": "f16",
    "kv_offload": True,
    "gpu_layers": -1,
    "load_mode": "auto",
    "repack": True,
    "op_offload": True,
    "warmup": True,
    "cache_ram": 8192,
    "cache_prompt": True,
    "predict": -1,
    "temp": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "top_nsigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical": 1.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "dynatemp_range": 0.0,
    "dynatemp_exp": 1.0,
    "mirostat": 0,
    "mirostat_lr": 0.1,
    "mirostat_ent": 5.0,
    "jinja": True,
    "reasoning": -1,
    "reasoning_budget": -1,
    "reasoning_preserve": True,
    "prefill_assistant": True,
    "skip_chat_parsing": False,
    "escape": True,
    "host": ("127.0.0.1",),
    "port": 8080,
    "timeout": 3600,
    "sse_ping_interval": 30,
    "metrics": False,
    "slots": True,
    "props": False,
    "ui": True,
    "cors_origins": "localhost",  # ours: see docs/compat.md
    "cors_methods": "GET, POST, DELETE, OPTIONS",
    "cors_headers": "*",
    "cors_credentials": True,
    "verbosity": 3,
    "log_colors": "auto",
}


def test_defaults_are_those_of_llama_server() -> None:
    parsed = parse([], {})
    assert {key: parsed[key] for key in DEFAULTS} == DEFAULTS
    assert parsed.given == set()


@pytest.mark.parametrize(
    ("argv", "key", "value"),
    [
        (["-ngl", "auto"], "gpu_layers", -1),
        (["-ngl", "all"], "gpu_layers", -2),
        (["-ngl", "20"], "gpu_layers", 20),
        (["-fa", "1"], "flash_attn", "on"),
        (["-fa", "off"], "flash_attn", "off"),
        (["-fa", "-1"], "flash_attn", "auto"),
        (["-ts", "3,1"], "tensor_split", (3.0, 1.0)),
        (["-ts", "3/1"], "tensor_split", (3.0, 1.0)),
        (["-ot", "exps=CPU,attn=CUDA0"], "override_tensor", (("exps", "CPU"), ("attn", "CUDA0"))),
        (["-ot", "a=CPU", "-ot", "b=CPU"], "override_tensor", (("a", "CPU"), ("b", "CPU"))),
        (["-ncffn", "1"], "n_cpu_ffn", ((r"blk\.0\.ffn_(up|down|gate)\.", "CPU"),)),
        (["--override-kv", "a.b=bool:false"], "override_kv", ("a.b=bool:false",)),
        (["--numa", ""], "numa", "distribute"),
        (["-nr"], "repack", False),
        (["--no-warmup"], "warmup", False),
        (["-nkvo"], "kv_offload", False),
        (["-s", "-1"], "seed", 0xFFFFFFFF),
        (["-s", "42"], "seed", 42),
        (["--temp", "-3"], "temp", 0.0),
        (["-l", "15043+1", "-l", "7-0.5"], "logit_bias", ((15043, 1.0), (7, -0.5))),
        (["-l", "2-inf"], "logit_bias", ((2, -1e30),)),
        (["--samplers", "top_k;typ-p;TEMP"], "samplers", ("top_k", "typ-p", "TEMP")),
        (["--sampler-seq", "kt"], "sampler_seq", ("top_k", "temperature")),
        (["-j", '{"type": "object"}'], "json_schema", {"type": "object"}),
        (["--api-key", 'a,"b,c"', "--api-key", "d"], "api_key", ("a", "b,c", "d")),
        (["-a", " x , y"], "alias", ("x", "y")),
        (["-rea", "on"], "reasoning", 1),
        (["--chat-template-kwargs", '{"a": 1}'], "chat_template_kwargs", {"a": 1}),
        (["--host", "127.0.0.1, ::1"], "host", ("127.0.0.1", "::1")),
        (["-hf", "org/model-GGUF:Q4_K_M"], "hf_repo", "org/model-GGUF:Q4_K_M"),
        (["--webui"], "ui", True),
        (["--no-webui"], "ui", False),
    ],
)
def test_values(argv: list[str], key: str, value: Any) -> None:
    assert parse(argv, {})[key] == value


def test_experts_on_the_cpu_are_the_patterns_of_llama_cpp() -> None:
    parsed = parse(["-ncmoe", "2"], {})
    pattern = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    assert parsed["n_cpu_moe"] == ((r"blk\.0" + pattern, "CPU"), (r"blk\.1" + pattern, "CPU"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--port", "x"], "--port: expected a whole number, got 'x'"),
        (["--port", "-1"], "--port: must be at least 0, got -1"),
        (["--port", "65536"], "--port: must be at most 65535, got 65536"),
        (["-c", "-5"], "-c: must be at least 0, got -5"),
        (["-b", "0"], "-b: must be at least 1, got 0"),
        (["-np", "0"], "-np: must be at least 1, or -1 for auto"),
        (["-ctk", "f17"], "-ctk: 'f17' is none of f32, f16, bf16"),
        (["-fa", "maybe"], "-fa: 'maybe' is none of on, off, auto"),
        (["--temp", "nan"], "--temp: expected a finite number, got 'nan'"),
        (["--temp", "hot"], "--temp: expected a number, got 'hot'"),
        (["--repeat-penalty", "0"], "--repeat-penalty: must be above 0"),
        (["--samplers", "top_q"], "--samplers: unknown sampler 'top_q'"),
        (["--sampler-seq", "z"], "--sampler-seq: unknown sampler letter 'z'"),
        (["-l", "x+1"], "-l: expected TOKEN_ID"),
        (["-j", "{"], "-j: not valid JSON"),
        (["-j", "[]"], "-j: expected a JSON object"),
        (["--grammar-file", "/nowhere"], "--grammar-file: cannot read '/nowhere': No such file"),
        (["--api-key-file", "/nowhere"], "--api-key-file: cannot read"),
        (["--log-file", "/nowhere/x.log"], "--log-file: no such directory: /nowhere"),
        (["-ot", "exps"], "-ot: expected <tensor name pattern>=<buffer type>"),
        (["-ot", "(=CPU"], "-ot: bad pattern"),
        (["-ts", "a"], "-ts: expected numbers"),
        (["-ts", "0,0"], "-ts: expected proportions"),
        (["--override-kv", "x"], "--override-kv: expected KEY=TYPE:VALUE"),
        (["--override-kv", "x=int:y"], "--override-kv: 'y' is no int"),
        (["--override-kv", "x=bool:1"], "--override-kv: '1' is no bool"),
        (["-hf", "model"], "-hf: expected <user>/<model>[:quant]"),
        (["--host", ""], "--host: expected at least one address"),
        (["--api-prefix", "x/"], "--api-prefix: must start with /"),
        (["--rope-scale", "0"], "--rope-scale: must be above 0"),
        (["--load-mode", "fast"], "--load-mode: 'fast' is none of"),
        (["-mg", "-1"], "-mg: must be at least 0"),
        (["--reasoning-budget", "-2"], "--reasoning-budget: must be at least -1"),
        (["--timeout", "0"], "--timeout: must be at least 1"),
    ],
)
def test_refusals_are_one_line_that_names_the_flag(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(argv, {})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_files_are_read(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# comment\none\n\ntwo\n")
    template = tmp_path / "t.jinja"
    template.write_text("{{ x }}")
    schema = tmp_path / "s.json"
    schema.write_text('{"type": "string"}')
    parsed = parse(
        ["--api-key-file", str(keys), "--chat-template-file", str(template), "-jf", str(schema)], {}
    )
    assert parsed["api_key_file"] == ("one", "two")
    assert parsed["chat_template_file"] == "{{ x }}"
    assert parsed["json_schema_file"] == {"type": "string"}
