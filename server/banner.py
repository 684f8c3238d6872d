"""What is printed when requests are served: the address and ways to try it."""

from __future__ import annotations

from strata_plugin.engine.messages import Ready

from .settings import ServerSettings


def ready_text(url: str, settings: ServerSettings, ready: Ready) -> str:
    """A few lines for a person; no key appears in them."""
    slots = "slot" if ready.n_slots == 1 else "slots"
    head = (
        f"Strata serves {settings.model_name} at {url}{settings.api_prefix} "
        f"({ready.n_slots} {slots}, up to {ready.n_ctx_slot} tokens each)"
    )
    if url.startswith("unix://"):
        return head
    base = f"{url}{settings.api_prefix}/v1"
    key = " -H 'Authorization: Bearer YOUR_KEY'" if settings.api_keys else ""
    body = '{"messages": [{"role": "user", "content": "Hello!"}], "stream": true}'
    openai_key = "YOUR_KEY" if settings.api_keys else "none"
    pages = f"{url}{settings.api_prefix}"
    browser = f"  Browser: {pages}/ to chat, {pages}/strata for the queue and the cache\n"
    return (
        f"{head}\n"
        f"{browser if settings.ui else ''}"
        f"  curl -N {base}/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'\n"
        f'  Python: client = openai.OpenAI(base_url="{base}", api_key="{openai_key}")'
    )
