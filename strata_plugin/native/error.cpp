#include "error.h"

#include "strata.h"

#include "ggml.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#if defined(__has_include)
#  if __has_include(<execinfo.h>)
#    include <execinfo.h>
#    define STRATA_HAS_BACKTRACE
#  endif
#endif

namespace strata {

static thread_local int abort_guards = 0;

static void on_abort(const char * message) {
    if (abort_guards > 0) {
        throw std::runtime_error(std::string("llama.cpp: ") + message);
    }
    // what ggml prints where nobody has set a callback; abort() follows
    fprintf(stderr, "%s\n", message);
#ifdef STRATA_HAS_BACKTRACE
    void * frames[64];
    backtrace_symbols_fd(frames, backtrace(frames, 64), 2);
#endif
}

abort_guard::abort_guard() {
    static std::once_flag once;
    std::call_once(once, [] { ggml_set_abort_callback(on_abort); });
    ++abort_guards;
}

abort_guard::~abort_guard() {
    --abort_guards;
}

char * to_text(const std::string & text) {
    char * copy = (char *) std::malloc(text.size() + 1);
    if (!copy) {
        throw std::bad_alloc();
    }
    std::memcpy(copy, text.c_str(), text.size() + 1);
    return copy;
}

static std::string error_json(const std::string & message, error_type type) {
    return format_error_response(message, type).dump_safe();
}

void store_error(char ** err, const std::exception_ptr & e, error_type fallback) {
    if (!err) {
        return;
    }
    *err = nullptr;
    try {
        std::string text;
        try {
            std::rethrow_exception(e);
        } catch (const api_error & error) {
            text = error_json(error.what(), error.type);
        } catch (const std::invalid_argument & error) {
            text = error_json(error.what(), ERROR_TYPE_INVALID_REQUEST);
        } catch (const std::bad_alloc &) {
            text = error_json("out of memory", ERROR_TYPE_SERVER);
        } catch (const std::exception & error) {
            text = error_json(error.what(), fallback);
        } catch (...) {
            text = error_json("unknown error", ERROR_TYPE_SERVER);
        }
        *err = to_text(text);
    } catch (...) {
        *err = nullptr; // not even memory for the message; the caller still sees that the call failed
    }
}

} // namespace strata

extern "C" void strata_free(char * text) {
    std::free(text);
}
