// memory.cpp: which memory class a context has, and a sequence's state by ranges of positions.
#include "strata.h"

#include "llama.h"
#include "llama-ext.h"
#include "llama-memory.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <typeinfo>

#ifndef _WIN32
#  include <cxxabi.h>
#endif

#ifndef LLAMA_STATE_SEQ_RANGE
#  error "libstrata needs llama.cpp with patches/0006-ranged-state.patch: llama_state_seq_range_get() is missing"
#endif

static std::string class_name(const std::type_info & type) {
#ifdef _WIN32
    const std::string name = type.name(); // "class llama_kv_cache"
    return name.substr(name.find_last_of(' ') + 1);
#else
    int status = 0;
    char * demangled = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
    const std::string name = status == 0 ? demangled : type.name();
    std::free(demangled);
    return name;
#endif
}

extern "C" const char * strata_memory_class(const struct llama_context * ctx) {
    const llama_memory_t memory = ctx ? llama_get_memory(ctx) : nullptr;
    if (!memory) {
        return "";
    }
    // names live as long as the process, so that the caller need not free them
    static std::mutex mutex;
    static std::map<std::string, std::string> names;
    try {
        const std::type_info & type = typeid(*memory);
        std::lock_guard<std::mutex> lock(mutex);
        return names.emplace(type.name(), class_name(type)).first->second.c_str();
    } catch (...) {
        return "";
    }
}

extern "C" int32_t strata_range_supported(struct llama_context * ctx) {
    return llama_state_seq_range_supported(ctx) ? 1 : 0;
}

extern "C" size_t strata_range_size(struct llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1) {
    return llama_state_seq_range_size(ctx, seq_id, p0, p1);
}

extern "C" size_t strata_range_get(struct llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1, uint8_t * dst, size_t size) {
    return llama_state_seq_range_get(ctx, dst, size, seq_id, p0, p1);
}

extern "C" int32_t strata_range_append(struct llama_context * ctx, int32_t seq_id, size_t n, const uint8_t * const * srcs, const size_t * sizes) {
    return llama_state_seq_range_append(ctx, srcs, sizes, n, seq_id) ? 1 : 0;
}

extern "C" size_t strata_range_copies(struct llama_context * ctx, int32_t seq_id, int32_t p0, int32_t p1) {
    return llama_state_seq_range_copies(ctx, seq_id, p0, p1);
}
