// prepared.h: one API request after parsing, rendering and tokenising.
#pragma once

#include "frontend.h"
#include "server-task.h"

#include <memory>
#include <string>
#include <vector>

// What replies need of a request. Shared, because replies may outlive the strata_prepared they were made from.
struct strata_request {
    task_params               params;
    int32_t                   n_choices = 1; // per prompt
    std::vector<llama_tokens> prompts;
    const llama_vocab *       vocab = nullptr;
};

struct strata_prepared {
    std::shared_ptr<const strata_request> request;

    json                              sampling;       // for strata_sampler_new()
    std::vector<std::vector<int32_t>> message_starts; // per prompt
    int32_t                           id_slot = -1;
};
