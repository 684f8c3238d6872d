// sampler.cpp: one sequence's sampler, its state, and sampling all rows of a step in one call.
#include "error.h"
#include "frontend.h"
#include "greedy.h"
#include "limits.h"
#include "sampler_params.h"
#include "server-schema.h"

#include "strata.h"

#include "llama-ext.h"
#include "sampling.h"

#include <algorithm>
#include <cstring>

#ifndef LLAMA_SAMPLER_STATE
#  error "libstrata needs llama.cpp with patches/0002-sampler-state.patch: llama_sampler_state_get() is missing"
#endif

using strata::guarded;

struct strata_sampler {
    const strata_frontend * frontend = nullptr;
    common_sampler_ptr      smpl;
    std::optional<strata::greedy_choice> greedy; // set where the chain can only choose the most likely token
    std::set<llama_token>   preserved_tokens;
    int32_t                 n_probs             = 0;
    bool                    post_sampling_probs = false;
    uint32_t                n_accepted          = 0;
    bool                    has_candidates      = false; // since the last row sampled here
    std::string             error;

    bool shows_special(llama_token id) const {
        return frontend->params.special || preserved_tokens.count(id) > 0;
    }
};

extern "C" strata_sampler * strata_sampler_new(strata_frontend * f, const char * sampling, size_t n, char ** err) {
    return guarded(err, (strata_sampler *) nullptr, [&] {
        const json data = json::parse(std::string(sampling, n));
        const task_params params =
            server_schema::eval_llama_cmpl_schema(f->vocab, f->params, f->params.sampling.logit_bias_eog, data);
        common_params_sampling sampling_params = strata::sampler_params(*f, params);

        auto s = std::make_unique<strata_sampler>();
        s->frontend            = f;
        s->smpl.reset(common_sampler_init(f->model, sampling_params));
        s->greedy              = strata::greedy_choice::of(sampling_params, f->vocab);
        s->preserved_tokens    = sampling_params.preserved_tokens;
        s->n_probs             = sampling_params.n_probs;
        s->post_sampling_probs = params.post_sampling_probs;
        return s.release();
    }, ERROR_TYPE_INVALID_REQUEST);
}

extern "C" strata_sampler * strata_sampler_clone(strata_sampler * s, char ** err) {
    return guarded(err, (strata_sampler *) nullptr, [&] {
        auto copy = std::make_unique<strata_sampler>();
        copy->frontend            = s->frontend;
        copy->smpl.reset(common_sampler_clone(s->smpl.get()));
        copy->greedy              = s->greedy;
        copy->preserved_tokens    = s->preserved_tokens;
        copy->n_probs             = s->n_probs;
        copy->post_sampling_probs = s->post_sampling_probs;
        copy->n_accepted          = s->n_accepted;
        return copy.release();
    });
}

extern "C" void strata_sampler_free(strata_sampler * s) {
    delete s;
}

static void accept(strata_sampler & s, llama_token id, bool is_generated) {
    if (id < 0 || id >= s.frontend->n_vocab) {
        throw std::invalid_argument("invalid token " + std::to_string(id));
    }
    common_sampler_accept(s.smpl.get(), id, is_generated);
    s.n_accepted++;
}

extern "C" int32_t strata_sampler_accept(strata_sampler * s, const int32_t * tokens, size_t n, int32_t is_generated, char ** err) {
    return guarded(err, -1, [&] {
        for (size_t i = 0; i < n; i++) {
            accept(*s, tokens[i], is_generated != 0);
        }
        return 0;
    });
}

extern "C" int32_t strata_sample_rows(struct llama_context * ctx, size_t n, strata_sampler ** samplers, const int32_t * idx, int32_t * tokens) {
    int32_t n_failed = 0;
    for (size_t i = 0; i < n; i++) {
        strata_sampler & s = *samplers[i];
        tokens[i] = -1;
        try {
            strata::abort_guard guard;
            s.error.clear();
            s.has_candidates = false;
            llama_token id = LLAMA_TOKEN_NULL;
            if (s.greedy) {
                float * logits = llama_get_logits_ith(ctx, idx[i]);
                id = logits ? s.greedy->choose(logits) : LLAMA_TOKEN_NULL;
            }
            if (id == LLAMA_TOKEN_NULL) { // and what is wrong with the row is said there
                id = common_sampler_sample(s.smpl.get(), ctx, idx[i]);
            }
            accept(s, id, true);
            s.has_candidates = true; // probabilities are not asked for where `greedy` is set
            tokens[i] = id;
        } catch (const std::exception & e) {
            s.error = e.what();
            n_failed++;
        }
    }
    return n_failed;
}

extern "C" const char * strata_sampler_error(const strata_sampler * s) {
    return s->error.c_str();
}

extern "C" int32_t strata_sampler_piece(strata_sampler * s, int32_t token, char * buf, int32_t size) {
    if (token < 0 || token >= s->frontend->n_vocab) {
        return 0;
    }
    return llama_token_to_piece(s->frontend->vocab, token, buf, size, 0, s->shows_special(token));
}

static json to_bytes(const std::string & text) {
    return std::vector<unsigned char>(text.begin(), text.end());
}

extern "C" char * strata_sampler_probs(strata_sampler * s, struct llama_context * ctx, int32_t idx, int32_t token, char ** err) {
    return guarded(err, (char *) nullptr, [&] {
        if (!s->has_candidates) {
            throw std::logic_error("no row has been sampled");
        }
        const llama_vocab * vocab   = s->frontend->vocab;
        const bool          special = s->frontend->params.special;
        const size_t        n_asked = std::max(s->n_probs, 0);

        std::vector<llama_token_data> own;
        const llama_token_data *      data;
        size_t                        n_data;
        if (s->post_sampling_probs) {
            const auto * candidates = common_sampler_get_candidates(s->smpl.get(), true);
            data   = candidates->data;
            n_data = candidates->size;
        } else {
            own    = get_token_probabilities(ctx, idx, n_asked);
            data   = own.data();
            n_data = own.size();
        }

        float prob = 1.0f;
        for (size_t i = 0; i < n_data; i++) {
            if (data[i].id == token) {
                prob = data[i].p;
                break;
            }
        }
        json probs = json::array();
        for (size_t i = 0; i < std::min(n_asked, n_data); i++) {
            if (s->post_sampling_probs && data[i].p == 0.0f) {
                break; // some samplers keep impossible tokens, others drop them
            }
            probs.push_back({
                {"id",   data[i].id},
                {"prob", data[i].p},
                {"text", to_bytes(common_token_to_piece(vocab, data[i].id, special))},
            });
        }
        return strata::to_text(json {
            {"id",    token},
            {"prob",  prob},
            {"text",  to_bytes(common_token_to_piece(vocab, token, s->shows_special(token)))},
            {"probs", probs},
        }.dump_safe());
    });
}

extern "C" size_t strata_sampler_save(strata_sampler * s, uint8_t * buf, size_t size) {
    try {
        const std::vector<uint8_t> state = llama_sampler_state_get(common_sampler_get(s->smpl.get()));
        const size_t needed = sizeof(s->n_accepted) + state.size();
        if (buf && size >= needed) {
            std::memcpy(buf, &s->n_accepted, sizeof(s->n_accepted));
            std::memcpy(buf + sizeof(s->n_accepted), state.data(), state.size());
        }
        return needed;
    } catch (...) {
        return 0; // out of memory
    }
}

extern "C" int32_t strata_sampler_load(strata_sampler * s, const uint8_t * buf, size_t size, char ** err) {
    return guarded(err, -1, [&] {
        uint32_t n_accepted = 0;
        if (size >= sizeof(n_accepted)) {
            std::memcpy(&n_accepted, buf, sizeof(n_accepted));
        }
        if (size < sizeof(n_accepted) || n_accepted != s->n_accepted) {
            throw std::invalid_argument("the state belongs to " + std::to_string(n_accepted) +
                " accepted tokens, but this sampler has accepted " + std::to_string(s->n_accepted));
        }
        if (!llama_sampler_state_set(common_sampler_get(s->smpl.get()), buf + sizeof(n_accepted), size - sizeof(n_accepted))) {
            throw std::invalid_argument("the state belongs to a sampler of another request");
        }
        return 0;
    });
}

extern "C" uint32_t strata_sampler_seed(const strata_sampler * s) {
    return common_sampler_get_seed(s->smpl.get());
}
