// sampler_params.h: what a sampler is really built with.
#pragma once

#include "error.h"
#include "frontend.h"
#include "limits.h"
#include "server-task.h"

#include <algorithm>

namespace strata {

// The infill sampler compares each candidate with each other one: over a whole vocabulary that takes minutes per token,
// in which no other request gets on.
inline void check_infill(const common_params_sampling & s) {
    constexpr int32_t max_candidates = 1000;
    bool few = s.mirostat != 0; // then `samplers` is not used
    for (const auto type : s.samplers) {
        few = few || (type == COMMON_SAMPLER_TYPE_TOP_K && s.top_k > 0 && s.top_k <= max_candidates);
        if (type == COMMON_SAMPLER_TYPE_INFILL && !few) {
            throw invalid_request("Field 'samplers': \"infill\" needs \"top_k\" before it, with at most " +
                                  std::to_string(max_candidates) + " candidates");
        }
    }
}

// The request's sampling parameters, checked and with buffers no larger than a sequence can use: llama.cpp reserves
// memory for every token of repeat_last_n and dry_penalty_last_n, and more than all of them cannot be penalised.
inline common_params_sampling sampler_params(const strata_frontend & f, const task_params & p) {
    check_sampling(p.sampling);
    common_params_sampling s = p.sampling;
    const int32_t n_max  = f.n_ctx_slot > 0 ? f.n_ctx_slot : 1 << 20;
    s.penalty_last_n     = std::min(s.penalty_last_n, n_max);
    s.dry_penalty_last_n = std::min(s.dry_penalty_last_n, n_max);
    check_infill(s);
    s.backend_sampling   = false; // the engine samples on the CPU; a state that can be saved needs that
    s.no_perf            = true;
    return s;
}

} // namespace strata
