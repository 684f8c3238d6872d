// request.cpp: from an API's body to token ids and settings, by llama-server's own functions.
#include "error.h"
#include "limits.h"
#include "prepared.h"
#include "sampler_params.h"
#include "server-schema.h"

#include "strata.h"

#include "sampling.h"

#include <unordered_set>

using strata::api_error;
using strata::guarded;
using strata::invalid_request;

// Fields that eval_llama_cmpl_schema() reads into the sampling parameters.
static const std::vector<std::string> sampling_fields = {
    "adaptive_decay", "adaptive_target", "backend_sampling", "dry_allowed_length", "dry_base", "dry_multiplier",
    "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent", "dynatemp_range", "frequency_penalty",
    "generation_prompt", "grammar", "grammar_lazy", "grammar_triggers", "grammar_type", "ignore_eos", "json_schema",
    "logit_bias", "logprobs", "min_keep", "min_p", "mirostat", "mirostat_eta", "mirostat_tau", "n_probs",
    "post_sampling_probs", "presence_penalty", "preserved_tokens", "reasoning_budget_end_tag",
    "reasoning_budget_end_tags", "reasoning_budget_message", "reasoning_budget_start_tag", "reasoning_budget_tokens",
    "reasoning_control", "repeat_last_n", "repeat_penalty", "samplers", "seed", "temperature", "top_k", "top_n_sigma",
    "top_p", "typical_p", "xtc_probability", "xtc_threshold",
};

static constexpr int64_t max_probs_kept = 4 << 20; // entries that a reply written at once may hold

static json infill_data(const strata_frontend & f, json data) {
    std::string missing;
    if (llama_vocab_fim_pre(f.vocab) == LLAMA_TOKEN_NULL) { missing += "prefix token is missing. "; }
    if (llama_vocab_fim_suf(f.vocab) == LLAMA_TOKEN_NULL) { missing += "suffix token is missing. "; }
    if (llama_vocab_fim_mid(f.vocab) == LLAMA_TOKEN_NULL) { missing += "middle token is missing. "; }
    if (!missing.empty()) {
        throw api_error(ERROR_TYPE_NOT_SUPPORTED, "Infill is not supported by this model: " + missing);
    }
    if (data.contains("prompt") && !data.at("prompt").is_string()) {
        throw invalid_request("\"prompt\" must be a string");
    }
    for (const char * name : { "input_prefix", "input_suffix" }) {
        if (!data.contains(name)) {
            throw invalid_request(std::string("\"") + name + "\" is required");
        }
    }
    const json extra = json_value(data, "input_extra", json::array());
    if (!extra.is_array()) {
        throw invalid_request("\"input_extra\" must be an array of {\"filename\": string, \"text\": string}");
    }
    for (const auto & chunk : extra) {
        if (!chunk.contains("text") || !chunk.at("text").is_string()) {
            throw invalid_request("extra_context chunk must contain a \"text\" field with a string value");
        }
        if (chunk.contains("filename") && !chunk.at("filename").is_string()) {
            throw invalid_request("extra_context chunk's \"filename\" field must be a string");
        }
    }
    const std::string prompt = json_value(data, "prompt", std::string());
    const llama_tokens tokens = common_tokenize(f.vocab, prompt, false, true);
    data["prompt"] = format_prompt_infill(f.vocab, data.at("input_prefix"), data.at("input_suffix"), extra,
        f.params.n_batch, f.params.n_predict, f.n_ctx_slot, f.params.spm_infill, tokens);
    return data;
}

static json render(const strata_frontend & f, json body) {
    std::vector<raw_buffer> files; // stays empty: without a projector media are refused
    return oaicompat_chat_params_parse(body, f.chat_params(), files);
}

// The tool that "tool_choice" insists on, "" for any; llama-server takes an object for "auto". Other forms of a choice
// are brought into the one that it knows.
static std::string forced_tool(json & body) {
    const json choice = json_value(body, "tool_choice", json());
    if (choice.is_object()) {
        const std::string type     = json_value(choice, "type", std::string());
        const json        function = json_value(choice, "function", choice);
        const std::string name     = json_value(function, "name", std::string());
        if (type == "function" && !name.empty()) {
            body["tool_choice"] = "required";
            return name;
        }
        if (type != "auto" && type != "none" && type != "required") {
            throw invalid_request("tool_choice: expected auto, none, required or a function with a name");
        }
        body["tool_choice"] = type;
    } else if (!choice.is_null() && !choice.is_string()) {
        throw invalid_request("tool_choice: expected a string or an object");
    }
    return "";
}

// The prompt shows all tools; grammar and parser know only the one that is called for.
static json render_forced(const strata_frontend & f, const json & body, const std::string & name) {
    json one = body;
    one["tools"] = json::array();
    for (const auto & tool : json_value(body, "tools", json::array())) {
        const json function = json_value(tool, "function", json::object());
        if (json_value(function, "name", std::string()) == name) {
            one["tools"].push_back(tool);
        }
    }
    if (one["tools"].empty()) {
        throw invalid_request("tool_choice: there is no tool named '" + name + "'");
    }
    json data = render(f, std::move(one));
    data["prompt"] = render(f, body).at("prompt");
    return data;
}

// Fields that are null are as good as absent; llama.cpp takes some of them for values of a wrong type. A call whose
// arguments are null or an empty text has none.
static void drop_nulls(json & object, const char * kept = "") {
    if (!object.is_object()) {
        return;
    }
    std::vector<std::string> names;
    for (const auto & item : object.items()) {
        if (item.value().is_null() && item.key() != kept) {
            names.push_back(item.key());
        }
    }
    for (const auto & name : names) {
        object.erase(name);
    }
}

static void without_nulls(json & body) {
    drop_nulls(body);
    for (const char * name : { "messages", "tools" }) {
        if (!body.contains(name) || !body.at(name).is_array()) {
            continue;
        }
        for (auto & item : body.at(name)) {
            drop_nulls(item, "content");
            if (item.is_object() && item.contains("function")) {
                drop_nulls(item.at("function"));
            }
            if (!item.is_object() || !item.contains("tool_calls") || !item.at("tool_calls").is_array()) {
                continue;
            }
            for (auto & call : item.at("tool_calls")) {
                drop_nulls(call);
                if (call.is_object() && call.contains("function") && call.at("function").is_object()) {
                    json & function = call.at("function");
                    if (function.contains("arguments") &&
                        (function.at("arguments").is_null() || function.at("arguments") == "")) {
                        function["arguments"] = "{}";
                    }
                    drop_nulls(function);
                }
            }
        }
    }
}

// What llama.cpp would leave out without a word, so that the answer is bound to nothing.
static void check_format(const json & body) {
    if (!body.contains("response_format")) {
        return;
    }
    const json & format = body.at("response_format");
    if (!format.is_object()) {
        throw invalid_request("response_format: expected an object");
    }
    const json wrapper = json_value(format, "json_schema", json());
    if (json_value(format, "type", std::string()) == "json_schema" && !wrapper.is_object()) {
        throw invalid_request("response_format.json_schema: expected an object");
    }
    for (const json & owner : { format, wrapper }) {
        if (owner.is_object() && owner.contains("schema") && !owner.at("schema").is_object()) {
            throw invalid_request("response_format: the schema is not an object");
        }
    }
}

static json chat_data(const strata_frontend & f, json body) {
    if (!body.is_object()) {
        throw invalid_request("The body must be a JSON object");
    }
    without_nulls(body);
    check_format(body);
    strata::check_messages(body);
    strata::check_fields(body, false);
    if (body.contains("chat_parser") && !body.at("chat_parser").is_null()) {
        throw invalid_request("Field 'chat_parser': is set by the server");
    }
    const std::string name = forced_tool(body);
    const bool required = json_value(body, "tool_choice", std::string()) == "required";
    const json tools = json_value(body, "tools", json::array());
    if (required && (!tools.is_array() || tools.empty())) {
        throw invalid_request("tool_choice: there are no tools to choose from");
    }
    json data = name.empty() ? render(f, std::move(body)) : render_forced(f, body, name);
    if (required && json_value(data, "grammar", std::string()).empty()) {
        throw invalid_request("tool_choice: the chat template of this model cannot call tools");
    }
    return data;
}

// The request in llama.cpp's native form. Errors here have the type their exception gives them, as in llama-server,
// where this runs outside the handler that calls every error the client's.
static json native_data(const strata_frontend & f, int32_t kind, const std::string & body) {
    strata::check_json_text(body.data(), body.size());
    switch (kind) {
        case STRATA_KIND_COMPLETION:
        case STRATA_KIND_OAI_COMPLETION:
            return json::parse(body);
        case STRATA_KIND_OAI_CHAT:
            return chat_data(f, json::parse(body));
        case STRATA_KIND_INFILL:
            return infill_data(f, json::parse(body));
        default:
            throw std::invalid_argument("unknown kind of request");
    }
}

static task_response_type response_type(int32_t kind) {
    switch (kind) {
        case STRATA_KIND_OAI_COMPLETION: return TASK_RESPONSE_TYPE_OAI_CMPL;
        case STRATA_KIND_OAI_CHAT:       return TASK_RESPONSE_TYPE_OAI_CHAT;
        default:                         return TASK_RESPONSE_TYPE_NONE;
    }
}

// What a reply that is written at once would have to hold until its end.
static void check_probs(const strata_frontend & f, const task_params & p) {
    const int64_t n_ctx    = f.n_ctx_slot > 0 ? f.n_ctx_slot : 1 << 15;
    const int64_t n_tokens = p.n_predict < 0 ? n_ctx : std::min<int64_t>(p.n_predict, n_ctx);
    const int64_t n_probs  = std::min(p.sampling.n_probs, f.n_vocab);
    if (!p.stream && n_probs > 100 && n_probs * n_tokens > max_probs_kept) {
        throw invalid_request("\"n_probs\" is too large for a reply that is not streamed; set \"n_predict\" or \"stream\"");
    }
}

// Builds what can fail in the sampler. The chain itself cannot, so it is left out: DRY alone reads the whole vocabulary.
static void check_sampler(const strata_frontend & f, const task_params & p) {
    common_params_sampling s = strata::sampler_params(f, p);
    s.samplers.clear();
    s.logit_bias.clear();
    try {
        common_sampler_ptr(common_sampler_init(f.model, s));
    } catch (const std::exception & e) {
        throw invalid_request(std::string("Failed to initialize samplers: ") + e.what());
    }
}

static std::unique_ptr<strata_prepared> prepare(const strata_frontend & f, int32_t kind, const json & data) {
    const bool from_client = kind == STRATA_KIND_COMPLETION || kind == STRATA_KIND_OAI_COMPLETION || kind == STRATA_KIND_INFILL;
    strata::check_fields(data, from_client);

    auto inputs = tokenize_input_prompts(f.vocab, nullptr, data.at("prompt"), true, true, mtmd_helper_init_opt_default());
    auto delimiters = common_chat_msg_delimiters_parse(json_value(data, "message_delimiters", json::array()));
    delimiters.tokenize(f.vocab);

    auto request    = std::make_shared<strata_request>();
    request->vocab  = f.vocab;
    request->params = server_schema::eval_llama_cmpl_schema(f.vocab, f.params, f.params.sampling.logit_bias_eog, data);
    request->params.res_type          = response_type(kind);
    request->params.oaicompat_cmpl_id = gen_chatcmplid();
    request->params.oaicompat_model   = f.model_name;
    request->n_choices                = request->params.n_cmpl;

    auto p = std::make_unique<strata_prepared>();
    for (const auto & input : inputs) {
        const llama_tokens & tokens = input.get_tokens();
        for (const llama_token id : tokens) {
            if (id < 0 || id >= f.n_vocab) {
                throw invalid_request("Prompt contains invalid tokens");
            }
        }
        std::vector<int32_t> starts;
        for (const auto & span : input.find_message_spans(delimiters).spans) {
            starts.push_back((int32_t) span.pos);
        }
        p->message_starts.push_back(std::move(starts));
        request->prompts.push_back(tokens);
    }
    p->id_slot = json_value(data, "id_slot", -1);

    strata::check_grammar(common_grammar_value(request->params.sampling.grammar));
    check_probs(f, request->params);
    check_sampler(f, request->params);

    p->sampling = json::object();
    for (const auto & name : sampling_fields) {
        if (data.contains(name)) {
            p->sampling[name] = data.at(name);
        }
    }
    p->request = std::move(request);
    return p;
}

extern "C" strata_prepared * strata_prepare(strata_frontend * f, int32_t kind, const char * body, size_t n, char ** err) {
    return guarded(err, (strata_prepared *) nullptr, [&] {
        const json data = native_data(*f, kind, std::string(body, n));
        return guarded(err, (strata_prepared *) nullptr, [&] { return prepare(*f, kind, data).release(); },
            ERROR_TYPE_INVALID_REQUEST);
    });
}
