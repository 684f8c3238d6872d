// routes.cpp: llama-server's stateless routes.
#include "error.h"
#include "frontend.h"
#include "limits.h"
#include "server-schema.h"

#include "strata.h"

#include "json-schema-to-grammar.h"

using strata::guarded;
using strata::invalid_request;
using strata::to_text;

static json parse_body(const char * body, size_t n) {
    strata::check_json_text(body, n);
    return json::parse(std::string(body, n));
}

extern "C" char * strata_tokenize(strata_frontend * f, const char * body, size_t n, char ** err) {
    return guarded(err, (char *) nullptr, [&] {
        const json data = parse_body(body, n);
        json tokens = json::array();
        if (data.contains("content")) {
            const bool add_special   = json_value(data, "add_special", false);
            const bool parse_special = json_value(data, "parse_special", true);
            const llama_tokens ids = tokenize_mixed(f->vocab, data.at("content"), add_special, parse_special);
            if (!json_value(data, "with_pieces", false)) {
                tokens = ids;
            } else {
                for (const llama_token id : ids) {
                    const std::string piece = common_token_to_piece(f->vocab, id);
                    json shown = piece;
                    if (!is_valid_utf8(piece)) {
                        shown = std::vector<unsigned char>(piece.begin(), piece.end());
                    }
                    tokens.push_back({ {"id", id}, {"piece", shown} });
                }
            }
        }
        return to_text(json {{"tokens", tokens}}.dump_safe());
    });
}

extern "C" char * strata_detokenize(strata_frontend * f, const char * body, size_t n, char ** err) {
    return guarded(err, (char *) nullptr, [&] {
        const json data = parse_body(body, n);
        std::string content;
        if (data.contains("tokens")) {
            const auto tokens = data.at("tokens").get<llama_tokens>();
            for (const llama_token id : tokens) {
                if (id < 0 || id >= f->n_vocab) {
                    throw invalid_request("\"tokens\" contains invalid tokens");
                }
            }
            content = tokens_to_str(f->vocab, tokens);
        }
        return to_text(json {{"content", content}}.dump_safe());
    });
}

extern "C" char * strata_apply_template(strata_frontend * f, const char * body, size_t n, char ** err) {
    return guarded(err, (char *) nullptr, [&] {
        json data = parse_body(body, n);
        strata::check_messages(data);
        strata::check_fields(data, false);
        std::vector<raw_buffer> files;
        const json rendered = oaicompat_chat_params_parse(data, f->chat_params(), files);
        return to_text(json {{"prompt", rendered.at("prompt")}}.dump_safe());
    });
}

static json to_ids(const strata_frontend & f, const server_tokens & tokens) {
    const llama_tokens & ids = tokens.get_tokens();
    for (const llama_token id : ids) {
        if (id < 0 || id >= f.n_vocab) {
            throw invalid_request("Input contains invalid tokens");
        }
    }
    return ids;
}

extern "C" char * strata_embedding_inputs(strata_frontend * f, const char * body, size_t n, char ** err) {
    return guarded(err, (char *) nullptr, [&] {
        const json input   = parse_body(body, n);
        const auto options = mtmd_helper_init_opt_default();
        auto tokenized = [&](const json & entry) {
            if (entry.is_object() && entry.contains("content")) {
                return tokenize_oai_content_array(f->vocab, nullptr, f->chat_params(), entry.at("content"), true, true, options);
            }
            return tokenize_input_subprompt(f->vocab, nullptr, entry, true, true, options);
        };
        json inputs = json::array();
        if (input.is_array() && !json_is_array_and_contains_numbers(input)) {
            for (const auto & entry : input) {
                inputs.push_back(to_ids(*f, tokenized(entry)));
            }
        } else {
            inputs.push_back(to_ids(*f, tokenized(input)));
        }
        return to_text(inputs.dump_safe());
    }, ERROR_TYPE_INVALID_REQUEST);
}

extern "C" char * strata_rerank_inputs(strata_frontend * f, const char * body, size_t n, char ** err) {
    return guarded(err, (char *) nullptr, [&] {
        const json        data    = parse_body(body, n);
        const std::string query   = data.at("query");
        const auto        options = mtmd_helper_init_opt_default();
        json inputs = json::array();
        for (const auto & document : data.at("documents")) {
            inputs.push_back(to_ids(*f, format_prompt_rerank(f->model, f->vocab, nullptr, query, document, options)));
        }
        return to_text(inputs.dump_safe());
    }, ERROR_TYPE_INVALID_REQUEST);
}

extern "C" char * strata_schema_to_grammar(const char * body, size_t n, char ** err) {
    return guarded(err, (char *) nullptr, [&] {
        const json data = parse_body(body, n);
        strata::check_fields({{"json_schema", data}}, false);
        return to_text(json {{"grammar", json_schema_to_grammar(data.at("schema"))}}.dump_safe());
    }, ERROR_TYPE_INVALID_REQUEST);
}

extern "C" char * strata_chat_parse(strata_frontend * f, const char * body, size_t n, char ** err) {
    return guarded(err, (char *) nullptr, [&] {
        const json data = parse_body(body, n);
        const auto params = server_schema::eval_llama_cmpl_schema(
            f->vocab, f->params, f->params.sampling.logit_bias_eog, data).chat_parser_params;
        auto message = common_chat_parse(data.at("text"), json_value(data, "partial", false), params);
        std::vector<std::string> ids;
        message.set_tool_call_ids(ids, gen_tool_call_id);
        return to_text(message.to_json_oaicompat().dump_safe());
    });
}
