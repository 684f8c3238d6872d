#include "frontend.h"

#include "error.h"
#include "limits.h"
#include "server-schema.h"

#include "strata.h"

#include "log.h"
#include "sampling.h"

#include <cmath>
#include <cstdlib>

using strata::guarded;

const server_chat_params & strata_frontend::chat_params() const {
    if (!chat.tmpls) {
        throw std::runtime_error("this frontend was made without chat templates");
    }
    return chat;
}

json strata::default_params(const strata_frontend & f) {
    task_params defaults;
    defaults.sampling = f.params.sampling;
    return defaults.to_json(/* only_metrics = */ true);
}

// Sampling defaults that the model's own metadata brings. llama.cpp does this inside common_init_from_params(), which
// also makes a context; flags given by the user win, so they are applied after this.
static void sampling_from_model(const llama_model * model, common_params_sampling & s) {
    auto text = [model](llama_model_meta_key key) {
        char buf[512] = { 0 };
        return llama_model_meta_val_str(model, llama_model_meta_key_str(key), buf, sizeof(buf)) > 0 ? std::string(buf)
                                                                                                    : std::string();
    };
    auto read_int = [&text](llama_model_meta_key key, int32_t & dst) {
        const std::string t = text(key);
        char * end = nullptr;
        const long v = std::strtol(t.c_str(), &end, 10);
        if (end != t.c_str()) {
            dst = (int32_t) v;
        }
    };
    auto read_float = [&text](llama_model_meta_key key, float & dst) {
        const std::string t = text(key);
        char * end = nullptr;
        const float v = std::strtof(t.c_str(), &end);
        if (end != t.c_str()) {
            dst = v;
        }
    };

    const std::string sequence = text(LLAMA_MODEL_META_KEY_SAMPLING_SEQUENCE);
    if (!sequence.empty()) {
        s.samplers = common_sampler_types_from_names(string_split<std::string>(sequence, ';'));
    }
    read_int  (LLAMA_MODEL_META_KEY_SAMPLING_TOP_K,           s.top_k);
    read_float(LLAMA_MODEL_META_KEY_SAMPLING_TOP_P,           s.top_p);
    read_float(LLAMA_MODEL_META_KEY_SAMPLING_MIN_P,           s.min_p);
    read_float(LLAMA_MODEL_META_KEY_SAMPLING_XTC_PROBABILITY, s.xtc_probability);
    read_float(LLAMA_MODEL_META_KEY_SAMPLING_XTC_THRESHOLD,   s.xtc_threshold);
    read_float(LLAMA_MODEL_META_KEY_SAMPLING_TEMP,            s.temp);
    read_int  (LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_LAST_N,  s.penalty_last_n);
    read_float(LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_REPEAT,  s.penalty_repeat);
    read_int  (LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT,        s.mirostat);
    read_float(LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_TAU,    s.mirostat_tau);
    read_float(LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_ETA,    s.mirostat_eta);
}

static void init_params(strata_frontend & f, const json & config) {
    common_params & p = f.params;

    p.n_parallel        = config.value("n_parallel", 1);
    p.n_batch           = config.value("n_batch", p.n_batch);
    p.n_predict         = config.value("n_predict", p.n_predict);
    p.n_keep            = config.value("n_keep", p.n_keep);
    p.n_cache_reuse     = config.value("n_cache_reuse", p.n_cache_reuse);
    p.cache_prompt      = config.value("cache_prompt", p.cache_prompt);
    p.antiprompt        = config.value("antiprompt", p.antiprompt);
    p.sse_ping_interval = config.value("sse_ping_interval", p.sse_ping_interval);
    p.special           = config.value("special", p.special);
    p.spm_infill        = config.value("spm_infill", p.spm_infill);
    p.verbosity         = config.value("verbosity", p.verbosity);
    p.use_jinja         = config.value("use_jinja", p.use_jinja);
    p.prefill_assistant = config.value("prefill_assistant", p.prefill_assistant);
    p.chat_template     = config.value("chat_template", "");
    p.enable_reasoning  = config.value("reasoning", p.enable_reasoning);
    p.force_pure_content_parser = config.value("skip_chat_parsing", p.force_pure_content_parser);
    if (config.contains("reasoning_format")) {
        p.reasoning_format = common_reasoning_format_from_name(config.at("reasoning_format"));
    }
    if (p.n_parallel < 1) {
        throw std::invalid_argument("\"n_parallel\" must be at least 1");
    }
    common_log_set_verbosity_thold(p.verbosity);

    // what llama-server's command line makes of --reasoning and --chat-template-kwargs
    p.default_template_kwargs["preserve_reasoning"] = "true";
    if (p.enable_reasoning >= 0) {
        p.default_template_kwargs["enable_thinking"] = p.enable_reasoning ? "true" : "false";
    }
    const json kwargs = config.value("chat_template_kwargs", json::object());
    for (const auto & item : kwargs.items()) {
        p.default_template_kwargs[item.key()] = item.value().dump();
    }

    sampling_from_model(f.model, p.sampling);
    for (llama_token id = 0; id < f.n_vocab; id++) {
        if (llama_vocab_is_eog(f.vocab, id)) {
            p.sampling.logit_bias_eog.push_back({ id, -INFINITY });
        }
    }
    const json sampling = config.value("sampling", json::object());
    strata::check_fields(sampling, true);
    p.sampling = server_schema::eval_llama_cmpl_schema(f.vocab, p, p.sampling.logit_bias_eog, sampling).sampling;
    p.sampling.reasoning_budget_tokens  = config.value("reasoning_budget", -1);
    p.sampling.reasoning_budget_message = config.value("reasoning_budget_message", "");
    strata::check_sampling(p.sampling);
}

static void init_chat(strata_frontend & f) {
    const common_params & p = f.params;
    if (!p.chat_template.empty() && !common_chat_verify_template(p.chat_template, p.use_jinja)) {
        throw std::invalid_argument("the supplied chat template is not supported");
    }
    f.chat.tmpls                    = common_chat_templates_init(f.model, p.chat_template);
    f.chat.use_jinja                = p.use_jinja;
    f.chat.prefill_assistant        = p.prefill_assistant;
    f.chat.reasoning_format         = p.reasoning_format;
    f.chat.chat_template_kwargs     = p.default_template_kwargs;
    f.chat.reasoning_budget         = p.sampling.reasoning_budget_tokens;
    f.chat.reasoning_budget_message = p.sampling.reasoning_budget_message;
    f.chat.force_pure_content       = p.force_pure_content_parser;
    f.chat.enable_thinking          = p.enable_reasoning != 0 && p.use_jinja &&
                                      common_chat_templates_support_enable_thinking(f.chat.tmpls.get());
}

extern "C" strata_frontend * strata_frontend_new(const struct llama_model * model, const char * config, char ** err) {
    return guarded(err, (strata_frontend *) nullptr, [&] {
        if (!model) {
            throw std::invalid_argument("no model");
        }
        const json c = json::parse(config ? config : "{}");
        auto f = std::make_unique<strata_frontend>();
        f->model      = model;
        f->vocab      = llama_model_get_vocab(model);
        f->n_vocab    = llama_vocab_n_tokens(f->vocab);
        f->n_ctx_slot = c.value("n_ctx_slot", 0);
        f->model_name = c.value("model_name", "");
        init_params(*f, c);
        if (c.value("templates", true)) {
            init_chat(*f);
        }
        return f.release();
    });
}

extern "C" void strata_frontend_free(strata_frontend * f) {
    delete f;
}

extern "C" char * strata_frontend_info(strata_frontend * f, char ** err) {
    return guarded(err, (char *) nullptr, [&] {
        auto piece = [f](llama_token id) {
            return id == LLAMA_TOKEN_NULL ? std::string() : common_token_to_piece(f->vocab, id, true);
        };
        json info = {
            {"media_marker",   get_media_marker()},
            {"bos_token",      piece(llama_vocab_bos(f->vocab))},
            {"eos_token",      piece(llama_vocab_eos(f->vocab))},
            {"default_params", strata::default_params(*f)},
        };
        if (f->chat.tmpls) {
            const auto * tmpls = f->chat.tmpls.get();
            const std::string tool_use = common_chat_templates_source(tmpls, "tool_use");
            info["chat_template"]      = common_chat_templates_source(tmpls, "");
            info["chat_template_caps"] = common_chat_templates_get_caps(tmpls);
            info["example_prompt"]     = common_chat_format_example(tmpls, f->chat.use_jinja, f->chat.chat_template_kwargs);
            if (!tool_use.empty()) {
                info["chat_template_tool_use"] = tool_use;
            }
        }
        return strata::to_text(info.dump_safe());
    });
}
