// Defines how texts and errors cross: as bytes with a length; no exception leaves.

#pragma once

#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

extern "C" {

struct hob_text {
    char * data; // from malloc; null for no text
    size_t size;
};

}

static inline std::string text_in(hob_text text) {
    return std::string(text.data, text.size);
}

static inline hob_text text_out(const std::string & text) {
    hob_text out = { static_cast<char *>(std::malloc(text.size() + 1)), text.size() };
    if (out.data) {
        std::memcpy(out.data, text.data(), text.size());
    }
    return out;
}

// Runs `call`; turns what it throws into a text.
template <typename Call> static bool guarded(hob_text * error, Call call) {
    try {
        call();
        return true;
    } catch (const std::exception & exception) {
        *error = text_out(exception.what());
    } catch (...) {
        *error = text_out("an exception of unknown kind");
    }
    return false;
}
