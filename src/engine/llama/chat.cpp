// Defines the calls that reach llama.cpp's chat templates (common_chat_*), which its C interface leaves out.
//
// A text crosses as bytes with a length, an error as such a text; no exception leaves. common_chat_templates_apply() gives
// a prompt with its grammar and parser at once. Here they are two: `direct` renders for each request, `answer` makes
// grammar and parser, which cost milliseconds, for each set of tools. `reference` is that call itself, for the tests that
// compare them. `read` parts an answer's text by such a parser.

#include "chat-auto-parser-helpers.h"
#include "chat-auto-parser.h"
#include "chat-peg-parser.h"
#include "chat.h"
#include "log.h"
#include "peg-parser.h"
#include "text.h"

#include <chrono>
#include <ctime>
#include <memory>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" {

struct hob_chat_template {
    common_chat_templates_ptr               reference;
    std::unique_ptr<common_chat_template>   parsed;
    std::vector<std::string>                formats; // of the times that it asks for
    bool                                    strip_bos;
    std::unique_ptr<autoparser::autoparser> analysed; // how its answers look; made when first asked for
};

struct hob_chat_tools {
    std::vector<common_chat_tool> parsed;
    common_json                   json;
};

struct hob_chat_reader {
    common_peg_arena   parser;
    common_chat_format format;
    std::string        opening;
};

hob_chat_template * hob_chat_open(hob_text source, hob_text bos, hob_text eos, bool strip_bos, hob_text * error);
void                hob_chat_close(hob_chat_template * chat);
hob_chat_tools *    hob_chat_tools_parse(hob_text tools, hob_text * error);
void                hob_chat_tools_free(hob_chat_tools * tools);
bool                hob_chat_direct(const hob_chat_template * chat, const hob_chat_tools * tools, hob_text messages, hob_text args, bool open_answer, int64_t now, hob_text * out);
bool                hob_chat_reference(const hob_chat_template * chat, const hob_chat_tools * tools, hob_text messages, bool open_answer, hob_text * out);
hob_chat_reader *   hob_chat_answer(hob_chat_template * chat, const hob_chat_tools * tools, hob_text messages, hob_text args, hob_text wanted, hob_text * out);
bool                hob_chat_read(const hob_chat_reader * reader, hob_text text, hob_text * out);
void                hob_chat_reader_free(hob_chat_reader * reader);
void                hob_text_free(hob_text text);

}

static std::string time_text(std::time_t now, const char * format) {
    std::tm local = {};
    char    text[100]; // as in llama.cpp
    localtime_r(&now, &local);
    return std::string(text, std::strftime(text, sizeof text, format, &local));
}

// llama.cpp's strftime_now() reads the system's clock. Its calls with a literal ask a variable first, which render() sets:
// so a prompt can show another moment. Without the variable, as while llama.cpp tries what a template can do, nothing changes.
static std::string with_moment(const std::string & source, std::vector<std::string> & formats) {
    static const std::regex call(R"re(strftime_now\s*\(\s*("[^"\\]*"|'[^'\\]*')\s*\))re");
    for (std::sregex_iterator found(source.begin(), source.end(), call), end; found != end; ++found) {
        const std::string literal = (*found)[1];
        formats.push_back(literal.substr(1, literal.size() - 2));
    }
    return std::regex_replace(source, call, "(hob_now[$1] if hob_now is defined else strftime_now($1))");
}

// The steps of llama.cpp's common_chat_templates_apply_jinja() that shape the text, in its order. `args`: what the template
// may ask for by name.
static autoparser::generation_params params_of(const hob_chat_template & chat, const hob_chat_tools * tools, std::vector<common_chat_msg> messages, const common_json & args, std::time_t now) {
    const common_chat_template & parsed = *chat.parsed;
    const auto                   caps   = parsed.original_caps();
    const std::string &          source = parsed.source();

    if (source.find("You have access to the following functions in JSONSchema format") != std::string::npos) {
        for (auto & message : messages) {
            message.content           = trim_whitespace(message.content);
            message.reasoning_content = trim_whitespace(message.reasoning_content);
        }
    }
    // llama.cpp's code for Ministral moves what was thought into the content, where a template that knows no thinking takes
    // it for the answer, which is lost.
    if (source.find("reasoning_content") == std::string::npos && source.find("thinking") == std::string::npos) {
        for (auto & message : messages) {
            message.reasoning_content.clear();
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
    params.parallel_tool_calls = false;
    params.now                 = std::chrono::system_clock::from_time_t(now);
    // Some templates open the answer unless they are told not to; llama.cpp only tells when they are to.
    params.extra_context       = common_json{ { "add_generation_prompt", false }, { "datetime", time_text(now, "%b %d %Y") }, { "date_string", time_text(now, "%d %b %Y") } };
    for (const auto & format : chat.formats) {
        params.extra_context["hob_now"][format] = time_text(now, format.c_str());
    }
    for (const auto & [name, value] : args.items()) {
        params.extra_context[name] = value;
    }
    if (args.contains("enable_thinking") && args.at("enable_thinking").is_boolean()) {
        params.enable_thinking = args.at("enable_thinking").get<bool>();
    }
    return params;
}

static std::string render(const hob_chat_template & chat, const hob_chat_tools * tools, std::vector<common_chat_msg> messages, const common_json & args, bool open_answer, std::time_t now) {
    auto params = params_of(chat, tools, std::move(messages), args, now);
    // With tools but no call allowed, a specialised template builds a parser of contents only.
    params.tool_choice           = COMMON_CHAT_TOOL_CHOICE_NONE;
    params.reasoning_format      = COMMON_REASONING_FORMAT_NONE;
    params.add_generation_prompt = open_answer;
    // Some families rewrite the messages before they render; those keep their own code.
    if (const auto special = common_chat_try_specialized_template(*chat.parsed, chat.parsed->source(), params)) {
        return special->prompt;
    }
    return common_chat_template_direct_apply(*chat.parsed, params);
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
        const std::string amended = with_moment(common_chat_templates_source(chat->reference.get()), chat->formats);
        chat->parsed    = std::make_unique<common_chat_template>(amended, text_in(bos), text_in(eos));
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

bool hob_chat_direct(const hob_chat_template * chat, const hob_chat_tools * tools, hob_text messages, hob_text args, bool open_answer, int64_t now, hob_text * out) {
    return guarded(out, [&] {
        auto parsed = common_chat_msgs_parse_oaicompat(common_json::parse(text_in(messages)));
        *out        = finish(*chat, render(*chat, tools, std::move(parsed), common_json::parse(text_in(args)), open_answer, static_cast<std::time_t>(now)));
    });
}

static common_chat_tool_choice choice_of(const common_json & wanted) {
    return common_chat_tool_choice_parse_oaicompat(wanted.at("tool_choice").get<std::string>());
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

// As common_chat_templates_apply_jinja(), but that a template without code of its own is analysed once, not for each request.
static common_chat_params answer_of(hob_chat_template & chat, autoparser::generation_params params) {
    if (auto special = common_chat_try_specialized_template(*chat.parsed, chat.parsed->source(), params)) {
        return *special;
    }
    if (!chat.analysed) {
        auto analysed = std::make_unique<autoparser::autoparser>();
        analysed->analyze_template(*chat.parsed);
        chat.analysed = std::move(analysed);
    }
    auto       made      = autoparser::peg_generator::generate_parser(*chat.parsed, params, *chat.analysed);
    const auto reasoning = chat.analysed->reasoning;
    if (reasoning.mode != autoparser::reasoning_mode::NONE) {
        made.supports_thinking  = true;
        made.thinking_start_tag = trim_whitespace(reasoning.start);
        const std::string end   = trim_whitespace(reasoning.end);
        made.thinking_end_tags  = end.empty() ? std::vector<std::string>() : std::vector<std::string>{ end };
    }
    return made;
}

// Gives the reader, and what the sampler obeys as JSON; or null and an error.
hob_chat_reader * hob_chat_answer(hob_chat_template * chat, const hob_chat_tools * tools, hob_text messages, hob_text args, hob_text wanted, hob_text * out) {
    auto reader = std::make_unique<hob_chat_reader>();
    const bool is_made = guarded(out, [&] {
        const auto wish   = common_json::parse(text_in(wanted));
        auto       params = params_of(*chat, tools, common_chat_msgs_parse_oaicompat(common_json::parse(text_in(messages))), common_json::parse(text_in(args)), std::time(nullptr));
        params.tool_choice           = choice_of(wish);
        params.parallel_tool_calls   = wish.at("parallel").get<bool>();
        params.reasoning_format      = COMMON_REASONING_FORMAT_AUTO;
        params.add_generation_prompt = true;
        if (wish.contains("schema")) {
            params.json_schema = wish.at("schema");
        }
        const auto made = answer_of(*chat, std::move(params));

        if (!made.parser.empty()) {
            reader->parser.load(made.parser);
        }
        reader->format  = made.format;
        reader->opening = made.generation_prompt;

        auto triggers = common_json::array();
        for (const auto & trigger : made.grammar_triggers) {
            triggers.push_back(common_json{ { "type", static_cast<int>(trigger.type) }, { "value", trigger.value } });
        }
        *out = text_out(common_json{
            { "grammar", made.grammar },
            { "is_lazy", made.grammar_lazy },
            { "triggers", triggers },
            { "opening", made.generation_prompt },
            { "spelled", made.preserved_tokens },
            { "stops", made.additional_stops },
            { "thinks", made.supports_thinking },
            { "thinking_start", made.thinking_start_tag },
            { "thinking_ends", made.thinking_end_tags },
            { "is_plain", made.parser.empty() },
        }.dump());
    });
    return is_made ? reader.release() : nullptr;
}

void hob_chat_reader_free(hob_chat_reader * reader) {
    delete reader;
}

// As common_chat_peg_parse(), which does not tell how far it came. Gives the parts as JSON, or null where `text` does not
// begin an answer. Either way of a text that is a beginning.
bool hob_chat_read(const hob_chat_reader * reader, hob_text text, hob_text * out) {
    return guarded(out, [&] {
        common_peg_parse_context context(reader->opening + text_in(text), COMMON_PEG_PARSE_FLAG_LENIENT);
        const auto result = reader->parser.parse(context);
        if (result.fail()) {
            *out = text_out("null");
            return;
        }
        common_chat_msg                         message;
        std::unique_ptr<common_chat_peg_mapper> mapper;
        switch (reader->format) {
            case COMMON_CHAT_FORMAT_PEG_GEMMA4:     mapper = std::make_unique<common_chat_peg_gemma4_mapper>(message); break;
            case COMMON_CHAT_FORMAT_PEG_MINIMAX_M3: mapper = std::make_unique<common_chat_peg_minimax_m3_mapper>(message); break;
            default:                                mapper = std::make_unique<common_chat_peg_mapper>(message);
        }
        mapper->from_ast(context.ast, result);
        auto calls = common_json::array();
        for (const auto & call : message.tool_calls) {
            calls.push_back(common_json{ { "name", call.name }, { "arguments", call.arguments }, { "id", call.id } });
        }
        *out = text_out(common_json{ { "reasoning", message.reasoning_content }, { "content", message.content }, { "calls", calls } }.dump());
    });
}

void hob_text_free(hob_text text) {
    std::free(text.data);
}
