// Replays batches on plain llama.cpp and writes the logits of every output row: the reference that the
// engine is compared with. Shares no code with it.
//
// usage: reference MODEL N_CTX N_BATCH N_UBATCH N_SEQ_MAX N_THREADS N_VOCAB KV_UNIFIED < steps > logits
// steps, binary int32: n_tokens, then n_tokens x (token, position, sequence, output); also
//   -1 sequence start: drop positions from `start` on; -2 source target n: share a prefix
// logits, binary float32: n_vocab values for each output row, in order
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>

static void quiet(enum ggml_log_level level, const char * text, void * user) {
    (void) user;
    if (level >= GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static int read_int(int32_t * value) {
    return fread(value, sizeof(*value), 1, stdin) == 1;
}

int main(int argc, char ** argv) {
    if (argc != 9) {
        return 2;
    }
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx           = atoi(argv[2]);
    params.n_batch         = atoi(argv[3]);
    params.n_ubatch        = atoi(argv[4]);
    params.n_seq_max       = atoi(argv[5]);
    params.n_outputs_max   = params.n_seq_max;
    params.n_threads       = atoi(argv[6]);
    params.n_threads_batch = params.n_threads;
    params.kv_unified      = atoi(argv[8]) != 0;
    const size_t n_vocab   = atoi(argv[7]);
    struct llama_context * ctx = model ? llama_init_from_model(model, params) : NULL;
    if (!ctx) {
        return 3;
    }
    llama_memory_t memory = llama_get_memory(ctx);
    struct llama_batch batch = llama_batch_init(params.n_batch, 0, 1);
    int32_t n;
    while (read_int(&n)) {
        int32_t a[4];
        if (n == -1) {
            if (fread(a, sizeof(int32_t), 2, stdin) != 2) { return 4; }
            llama_memory_seq_rm(memory, a[0], a[1] > 0 ? a[1] : -1, -1);
            continue;
        }
        if (n == -2) {
            if (fread(a, sizeof(int32_t), 3, stdin) != 3) { return 4; }
            llama_memory_seq_cp(memory, a[0], a[1], a[2] < 0 ? -1 : 0, a[2]);
            continue;
        }
        for (int i = 0; i < n; i++) {
            if (fread(a, sizeof(int32_t), 4, stdin) != 4) { return 4; }
            batch.token[i]     = a[0];
            batch.pos[i]       = a[1];
            batch.n_seq_id[i]  = 1;
            batch.seq_id[i][0] = a[2];
            batch.logits[i]    = (int8_t) a[3];
        }
        batch.n_tokens = n;
        if (llama_decode(ctx, batch) != 0) {
            return 5;
        }
        for (int i = 0; i < n; i++) {
            if (batch.logits[i] && fwrite(llama_get_logits_ith(ctx, i), sizeof(float), n_vocab, stdout) != n_vocab) {
                return 6;
            }
        }
    }
    llama_batch_free(batch);
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
