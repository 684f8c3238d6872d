// greedy.h: the most likely token without a list of candidates, where a sampler chain could only choose that one.
//
// common_sampler_sample() copies the whole vocabulary into candidates for every row, 0.18 ms for 49,152 tokens on a
// CPU core: as much as all of our own work per token. At temperature 0 with nothing else in the chain that may
// remove or change the most likely token, its logit is all that matters.
#pragma once

#include "common.h"
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

namespace strata {

class greedy_choice {
public:
    // empty when the chain could choose another token
    static std::optional<greedy_choice> of(const common_params_sampling & s, const llama_vocab * vocab) {
        constexpr size_t max_bias = 64; // each costs two writes per row
        const auto & types  = s.samplers;
        const bool has_temp = std::find(types.begin(), types.end(), COMMON_SAMPLER_TYPE_TEMPERATURE) != types.end();
        const bool infill   = std::find(types.begin(), types.end(), COMMON_SAMPLER_TYPE_INFILL)      != types.end();
        const bool penalised =
            s.penalty_repeat != 1.0f || s.penalty_freq != 0.0f || s.penalty_present != 0.0f || s.dry_multiplier != 0.0f;
        const bool constrained = !common_grammar_value(s.grammar).empty() || s.reasoning_control ||
            s.reasoning_budget_tokens >= 0 || !s.reasoning_budget_start.empty() || !s.reasoning_budget_end.empty();
        if (s.temp > 0.0f || s.dynatemp_range != 0.0f || s.mirostat != 0 || s.adaptive_target >= 0.0f || !has_temp ||
                infill || penalised || constrained || s.xtc_probability > 0.0f || s.typ_p < 1.0f || s.n_probs > 0 ||
                s.logit_bias.size() > max_bias) {
            return std::nullopt;
        }
        greedy_choice g;
        g.bias    = s.logit_bias;
        g.n_vocab = llama_vocab_n_tokens(vocab);
        return g;
    }

    // LLAMA_TOKEN_NULL when no logit is finite; the logits are left as they were
    llama_token choose(float * logits) const {
        std::vector<float> before;
        before.reserve(bias.size());
        for (const auto & b : bias) {
            before.push_back(logits[b.token]);
            logits[b.token] += b.bias;
        }
        const llama_token best = argmax(logits);
        for (size_t i = bias.size(); i-- > 0;) { // backwards: a token may be named twice
            logits[bias[i].token] = before[i];
        }
        return best;
    }

private:
    std::vector<llama_logit_bias> bias;
    int32_t n_vocab = 0;

    llama_token argmax(const float * logits) const {
        constexpr int lanes = 32; // independent maxima, so that the compiler can vectorise
        float m[lanes];
        std::fill(m, m + lanes, -INFINITY);
        int32_t i = 0;
        for (; i + lanes <= n_vocab; i += lanes) {
            for (int k = 0; k < lanes; k++) {
                m[k] = logits[i + k] > m[k] ? logits[i + k] : m[k];
            }
        }
        float max = *std::max_element(m, m + lanes);
        for (; i < n_vocab; i++) {
            max = std::max(max, logits[i]);
        }
        if (!std::isfinite(max)) {
            return LLAMA_TOKEN_NULL;
        }
        return (llama_token) (std::find(logits, logits + n_vocab, max) - logits);
    }
};

} // namespace strata
