"""What the HTTP process needs to know from the command line; `flags` fills it in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PriorityLimits:
    """The highest priority that a request may ask for, by the key it came with."""

    others: int = 0
    of_key: Mapping[str, int] = field(default_factory=dict)  # by name: key-1, key-2, ...

    def highest(self, tenant: str) -> int:
        """What the key named `tenant` may ask for; "" where the server wants no key."""
        return self.of_key.get(tenant, self.others)


@dataclass(frozen=True)
class ServerSettings:
    """Values of the server flags, checked."""

    model_path: str = ""
    model_name: str = ""
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 8080
    reuse_port: bool = False
    api_keys: tuple[str, ...] = ()
    api_prefix: str = ""
    ssl_cert_file: str = ""  # with its key: HTTPS on all addresses; "": plain HTTP
    ssl_key_file: str = ""
    cors_origins: str = "localhost"
    cors_methods: str = "GET, POST, DELETE, OPTIONS"
    cors_headers: str = "*"
    cors_credentials: bool = True
    timeout: int = 3600  # seconds that a client may take to send its body
    drain_s: float = 5.0  # how long requests may take to end when the server stops
    max_prompt_tokens: int = 0  # 0: only the context size bounds a prompt
    max_priority: PriorityLimits = PriorityLimits()
    cache_shared: bool = False  # API keys find each other's cached prompts
    embeddings: bool = False  # it embeds or ranks, and generates nothing
    embd_normalize: int = 2  # see `vectors.normalised`
    lora_scales: tuple[float, ...] = ()  # of the adapters, where a request says nothing
    normalise: bool = True  # make constant what clients change in prompts without a meaning
    ui: bool = True
    static_path: str = ""  # folder that replaces the chat page; "": none does
    ui_settings: Mapping[str, Any] = field(default_factory=dict)  # for that page, in GET /props
    use_jinja: bool = True
    endpoint_slots: bool = True
    slot_save_path: str = ""  # folder of slot files; "": there are none
    endpoint_metrics: bool = False
    endpoint_props: bool = False
    verbosity: int = 3  # llama-server's: 1 errors, 2 warnings, 3 info, 4 trace, 5 debug
    log_file: str = ""
    log_jsonl: bool = False
    log_colors: str = "auto"
    log_prefix: bool = True
    log_timestamps: bool = True
    log_disable: bool = False
