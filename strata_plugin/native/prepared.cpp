#include "prepared.h"

#include "error.h"

#include "strata.h"

using strata::guarded;
using strata::to_text;

extern "C" void strata_prepared_free(strata_prepared * p) {
    delete p;
}

extern "C" char * strata_prepared_info(strata_prepared * p, char ** err) {
    return guarded(err, (char *) nullptr, [&] {
        const task_params & params = p->request->params;
        json lora = json::array();
        for (const auto & item : params.lora) {
            lora.push_back({ {"id", item.first}, {"scale", item.second} });
        }
        json starts = json::array();
        for (const auto & positions : p->message_starts) {
            starts.push_back(positions);
        }
        return to_text(json {
            {"n_prompts",           p->request->prompts.size()},
            {"n_cmpl",              params.n_cmpl},
            {"stream",              params.stream},
            {"include_usage",       params.include_usage},
            {"n_predict",           params.n_predict},
            {"n_keep",              params.n_keep},
            {"n_discard",           params.n_discard},
            {"n_indent",            params.n_indent},
            {"n_probs",             params.sampling.n_probs},
            {"post_sampling_probs", params.post_sampling_probs},
            {"t_max_predict_ms",    params.t_max_predict_ms},
            {"return_tokens",       params.return_tokens},
            {"return_progress",     params.return_progress},
            {"timings_per_token",   params.timings_per_token},
            {"cache_prompt",        params.cache_prompt},
            {"sse_ping_interval",   params.sse_ping_interval},
            {"id_slot",             p->id_slot},
            {"seed",                params.sampling.seed},
            {"stop",                params.antiprompt},
            {"lora",                lora},
            {"message_starts",      starts},
            {"id",                  params.oaicompat_cmpl_id},
        }.dump_safe());
    });
}

extern "C" const int32_t * strata_prepared_tokens(strata_prepared * p, size_t prompt, size_t * n_tokens) {
    if (prompt >= p->request->prompts.size()) {
        *n_tokens = 0;
        return nullptr;
    }
    const llama_tokens & tokens = p->request->prompts[prompt];
    *n_tokens = tokens.size();
    return tokens.data();
}

extern "C" char * strata_prepared_sampling(strata_prepared * p, char ** err) {
    return guarded(err, (char *) nullptr, [&] { return to_text(p->sampling.dump_safe()); });
}

extern "C" char * strata_prepared_settings(strata_prepared * p, int32_t only_metrics, char ** err) {
    return guarded(err, (char *) nullptr, [&] {
        return to_text(p->request->params.to_json(only_metrics != 0).dump_safe());
    });
}
