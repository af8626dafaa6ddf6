// Defines four calls that reach llama.cpp's chat templates (common_chat_*), which its C interface leaves out.
//
// A text crosses as bytes with a length, an error as such a text; no exception leaves. `direct` renders as
// common_chat_templates_apply() does with tool_choice = auto, less its grammar and parser, which cost 25 ms and more and
// do not change the text; `reference` is that call itself, for the test that compares them.

#include "chat-auto-parser-helpers.h"
#include "chat-auto-parser.h"
#include "chat.h"
#include "log.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

extern "C" {

struct hob_text {
    char * data; // from malloc; null for no text
    size_t size;
};

struct hob_chat_template {
    common_chat_templates_ptr             reference;
    std::unique_ptr<common_chat_template> parsed;
    bool                                  strip_bos;
};

struct hob_chat_tools {
    std::vector<common_chat_tool> parsed;
    common_json                   json;
};

hob_chat_template * hob_chat_open(hob_text source, hob_text bos, hob_text eos, bool strip_bos, hob_text * error);
void                hob_chat_close(hob_chat_template * chat);
hob_chat_tools *    hob_chat_tools_parse(hob_text tools, hob_text * error);
void                hob_chat_tools_free(hob_chat_tools * tools);
bool                hob_chat_direct(const hob_chat_template * chat, const hob_chat_tools * tools, hob_text messages, bool open_answer, hob_text * out);
bool                hob_chat_reference(const hob_chat_template * chat, const hob_chat_tools * tools, hob_text messages, bool open_answer, hob_text * out);
void                hob_text_free(hob_text text);

}

static std::string text_in(hob_text text) {
    return std::string(text.data, text.size);
}

static hob_text text_out(const std::string & text) {
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

static std::string today(const char * format) {
    const std::time_t now   = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    std::tm           local = {};
    char              text[32];
    localtime_r(&now, &local);
    return std::string(text, std::strftime(text, sizeof text, format, &local));
}

// The steps of llama.cpp's common_chat_templates_apply_jinja() that shape the text, in its order.
static std::string render(const hob_chat_template & chat, const hob_chat_tools * tools, std::vector<common_chat_msg> messages, bool open_answer) {
    const common_chat_template & parsed = *chat.parsed;
    const auto                   caps   = parsed.original_caps();
    const std::string &          source = parsed.source();

    if (source.find("You have access to the following functions in JSONSchema format") != std::string::npos) {
        for (auto & message : messages) {
            message.content           = trim_whitespace(message.content);
            message.reasoning_content = trim_whitespace(message.reasoning_content);
        }
    }
    autoparser::generation_params params;
    params.messages = common_json::array();
    for (const auto & message : messages) {
        params.messages.push_back(message.to_json_oaicompat());
    }
    for (auto & message : params.messages) {
        if (caps.supports_typed_content && !caps.supports_string_content) {
            message["content"] = common_json::array({ common_json{ { "type", "text" }, { "text", message.at("content").get<std::string>() } } });
        }
        if (caps.supports_object_arguments && message.contains("tool_calls")) {
            for (auto & call : message["tool_calls"]) {
                auto & arguments = call["function"]["arguments"];
                try {
                    arguments = common_json::parse(arguments.get<std::string>());
                } catch (const std::exception & exception) {
                    throw std::runtime_error("Failed to parse tool call arguments as JSON: " + std::string(exception.what()));
                }
            }
        }
    }
    if (!caps.supports_system_role && !params.messages.empty() && params.messages.front().at("role") == "system") {
        if (params.messages.size() > 1) {
            auto & second     = params.messages[1];
            second["content"] = params.messages.front().at("content").get<std::string>() + "\n" + second.at("content").get<std::string>();
        }
        params.messages.erase(0);
    }
    if (tools) {
        params.tools = tools->json;
    }
    // With tools but no call allowed, a specialised template builds a parser of contents only.
    params.tool_choice           = COMMON_CHAT_TOOL_CHOICE_NONE;
    params.reasoning_format      = COMMON_REASONING_FORMAT_NONE;
    params.parallel_tool_calls   = false;
    params.add_generation_prompt = open_answer;
    params.extra_context         = common_json{ { "datetime", today("%b %d %Y") }, { "date_string", today("%d %b %Y") } };
    // Some families rewrite the messages before they render; those keep their own code.
    if (const auto special = common_chat_try_specialized_template(parsed, source, params)) {
        return special->prompt;
    }
    return common_chat_template_direct_apply(parsed, params);
}

// The tokeniser adds BOS where the vocabulary asks for it; a template that writes it too would double it.
static hob_text finish(const hob_chat_template & chat, const std::string & text) {
    const std::string & bos = chat.parsed->bos_token();
    return text_out(chat.strip_bos && string_starts_with(text, bos) ? text.substr(bos.size()) : text);
}

hob_chat_template * hob_chat_open(hob_text source, hob_text bos, hob_text eos, bool strip_bos, hob_text * error) {
    auto chat = std::make_unique<hob_chat_template>();
    const bool is_open = guarded(error, [&] {
        // Its warnings, some of them per render, would go to stderr past our log.
        common_log_set_verbosity_thold(-1);
        // Parsed twice: once for what is wrong with it, which templates_init() loses, once as that function amends it.
        common_chat_template(text_in(source), text_in(bos), text_in(eos));
        chat->reference = common_chat_templates_init(nullptr, text_in(source), text_in(bos), text_in(eos));
        chat->parsed    = std::make_unique<common_chat_template>(common_chat_templates_source(chat->reference.get()), text_in(bos), text_in(eos));
        chat->strip_bos = strip_bos;
    });
    return is_open ? chat.release() : nullptr;
}

void hob_chat_close(hob_chat_template * chat) {
    delete chat;
}

hob_chat_tools * hob_chat_tools_parse(hob_text tools, hob_text * error) {
    auto parsed = std::make_unique<hob_chat_tools>();
    const bool is_parsed = guarded(error, [&] {
        parsed->parsed = common_chat_tools_parse_oaicompat(common_json::parse(text_in(tools)));
        parsed->json   = common_chat_tools_to_json_oaicompat(parsed->parsed);
    });
    return is_parsed ? parsed.release() : nullptr;
}

void hob_chat_tools_free(hob_chat_tools * tools) {
    delete tools;
}

bool hob_chat_direct(const hob_chat_template * chat, const hob_chat_tools * tools, hob_text messages, bool open_answer, hob_text * out) {
    return guarded(out, [&] {
        auto parsed = common_chat_msgs_parse_oaicompat(common_json::parse(text_in(messages)));
        *out        = finish(*chat, render(*chat, tools, std::move(parsed), open_answer));
    });
}

bool hob_chat_reference(const hob_chat_template * chat, const hob_chat_tools * tools, hob_text messages, bool open_answer, hob_text * out) {
    return guarded(out, [&] {
        common_chat_templates_inputs inputs;
        inputs.messages = common_chat_msgs_parse_oaicompat(common_json::parse(text_in(messages)));
        if (tools) {
            inputs.tools = tools->parsed;
        }
        inputs.add_generation_prompt = open_answer;
        try {
            *out = finish(*chat, common_chat_templates_apply(chat->reference.get(), inputs).prompt);
        } catch (const std::invalid_argument &) {
            // No parser could be derived from the template; the text needs none.
            inputs.force_pure_content = true;
            *out                      = finish(*chat, common_chat_templates_apply(chat->reference.get(), inputs).prompt);
        }
    });
}

void hob_text_free(hob_text text) {
    std::free(text.data);
}
