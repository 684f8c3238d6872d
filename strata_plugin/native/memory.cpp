#include "strata.h"

#include "llama.h"
#include "llama-memory.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <typeinfo>

#ifndef _WIN32
#  include <cxxabi.h>
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
