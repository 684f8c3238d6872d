#include "limits.h"

#include "error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace strata {

// Nesting is bounded by the stack of the thread that reads it: the deepest of llama.cpp's recursions over JSON, schemas
// and grammars use 1 to 4 KB per level.
static constexpr size_t max_nesting        = 100;
static constexpr size_t max_members        = 20000;   // of one JSON object
static constexpr size_t max_references     = 500;     // "$ref" in one request
static constexpr size_t max_properties     = 500;     // of one schema: converting n takes n^3
static constexpr size_t max_all_properties = 5000;    // in one request
static constexpr size_t max_pattern        = 4096;    // bytes of a "pattern" in a schema
static constexpr size_t max_grammar        = 1 << 20; // bytes
static constexpr size_t max_grammar_rules  = 20000;
static constexpr size_t max_triggers       = 64;
static constexpr size_t max_trigger_word   = 256;     // bytes
static constexpr size_t max_samplers       = 32;
static constexpr size_t max_breakers       = 64;
static constexpr size_t max_delimiters     = 64;
static constexpr size_t max_fields         = 256;     // response_fields
static constexpr size_t max_stop           = 1024;
static constexpr float  max_magnitude      = 1e30f;

static void require(bool ok, const std::string & message) {
    if (!ok) {
        throw invalid_request(message);
    }
}

void check_json_text(const char * text, size_t n) {
    std::array<size_t, max_nesting> members = {};
    size_t depth     = 0;
    bool   in_string = false;
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            require(depth < max_nesting, "JSON is nested deeper than " + std::to_string(max_nesting) + " levels");
            members[depth++] = 0;
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        } else if (c == ':' && depth > 0) {
            require(++members[depth - 1] <= max_members,
                    "a JSON object has more than " + std::to_string(max_members) + " members");
        }
    }
}

// Depth of round brackets, quoted text and character classes excluded; the same in GBNF and in regular expressions.
static size_t bracket_depth(const std::string & text, bool quotes) {
    size_t depth = 0;
    size_t most  = 0;
    char   until = 0;
    for (size_t i = 0; i < text.size(); i++) {
        const char c = text[i];
        if (c == '\\') {
            i++;
        } else if (until) {
            until = c == until ? 0 : until;
        } else if (c == '[') {
            until = ']';
        } else if (c == '"' && quotes) {
            until = '"';
        } else if (c == '(') {
            most = std::max(most, ++depth);
        } else if (c == ')') {
            depth -= depth > 0;
        }
    }
    return most;
}

// `{m,n}` outside of literals, classes and comments: with n < m llama.cpp's reader counts down past zero, for ever.
static void check_repetitions(const std::string & grammar) {
    for (size_t i = 0; i < grammar.size(); i++) {
        const char c = grammar[i];
        if (c == '"' || c == '[') {
            const char end = c == '"' ? '"' : ']';
            for (i++; i < grammar.size() && grammar[i] != end; i++) {
                i += grammar[i] == '\\';
            }
        } else if (c == '#') {
            while (i < grammar.size() && grammar[i] != '\n') {
                i++;
            }
        } else if (c == '{') {
            unsigned long long least = 0, most = 0;
            if (std::sscanf(grammar.c_str() + i, "{ %llu , %llu", &least, &most) == 2) {
                require(least <= most, "\"grammar\": {" + std::to_string(least) + "," + std::to_string(most) +
                                           "}: the least number of repetitions is more than the most");
            }
        }
    }
}

void check_grammar(const std::string & grammar) {
    require(grammar.size() <= max_grammar, "\"grammar\" is longer than " + std::to_string(max_grammar) + " bytes");
    require(bracket_depth(grammar, true) <= max_nesting,
            "\"grammar\" is nested deeper than " + std::to_string(max_nesting) + " levels");
    size_t rules = 0;
    for (size_t pos = grammar.find("::="); pos != std::string::npos; pos = grammar.find("::=", pos + 3)) {
        rules++;
    }
    require(rules <= max_grammar_rules, "\"grammar\" has more than " + std::to_string(max_grammar_rules) + " rules");
    check_repetitions(grammar);
}

struct schema_counts {
    size_t references = 0;
    size_t properties = 0;
};

// Walks all of `value` for what llama.cpp's schema conversion recurses over.
static void check_schemas(const json & value, schema_counts & counts) {
    if (value.is_array()) {
        for (const auto & item : value) {
            check_schemas(item, counts);
        }
    } else if (value.is_object()) {
        for (const auto & item : value.items()) {
            const json & v = item.value();
            if (item.key() == "$ref") {
                require(++counts.references <= max_references,
                        "more than " + std::to_string(max_references) + " \"$ref\" in one request");
            } else if (item.key() == "properties" && v.is_object()) {
                counts.properties += v.size();
                require(v.size() <= max_properties && counts.properties <= max_all_properties,
                        "too many \"properties\": at most " + std::to_string(max_properties) + " in one schema and " +
                        std::to_string(max_all_properties) + " in one request");
            } else if (item.key() == "pattern" && v.is_string()) {
                const std::string pattern = v;
                require(pattern.size() <= max_pattern && bracket_depth(pattern, false) <= max_nesting,
                        "\"pattern\" is too long or nested too deeply");
            }
            check_schemas(v, counts);
        }
    }
}

static void check_size(const json & data, const char * name, size_t most) {
    if (data.contains(name)) {
        const json & v = data.at(name);
        const size_t n = v.is_string() ? v.get<std::string>().size() : v.size();
        require(n <= most, std::string("Field '") + name + "': more than " + std::to_string(most) + " entries");
    }
}

// The fields that a chat template sets for itself. Patterns are refused because they would be matched against all of a
// reply's text, in the engine, and std::regex may take forever or overflow the stack.
static void check_format_fields(const json & data) {
    require(!data.contains("chat_parser") || data.at("chat_parser").is_null(),
            "Field 'chat_parser': is set by the server");
    if (data.contains("chat_format") && data.at("chat_format").is_number()) {
        const double format = data.at("chat_format").get<double>();
        require(format >= 0 && format < COMMON_CHAT_FORMAT_COUNT, "Field 'chat_format': unknown chat format");
    }
    check_size(data, "message_delimiters", max_delimiters);
    check_size(data, "grammar_triggers", max_triggers);
    if (data.contains("grammar_triggers") && data.at("grammar_triggers").is_array()) {
        for (const auto & trigger : data.at("grammar_triggers")) {
            if (!trigger.is_object()) {
                continue; // refused when it is evaluated
            }
            const int type = json_value(trigger, "type", -1);
            require(type == COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN || type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD,
                    "Field 'grammar_triggers': a trigger's type must be 0 (token) or 1 (word)");
            require(json_value(trigger, "value", std::string()).size() <= max_trigger_word,
                    "Field 'grammar_triggers': a word is longer than " + std::to_string(max_trigger_word) + " bytes");
        }
    }
}

void check_fields(const json & data, bool from_client) {
    if (!data.is_object()) {
        return; // refused when it is evaluated
    }
    if (from_client) {
        check_format_fields(data);
    }
    check_size(data, "samplers", max_samplers);
    check_size(data, "dry_sequence_breakers", max_breakers);
    check_size(data, "response_fields", max_fields);
    if (data.contains("stop") && data.at("stop").is_array()) {
        check_size(data, "stop", max_stop);
    }
    if (data.contains("grammar") && data.at("grammar").is_string()) {
        check_grammar(data.at("grammar"));
    }
    schema_counts counts;
    for (const char * name : { "json_schema", "response_format", "tools" }) {
        if (data.contains(name)) {
            check_schemas(data.at(name), counts);
        }
    }
}

void check_messages(const json & body) {
    if (!body.is_object() || !body.contains("messages")) {
        return;
    }
    for (const auto & message : body.at("messages")) {
        if (!message.is_object() || !message.contains("tool_calls") || !message.at("tool_calls").is_array()) {
            continue;
        }
        for (const auto & call : message.at("tool_calls")) {
            const json function  = call.is_object() ? json_value(call, "function", json()) : json();
            const auto arguments = function.is_object() ? json_value(function, "arguments", json()) : json();
            if (arguments.is_string()) {
                const std::string text = arguments;
                check_json_text(text.data(), text.size());
            }
        }
    }
}

void check_sampling(const common_params_sampling & s) {
    auto bounded = [](float v) { return std::isfinite(v) && std::fabs(v) <= max_magnitude; };
    auto field   = [&bounded](const char * name, float v) {
        require(bounded(v), std::string("Field '") + name + "': the value is too large");
    };
    field("temperature",       s.temp);
    field("top_n_sigma",       s.top_n_sigma);
    field("typical_p",         s.typ_p);
    field("dynatemp_range",    s.dynatemp_range);
    field("dynatemp_exponent", s.dynatemp_exponent);
    field("repeat_penalty",    s.penalty_repeat);
    field("frequency_penalty", s.penalty_freq);
    field("presence_penalty",  s.penalty_present);
    field("dry_multiplier",    s.dry_multiplier);
    field("dry_base",          s.dry_base);
    field("mirostat_tau",      s.mirostat_tau);
    field("mirostat_eta",      s.mirostat_eta);
    require(s.dynatemp_exponent >= 0.0f, "Field 'dynatemp_exponent': must not be negative");
    require(s.dry_multiplier >= -1.0f, "Field 'dry_multiplier': must be at least -1");
    for (const auto & lb : s.logit_bias) {
        require(bounded(lb.bias) || lb.bias == -INFINITY, "Field 'logit_bias': the bias is too large");
    }
}

} // namespace strata
