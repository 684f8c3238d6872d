"""JSON schemas of what routes take, and of errors, for the OpenAPI document. Only what most clients
send is named; all of llama-server's fields are taken.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer", "minimum": -(1 << 31), "maximum": (1 << 31) - 1}
COUNT: Schema = {**INTEGER, "minimum": 0}
OBJECT: Schema = {"type": "object"}


def array(items: Schema) -> Schema:
    """An array of `items`."""
    return {"type": "array", "items": items}


def either(*schemas: Schema) -> Schema:
    """One of several."""
    return {"anyOf": list(schemas)}


def objects(*required: str, **properties: Schema) -> Schema:
    """An object with these fields, and maybe others; those in `required` must be there."""
    return {"type": "object", "required": list(required), "properties": properties}


def one_of(*values: str) -> Schema:
    """One of these texts."""
    return {"enum": list(values)}


ERROR = objects("error", error=objects("code", "message", "type", message=TEXT, type=TEXT))
PARTS = array(objects("type", type=TEXT, text=TEXT))
CONTENT = either(TEXT, PARTS)
TOKENS = array(COUNT)
PROMPT = either(TEXT, TOKENS, array(either(TEXT, TOKENS)))

SAMPLING: dict[str, Schema] = {
    "temperature": NUMBER,
    "top_k": INTEGER,
    "top_p": NUMBER,
    "min_p": NUMBER,
    "seed": INTEGER,
    "stream": BOOLEAN,
    "cache_prompt": BOOLEAN,
    "id_slot": INTEGER,
    "priority": INTEGER,
    "itl_slo_ms": {"type": "number", "exclusiveMinimum": 0},
    "cache_salt": TEXT,
}
OPENAI_SAMPLING: dict[str, Schema] = {
    **SAMPLING,
    "model": TEXT,
    "max_tokens": {**INTEGER, "minimum": -1},
    "n": {**INTEGER, "minimum": 1},
    "stop": either(TEXT, array(TEXT)),
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "logit_bias": either(OBJECT, array(array(either(TEXT, NUMBER, BOOLEAN)))),
    "response_format": objects("type", type=one_of("text", "json_object", "json_schema")),
    "stream_options": objects(include_usage=BOOLEAN),
}

COMPLETION: dict[str, Schema] = {
    **SAMPLING,
    "prompt": PROMPT,
    "n_predict": {**INTEGER, "minimum": -1},
    "stop": array(TEXT),
    "n_probs": COUNT,
    "grammar": TEXT,
    "json_schema": OBJECT,
    "samplers": array(TEXT),
    "return_tokens": BOOLEAN,
    "return_progress": BOOLEAN,
    "timings_per_token": BOOLEAN,
}
INFILL: dict[str, Schema] = {
    **COMPLETION,
    "input_prefix": TEXT,
    "input_suffix": TEXT,
    "input_extra": array(objects(text=TEXT, filename=TEXT)),
}
OPENAI_COMPLETION: dict[str, Schema] = {
    **OPENAI_SAMPLING,
    "prompt": PROMPT,
    "echo": BOOLEAN,
    "logprobs": COUNT,
}

_CALL = objects(
    "id", "function", id=TEXT, type=TEXT, function=objects("name", name=TEXT, arguments=TEXT)
)
_FUNCTION = objects("name", name=TEXT, description=TEXT, parameters=OBJECT)
_MESSAGE = objects(
    "role",
    role=one_of("system", "developer", "user", "assistant", "tool"),
    content=either(CONTENT, {"type": "null"}),
    tool_calls=array(_CALL),
    tool_call_id=TEXT,
    reasoning_content=TEXT,
)
CHAT: dict[str, Schema] = {
    **OPENAI_SAMPLING,
    "messages": array(_MESSAGE),
    "tools": array(objects("type", "function", type=TEXT, function=_FUNCTION)),
    "tool_choice": either(one_of("auto", "none", "required"), OBJECT),
    "parallel_tool_calls": BOOLEAN,
    "max_completion_tokens": {**INTEGER, "minimum": -1},
    "reasoning_effort": TEXT,
    "chat_template_kwargs": OBJECT,
    "logprobs": BOOLEAN,
    "top_logprobs": COUNT,
}

_ITEM = either(
    objects("role", role=one_of("system", "developer", "user", "assistant"), content=CONTENT),
    objects("type", "call_id", type=one_of("function_call_output"), call_id=TEXT, output=CONTENT),
    objects(
        *("type", "call_id", "name", "arguments"),
        type=one_of("function_call"),
        call_id=TEXT,
        name=TEXT,
        arguments=TEXT,
    ),
    objects("type", type=one_of("reasoning"), summary=PARTS, content=PARTS),
)
_CHOICE = objects("type", type=TEXT, name=TEXT)
RESPONSES: dict[str, Schema] = {
    **SAMPLING,
    "model": TEXT,
    "input": either(TEXT, array(_ITEM)),
    "instructions": TEXT,
    "max_output_tokens": {**INTEGER, "minimum": -1},
    "tools": array(objects("type", type=TEXT, name=TEXT, parameters=OBJECT)),
    "tool_choice": either(one_of("auto", "none", "required"), _CHOICE),
    "parallel_tool_calls": BOOLEAN,
    "reasoning": objects(effort=TEXT),
    "text": objects(format=objects("type", type=TEXT, schema=OBJECT)),
}

_BLOCK = objects("type", type=TEXT, text=TEXT)
ANTHROPIC: dict[str, Schema] = {
    **SAMPLING,
    "model": TEXT,
    "messages": array(
        objects(
            *("role", "content"),
            role=one_of("user", "assistant", "system"),
            content=either(TEXT, array(_BLOCK)),
        )
    ),
    "system": either(TEXT, array(_BLOCK)),
    "max_tokens": {**INTEGER, "minimum": -1},
    "stop_sequences": array(TEXT),
    "tools": array(objects("name", name=TEXT, description=TEXT, input_schema=OBJECT)),
    "tool_choice": objects("type", type=one_of("auto", "any", "tool", "none"), name=TEXT),
    "thinking": objects("type", type=TEXT, budget_tokens=COUNT),
}

EMBEDDINGS: dict[str, Schema] = {
    "model": TEXT,
    "input": PROMPT,
    "content": PROMPT,
    "encoding_format": one_of("float", "base64"),
    "dimensions": COUNT,
    "embd_normalize": INTEGER,
}
RERANK: dict[str, Schema] = {
    "model": TEXT,
    "query": TEXT,
    "documents": array(TEXT),
    "texts": array(TEXT),
    "top_n": INTEGER,
    "return_documents": BOOLEAN,
}
TOKENIZE: dict[str, Schema] = {
    "content": TEXT,
    "add_special": BOOLEAN,
    "parse_special": BOOLEAN,
    "with_pieces": BOOLEAN,
}
DETOKENIZE: dict[str, Schema] = {"tokens": TOKENS}
TEMPLATE: dict[str, Schema] = {"messages": array(_MESSAGE), "tools": CHAT["tools"]}
