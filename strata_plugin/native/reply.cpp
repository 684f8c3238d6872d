// reply.cpp: results of one choice, written by llama-server's own server_task_result_cmpl_*.
#include "error.h"
#include "prepared.h"

#include "strata.h"

#include <cmath>

using strata::guarded;
using strata::to_text;

struct strata_reply {
    std::shared_ptr<const strata_request> request;
    size_t                                prompt;
    int32_t                               index;
    task_result_state                     state; // of the chat parser: text so far, what has been sent of it

    strata_reply(std::shared_ptr<const strata_request> r, size_t prompt, int32_t index) :
        request(std::move(r)), prompt(prompt), index(index), state(request->params.chat_parser_params) {}

    // /completion and /v1/completions never look at the parsed message
    bool parses_chat() const {
        return request->params.res_type != TASK_RESPONSE_TYPE_NONE &&
               request->params.res_type != TASK_RESPONSE_TYPE_OAI_CMPL;
    }
};

// llama-server keeps absolute times, of which only the differences are shown.
static server_slot_stats to_stats(const strata_stats & s) {
    server_slot_stats stats;
    if (!s.is_set) {
        return stats;
    }
    stats.n_prompt_cached    = s.n_prompt_cached;
    stats.n_prompt_processed = s.n_prompt_processed;
    stats.n_gen              = s.n_gen;
    stats.n_draft_tokens     = s.n_draft;
    stats.n_draft_accepted   = s.n_draft_accepted;
    stats.t_start            = 1; // µs; 0 means that there are no statistics
    stats.t_prompt_last      = stats.t_start + std::llround(s.prompt_ms * 1000);
    if (s.n_gen > 0) {
        stats.t_gen_last = stats.t_prompt_last + std::llround(s.gen_ms * 1000);
    }
    return stats;
}

static std::string bytes_of(const json & value) {
    if (value.is_string()) {
        return value;
    }
    std::string bytes;
    for (const auto & b : value) {
        bytes += (char) b.get<int>();
    }
    return bytes;
}

// "sent" is the text that went out with the token, which llama-server shows; without it the token's own text
static completion_token_output to_probs(const json & data) {
    completion_token_output out;
    out.tok          = data.at("id").get<int>();
    out.prob         = data.at("prob").get<float>();
    out.text_to_send = bytes_of(data.at(data.contains("sent") ? "sent" : "text"));
    for (const auto & p : data.at("probs")) {
        out.probs.push_back({ p.at("id").get<int>(), bytes_of(p.at("text")), p.at("prob").get<float>() });
    }
    return out;
}

static void merge_timings(json & owner, const json & extra) {
    if (!owner.is_object()) {
        return;
    }
    if (owner.contains("timings")) {
        for (const auto & item : extra.items()) {
            owner["timings"][item.key()] = item.value();
        }
    }
    if (owner.contains("__verbose")) { // a copy for debugging
        merge_timings(owner["__verbose"], extra);
    }
}

static char * write(json data, int32_t sse, const char * extra_timings) {
    if (extra_timings && *extra_timings) {
        const json extra = json::parse(extra_timings);
        if (data.is_array()) {
            for (auto & item : data) {
                merge_timings(item, extra);
            }
        } else {
            merge_timings(data, extra);
        }
    }
    if (!sse) {
        return to_text(safe_json_to_str(data));
    }
    if (data.is_null()) {
        return to_text("");
    }
    return to_text(format_oai_sse(data));
}

extern "C" strata_reply * strata_reply_new(strata_prepared * p, size_t prompt, int32_t index, char ** err) {
    return guarded(err, (strata_reply *) nullptr, [&] {
        if (prompt >= p->request->prompts.size() || index < 0) {
            throw std::invalid_argument("no such prompt or choice");
        }
        return new strata_reply(p->request, prompt, index);
    });
}

extern "C" void strata_reply_free(strata_reply * r) {
    delete r;
}

extern "C" char * strata_reply_chunk(strata_reply * r, const strata_chunk * c, int32_t sse, const char * extra_timings, char ** err) {
    return guarded(err, (char *) nullptr, [&] {
        enum { TOKENS, PROGRESS, BEGIN };
        const task_params & params = r->request->params;

        server_task_result_cmpl_partial res;
        res.index                 = r->index;
        res.is_progress           = c->kind == PROGRESS;
        res.is_begin              = c->kind == BEGIN;
        res.n_decoded             = c->n_decoded;
        res.n_prompt_tokens       = c->n_prompt;
        res.n_prompt_tokens_cache = c->n_cached;
        res.post_sampling_probs   = params.post_sampling_probs;
        res.verbose               = params.verbose;
        res.res_type              = params.res_type;
        res.oaicompat_model       = params.oaicompat_model;
        res.oaicompat_cmpl_id     = params.oaicompat_cmpl_id;
        res.stats                 = to_stats(c->stats);
        if (c->kind == TOKENS) {
            res.content.assign(c->text ? c->text : "", c->n_text);
            res.tokens.assign(c->tokens, c->tokens + c->n_tokens);
        } else if (c->kind == PROGRESS) {
            res.tokens.assign(1, 0); // llama-server shows its default token here
            res.progress.total     = c->n_prompt;
            res.progress.cache     = c->n_cached;
            res.progress.processed = c->progress_processed;
            res.progress.time_ms   = c->progress_ms;
        }
        if (c->probs && params.sampling.n_probs > 0) {
            res.prob_output              = to_probs(json::parse(c->probs));
            res.prob_output.text_to_send = res.content;
        }
        if (r->parses_chat()) {
            res.update(r->state);
        } else {
            res.is_updated = true;
        }
        return write(res.to_json(), sse, extra_timings);
    });
}

// The seed of a choice: choices of one prompt count up from the request's, which stays random when it was.
static uint32_t choice_seed(uint32_t seed, int32_t choice) {
    return seed == LLAMA_DEFAULT_SEED ? seed : seed + (uint32_t) choice;
}

extern "C" char * strata_reply_final(strata_reply * r, const strata_final * c, int32_t sse, const char * extra_timings, char ** err) {
    return guarded(err, (char *) nullptr, [&] {
        if (c->stop < STOP_TYPE_NONE || c->stop > STOP_TYPE_LIMIT) {
            throw std::invalid_argument("unknown reason to stop");
        }
        const strata_request & request = *r->request;
        const task_params &    params  = request.params;

        server_task_result_cmpl_final res;
        res.index                 = r->index;
        res.id_slot               = c->id_slot;
        res.content.assign(c->text ? c->text : "", c->n_text);
        res.tokens.assign(c->tokens, c->tokens + c->n_tokens);
        res.stream                = params.stream;
        res.include_usage         = params.include_usage;
        res.stats                 = to_stats(c->stats);
        res.response_fields       = params.response_fields;
        res.truncated             = c->truncated != 0;
        res.n_decoded             = c->n_decoded;
        res.n_prompt_tokens       = c->n_prompt;
        res.n_prompt_tokens_cache = c->n_cached;
        res.n_tokens_cached       = c->n_tokens_cached;
        res.has_new_line          = c->has_new_line != 0;
        res.stopping_word         = c->stopping_word ? c->stopping_word : "";
        res.stop                  = (stop_type) c->stop;
        res.post_sampling_probs   = params.post_sampling_probs;
        res.verbose               = params.verbose;
        res.res_type              = params.res_type;
        res.oaicompat_model       = params.oaicompat_model;
        res.oaicompat_cmpl_id     = params.oaicompat_cmpl_id;
        if (res.res_type == TASK_RESPONSE_TYPE_NONE || res.verbose) {
            res.prompt            = common_detokenize(request.vocab, request.prompts[r->prompt], true);
            res.generation_params = params;
            res.generation_params.sampling.seed = choice_seed(params.sampling.seed, r->index % request.n_choices);
        }
        if (c->probs && params.sampling.n_probs > 0) {
            for (const auto & token : json::parse(c->probs)) {
                res.probs_output.push_back(to_probs(token));
            }
        }
        if (r->parses_chat()) {
            res.update(r->state);
        } else {
            res.is_updated = true;
        }
        return write(res.to_json(), sse, extra_timings);
    });
}
