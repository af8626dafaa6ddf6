// Defines `hob_grammar_parse`: a grammar in llama.cpp's notation (GBNF) as its rules; and the patterns that grammars wait for.
//
// llama_grammar_parser::parse() does the same, but writes the grammar and what is wrong with it to stderr.

#include "llama-grammar.h"
#include "text.h"

#include <memory>
#include <stdexcept>
#include <vector>

extern "C" {

// The elements of all rules, each rule with its end, as pairs of kind and value; `names`: the rules' names, one a line.
bool hob_grammar_parse(hob_text text, hob_text * elements, hob_text * names, hob_text * error);

llama_grammar_trigger_pattern * hob_pattern_new(hob_text pattern, hob_text * error);
int64_t                         hob_pattern_find(const llama_grammar_trigger_pattern * pattern, hob_text text); // -1: nowhere
void                            hob_pattern_free(llama_grammar_trigger_pattern * pattern);

}

// White space and remarks before the first rule; behind each rule its parser skips them.
static const char * skip(const char * at) {
    while (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n' || *at == '#') {
        if (*at == '#') {
            while (*at && *at != '\r' && *at != '\n') {
                at++;
            }
        } else {
            at++;
        }
    }
    return at;
}

bool hob_grammar_parse(hob_text text, hob_text * elements, hob_text * names, hob_text * error) {
    return guarded(error, [&] {
        llama_grammar_parser parser;
        const std::string    source = text_in(text);
        for (const char * at = skip(source.c_str()); *at;) {
            at = parser.parse_rule(at);
        }
        std::vector<std::string> named(parser.symbol_ids.size());
        for (const auto & [name, id] : parser.symbol_ids) {
            named[id] = name;
        }
        std::string lines;
        std::string raw;
        for (size_t id = 0; id < named.size(); id++) {
            if (id >= parser.rules.size() || parser.rules[id].empty()) {
                throw std::runtime_error("there is no rule `" + named[id] + "`");
            }
            lines += named[id] + "\n";
            for (const auto & element : parser.rules[id]) {
                const uint32_t pair[2] = { static_cast<uint32_t>(element.type), element.value };
                raw.append(reinterpret_cast<const char *>(pair), sizeof pair);
            }
        }
        *elements = text_out(raw);
        *names    = text_out(lines);
    });
}

llama_grammar_trigger_pattern * hob_pattern_new(hob_text pattern, hob_text * error) {
    auto made = std::make_unique<llama_grammar_trigger_pattern>();
    const bool is_made = guarded(error, [&] {
        made->pattern = text_in(pattern);
        made->regex   = std::regex(made->pattern);
    });
    return is_made ? made.release() : nullptr;
}

int64_t hob_pattern_find(const llama_grammar_trigger_pattern * pattern, hob_text text) {
    size_t found = std::string::npos;
    // One that takes too long is not found.
    hob_text error = { nullptr, 0 };
    if (!guarded(&error, [&] { found = pattern->find(text_in(text)); })) {
        std::free(error.data);
    }
    return found == std::string::npos ? -1 : static_cast<int64_t>(found);
}

void hob_pattern_free(llama_grammar_trigger_pattern * pattern) {
    delete pattern;
}
