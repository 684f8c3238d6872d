#include "error.h"

#include "strata.h"

#include "build-info.h"

#include <sstream>

extern "C" int32_t strata_api_version(void) {
    return STRATA_API_VERSION;
}

extern "C" char * strata_build_info(void) {
    return strata::guarded(nullptr, (char *) nullptr, [] {
        json patches = json::array();
        std::istringstream names(STRATA_PATCHES);
        for (std::string name; std::getline(names, name, ',');) {
            patches.push_back(name);
        }
        const std::string commit = STRATA_LLAMA_COMMIT;
        return strata::to_text(json {
            {"llama_commit", commit.empty() ? std::string(llama_commit()) : commit},
            {"build_number", llama_build_number()},
            {"compiler",     llama_compiler()},
            {"target",       llama_build_target()},
            {"patches",      patches},
        }.dump_safe());
    });
}
