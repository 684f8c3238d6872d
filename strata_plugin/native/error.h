// error.h: how failures leave this library. Every function of strata.h runs its body inside guarded(): exceptions, and
// also llama.cpp's own aborts, become a JSON error in llama-server's form.
#pragma once

#include "server-common.h"

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace strata {

// An error whose type (and so HTTP status) is known where it is thrown.
struct api_error : std::runtime_error {
    error_type type;

    api_error(error_type type, const std::string & message) : std::runtime_error(message), type(type) {}
};

inline api_error invalid_request(const std::string & message) {
    return api_error(ERROR_TYPE_INVALID_REQUEST, message);
}

// While one exists, a failed GGML_ASSERT or GGML_ABORT of this thread throws std::runtime_error instead of ending the
// process: one bad request must not take every other request with it. What the request touched is thrown away.
class abort_guard {
  public:
    abort_guard();
    ~abort_guard();

    abort_guard(const abort_guard &)             = delete;
    abort_guard & operator=(const abort_guard &) = delete;
};

// A malloc'ed copy for the caller, see strata_free().
char * to_text(const std::string & text);

// Stores the JSON error of `e` in *err; error types that are not known become `fallback`.
void store_error(char ** err, const std::exception_ptr & e, error_type fallback);

// Runs fn and returns its result, or `failed` after storing the error. As in llama-server std::invalid_argument is the
// client's fault and everything else becomes `fallback`.
template <typename T, typename F>
T guarded(char ** err, T failed, F && fn, error_type fallback = ERROR_TYPE_SERVER) noexcept {
    try {
        abort_guard guard;
        return std::forward<F>(fn)();
    } catch (...) {
        store_error(err, std::current_exception(), fallback);
        return failed;
    }
}

} // namespace strata
