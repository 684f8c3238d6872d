// limits.h: what a request may ask for. llama.cpp trusts its input in places: it recurses over nested input, asserts on
// enum values and reserves what a number says. Requests that would end or stall the process are refused here instead.
#pragma once

#include "server-common.h"

#include <cstddef>
#include <string>

namespace strata {

// Bounds the nesting and the size of objects in unparsed JSON (parsing itself is quadratic in the keys of one object).
void check_json_text(const char * text, size_t n);

// Fields of a rendered request that make work, before they are evaluated. `from_client` are requests whose fields are
// the client's own; in chat requests the template has set the fields that describe the format.
void check_fields(const json & data, bool from_client);

// A grammar in GBNF, the client's or one made from a schema.
void check_grammar(const std::string & grammar);

// Chat messages after conversion to the OpenAI form: arguments of tool calls are JSON inside strings.
void check_messages(const json & body);

// Numbers whose combination could make logits NaN, on which llama.cpp's sorting is undefined.
void check_sampling(const common_params_sampling & s);

} // namespace strata
