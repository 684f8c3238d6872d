// strata.h: a C API over the C++ parts of llama.cpp that llama-server itself uses (common/ and the request and
// reply code in tools/server/), so that requests are read, samplers built and replies written exactly as there.
//
// Rules of the interface
//  - Text in and out is UTF-8. JSON in, JSON out. Returned `char *` belongs to the caller: strata_free().
//  - No C++ exception crosses it. A function that can fail takes `char ** err`; on failure it returns NULL (or a
//    negative number) and stores a JSON error in llama-server's form:
//      {"code":400,"message":"...","type":"invalid_request_error"}
//  - Handles are not thread-safe, except a frontend, which is read-only after strata_frontend_new().
//  - STRATA_API_VERSION grows with each incompatible change; the Python side refuses any other.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#  define STRATA_API __declspec(dllexport)
#else
#  define STRATA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define STRATA_API_VERSION 4

struct llama_model;
struct llama_context;

typedef struct strata_frontend strata_frontend; // vocabulary, chat templates and request defaults of one model
typedef struct strata_prepared strata_prepared; // one API request, parsed, rendered, tokenised and checked
typedef struct strata_reply    strata_reply;    // writes one choice's results in the dialect of its request
typedef struct strata_sampler  strata_sampler;  // one sequence's common_sampler

STRATA_API int32_t strata_api_version(void);
// {"llama_commit","build_number","compiler","target","patches":[...]}
STRATA_API char *  strata_build_info(void);
STRATA_API void    strata_free(char * text);

// ---- frontend: works on a vocabulary-only model (HTTP process) and on a whole one (engine process) ----------

// config: {"model_name", "n_parallel", "n_ctx_slot", "n_batch", "n_predict", "n_keep", "n_cache_reuse", "cache_prompt",
//   "antiprompt":[...], "sse_ping_interval", "special", "spm_infill", "verbosity",
//   "sampling": {request-field names of llama-server: temperature, top_k, seed, samplers, grammar, json_schema, ...},
//   "templates": bool (false: samplers only), "chat_template", "use_jinja", "prefill_assistant", "reasoning_format",
//   "reasoning": -1|0|1, "reasoning_budget", "reasoning_budget_message", "chat_template_kwargs": {...},
//   "skip_chat_parsing": bool}; every key is optional.
STRATA_API strata_frontend * strata_frontend_new(const struct llama_model * model, const char * config, char ** err);
STRATA_API void              strata_frontend_free(strata_frontend * f);
// {"chat_template","chat_template_tool_use","chat_template_caps":{..},"bos_token","eos_token","media_marker",
//  "default_params":{..}, "example_prompt"}
STRATA_API char * strata_frontend_info(strata_frontend * f, char ** err);

// one function for each stateless route: body in, reply body out
STRATA_API char * strata_tokenize      (strata_frontend * f, const char * body, size_t n, char ** err);
STRATA_API char * strata_detokenize    (strata_frontend * f, const char * body, size_t n, char ** err);
STRATA_API char * strata_apply_template(strata_frontend * f, const char * body, size_t n, char ** err);
// what is to be embedded, as in "input" of POST /v1/embeddings -> [[token ids], ...]
STRATA_API char * strata_embedding_inputs(strata_frontend * f, const char * body, size_t n, char ** err);
// {"query":"...", "documents":["...", ...]} -> [[token ids], ...], one for each document
STRATA_API char * strata_rerank_inputs(strata_frontend * f, const char * body, size_t n, char ** err);
// {"schema":{..}} -> {"grammar":"..."}
STRATA_API char * strata_schema_to_grammar(const char * body, size_t n, char ** err);
// {"text", "partial":bool, + the chat parser fields of a rendered request (chat_format, chat_parser, ...)}
//   -> {"role","content","reasoning_content","tool_calls"}
STRATA_API char * strata_chat_parse(strata_frontend * f, const char * body, size_t n, char ** err);

// ---- requests ------------------------------------------------------------------------------------------------

enum strata_kind {
    STRATA_KIND_COMPLETION     = 0, // POST /completion
    STRATA_KIND_OAI_COMPLETION = 1, // POST /v1/completions
    STRATA_KIND_OAI_CHAT       = 2, // POST /v1/chat/completions
    STRATA_KIND_INFILL         = 3, // POST /infill
};

// Parses, renders, tokenises, and builds the sampler once to check it (grammar, triggers): what llama-server would
// refuse is refused here, before anything is queued. So is what would end or stall a process, see limits.h.
STRATA_API strata_prepared * strata_prepare(strata_frontend * f, int32_t kind, const char * body, size_t n, char ** err);
STRATA_API void              strata_prepared_free(strata_prepared * p);
// {"n_prompts","n_cmpl","stream","include_usage","n_predict","n_keep","n_discard","n_indent","n_probs",
//  "post_sampling_probs","t_max_predict_ms","return_tokens","return_progress","timings_per_token","cache_prompt",
//  "sse_ping_interval","id_slot","seed","stop":[..],"lora":[{"id","scale"}],"message_starts":[[positions] per prompt],
//  "id"}   ("id" is the completion id, e.g. chatcmpl-...)
STRATA_API char *          strata_prepared_info(strata_prepared * p, char ** err);
STRATA_API const int32_t * strata_prepared_tokens(strata_prepared * p, size_t prompt, size_t * n_tokens);
// what strata_sampler_new() in the engine process needs: the request without prompt, messages and tools
STRATA_API char *          strata_prepared_sampling(strata_prepared * p, char ** err);
// the request's settings as /slots and /completion show them (only_metrics: the short form of /slots)
STRATA_API char *          strata_prepared_settings(strata_prepared * p, int32_t only_metrics, char ** err);

// ---- replies -------------------------------------------------------------------------------------------------

typedef struct strata_stats {   // llama-server's `timings`; is_set = 0: none
    int32_t  is_set;
    uint64_t n_prompt_cached, n_prompt_processed, n_gen;
    uint64_t n_draft, n_draft_accepted;
    double   prompt_ms, gen_ms; // gen_ms counts from the end of the prompt to the last token
} strata_stats;

typedef struct strata_chunk {   // one streamed piece
    int32_t kind;               // 0 token(s), 1 prompt progress, 2 begin (headers only; reply is "" or an opening event)
    const char *    text;       // bytes that may be sent now (whole UTF-8)
    size_t          n_text;
    const int32_t * tokens;
    size_t          n_tokens;
    int32_t n_decoded, n_prompt, n_cached;
    int32_t progress_processed; // includes n_cached
    int64_t progress_ms;
    strata_stats stats;         // set when the request has timings_per_token, and with the token that ends a stop string
    const char * probs;         // JSON from strata_sampler_probs() or NULL
} strata_chunk;

typedef struct strata_final {   // the end of a choice
    const char *    text;       // whole text when not streaming; when streaming what was not sent yet
    size_t          n_text;
    const int32_t * tokens;
    size_t          n_tokens;
    int32_t id_slot;
    int32_t stop;               // 0 none, 1 eos, 2 word, 3 limit
    const char * stopping_word; // or NULL
    int32_t truncated, has_new_line;
    int32_t n_decoded, n_prompt, n_cached, n_tokens_cached;
    strata_stats stats;
    const char * probs;         // JSON array of strata_sampler_probs() objects, without those of a stop string, or NULL;
                                // "sent" in an object: the text that went out with the token, shown instead of "text"
} strata_final;

// index: the choice's number in the reply; prompt: which prompt of the request it answers
STRATA_API strata_reply * strata_reply_new(strata_prepared * p, size_t prompt, int32_t index, char ** err);
STRATA_API void           strata_reply_free(strata_reply * r);
// sse = 0: the JSON value llama-server would write (object, array of objects, or "null"); sse = 1: the bytes of its
// event stream, framing included, without the "[DONE]" that ends a whole stream. extra_timings: a JSON object merged into
// every "timings", or NULL.
STRATA_API char * strata_reply_chunk(strata_reply * r, const strata_chunk * c, int32_t sse, const char * extra_timings, char ** err);
STRATA_API char * strata_reply_final(strata_reply * r, const strata_final * c, int32_t sse, const char * extra_timings, char ** err);

// ---- sampling (engine process) -------------------------------------------------------------------------------

STRATA_API strata_sampler * strata_sampler_new(strata_frontend * f, const char * sampling, size_t n, char ** err);
STRATA_API strata_sampler * strata_sampler_clone(strata_sampler * s, char ** err);
STRATA_API void             strata_sampler_free(strata_sampler * s);
// is_generated = 0 for prompt tokens: penalties see them, grammar and reasoning budget do not. 0 or -1 with err.
STRATA_API int32_t strata_sampler_accept(strata_sampler * s, const int32_t * tokens, size_t n, int32_t is_generated, char ** err);
// Samples and accepts one token for each of n rows: samplers[i] from output idx[i] of the last batch.
// tokens[i] = -1 where row i failed (strata_sampler_error); returns how many failed.
STRATA_API int32_t strata_sample_rows(struct llama_context * ctx, size_t n, strata_sampler ** samplers, const int32_t * idx, int32_t * tokens);
STRATA_API const char * strata_sampler_error(const strata_sampler * s); // "" when none
// bytes of a token as the request wants to see it (special tokens hidden unless asked for); returns the length,
// or -length when buf is too small
STRATA_API int32_t strata_sampler_piece(strata_sampler * s, int32_t token, char * buf, int32_t size);
// {"id","prob","text"(bytes as array),"probs":[{"id","prob","text"}]}: of the row just sampled, while its logits are
// there; an error before any
STRATA_API char *  strata_sampler_probs(strata_sampler * s, struct llama_context * ctx, int32_t idx, int32_t token, char ** err);
// The state that accept() of the same tokens does not rebuild (random draws, mirostat, adaptive-p). load() expects a
// sampler built from the same request, to which the same tokens have been accepted; afterwards both continue alike.
STRATA_API size_t  strata_sampler_save(strata_sampler * s, uint8_t * buf, size_t size); // the size needed; 0: no memory
STRATA_API int32_t strata_sampler_load(strata_sampler * s, const uint8_t * buf, size_t size, char ** err);
STRATA_API uint32_t strata_sampler_seed(const strata_sampler * s);

// ---- memory --------------------------------------------------------------------------------------------------

// name of llama.cpp's class behind llama_get_memory(ctx), e.g. "llama_kv_cache_iswa"; "" when there is none
STRATA_API const char * strata_memory_class(const struct llama_context * ctx);

// What a sequence holds for each token, by ranges of positions [p0, p1): patches/0006-ranged-state.patch.
// 0: this memory is saved as a whole only. What exists only at a sequence's end is llama_state_seq_*_ext's, with
// LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY.
STRATA_API int32_t strata_range_supported(struct llama_context * ctx);
// bytes of a range; 0 where the sequence does not hold all of it, or nothing is kept for tokens
STRATA_API size_t  strata_range_size(struct llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1);
STRATA_API size_t  strata_range_get(struct llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1, uint8_t * dst, size_t size);
// append n ranges to a sequence that ends where the first begins; 0: there is no room, or they don't fit, and the
// sequence is as before
STRATA_API int32_t strata_range_append(struct llama_context * ctx, int32_t seq_id, size_t n, const uint8_t * const * srcs, const size_t * sizes);
// copies from the device that strata_range_get takes (or would take, if the memory were on one)
STRATA_API size_t  strata_range_copies(struct llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1);

#ifdef __cplusplus
}
#endif
