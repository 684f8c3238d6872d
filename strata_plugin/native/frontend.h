// frontend.h: what all requests of one model share.
#pragma once

#include "server-common.h"

struct strata_frontend {
    const llama_model * model = nullptr;
    const llama_vocab * vocab = nullptr;
    int32_t             n_vocab    = 0;
    int32_t             n_ctx_slot = 0; // tokens one request may use, 0: unknown

    common_params      params;      // defaults of requests, as llama-server reads them from its command line
    server_chat_params chat = {};   // chat.tmpls is empty in a frontend for samplers only
    std::string        model_name;

    // throws when this frontend was made without templates
    const server_chat_params & chat_params() const;
};

namespace strata {

// llama-server's `default_generation_settings.params` of /props
json default_params(const strata_frontend & f);

} // namespace strata
