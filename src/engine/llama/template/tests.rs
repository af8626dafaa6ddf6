//! The text must be the one llama.cpp itself gives: compared over templates of many families and all kinds of history.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::*;
use crate::engine::Model;
use crate::engine::llama::{LoadedModel, Weights, tests::models};
use crate::request::ToolCall;

/// Hermes style, which Qwen and others follow.
const HERMES: &str = r#"{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}Functions, one a line:
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call> to call one.<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}{% for message in messages %}{% if message.role == 'user' or (message.role == 'system' and not loop.first) %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>
{% endif %}{{ message.content }}{% for call in message.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;

/// Llama 3 style: BOS from the template, a date, the first user message carries the tools.
const LLAMA3: &str = r#"{{ bos_token }}<|start_header_id|>system<|end_header_id|>

Today: {{ date_string }}
{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif %}<|eot_id|>{% for message in messages %}{% if message.role == 'user' and tools and loop.first %}<|start_header_id|>user<|end_header_id|>

Functions:
{% for tool in tools %}{{ tool | tojson(indent=4) }}

{% endfor %}{{ message.content | trim }}<|eot_id|>{% elif message.tool_calls %}<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ message.tool_calls[0].function.name }}", "parameters": {{ message.tool_calls[0].function.arguments | tojson }}}<|eot_id|>{% elif message.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>

{{ message.content | tojson }}<|eot_id|>{% else %}<|start_header_id|>{{ message.role }}<|end_header_id|>

{{ message.content | trim }}<|eot_id|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"#;

/// Mistral style: calls as one JSON list, arguments as they are, ids required, system text in front of the last user's.
const MISTRAL: &str = r#"{{ bos_token }}{% set system = '' %}{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}{% set messages = messages[1:] %}{% endif %}{% for message in messages %}{% if message.role == 'user' %}{% if tools and loop.last %}[AVAILABLE_TOOLS] [{% for tool in tools %}{{ tool.function | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}][/AVAILABLE_TOOLS]{% endif %}[INST] {% if loop.last %}{{ system }}{% endif %}{{ message.content }}[/INST]{% elif message.tool_calls %}[TOOL_CALLS] [{% for call in message.tool_calls %}{"id": "{{ call.id }}", "name": "{{ call.function.name }}", "arguments": {{ call.function.arguments }}}{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}{% elif message.role == 'tool' %}[TOOL_RESULTS] {"content": {{ message.content }}, "call_id": "{{ message.tool_call_id }}"}[/TOOL_RESULTS]{% else %} {{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"#;

/// Gemma style: no system role, strict alternation, contents trimmed.
const GEMMA: &str = r#"{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ message.content | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"#;

/// Contents as typed parts only.
const TYPED: &str = r#"{% for message in messages %}<|{{ message.role }}|>{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"#;

/// Qwen3-Coder style: recognised by llama.cpp and rendered by code of its own.
const CODER: &str = r#"{% if tools %}<|im_start|>system
{% for tool in tools %}<function><name>{{ tool.function.name }}</name>{{ tool.function.parameters | tojson }}</function>
{% endfor %}Call as <tool_call><function=name><parameter=key>value</parameter></function></tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls %}
<tool_call>
<function={{ call.function.name }}>{% for key, value in call.function.arguments | items %}
<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>{% endfor %}
</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;

/// gpt-oss style: recognised; reasoning moves to another field and the content of a calling message goes.
const CHANNELS: &str = r#"<|start|>system<|message|>Date {{ date_string }}{% if tools %}{% for tool in tools %}
{{ tool.function.name }}: {{ tool.function.parameters | tojson }}{% endfor %}{% endif %}<|end|>{% for message in messages %}{% if message.role == 'assistant' %}{% if message.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>{% endif %}{% if message.tool_calls %}<|start|>assistant to=functions.{{ message.tool_calls[0].function.name }}<|channel|>commentary json<|message|>{{ message.tool_calls[0].function.arguments | tojson }}<|call|>{% else %}<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|{{ 'return' if loop.last else 'end' }}|>{% endif %}{% elif message.role == 'tool' %}<|start|>functions to=assistant<|channel|>commentary<|message|>{{ message.content | tojson }}<|end|>{% else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"#;

/// LFM2.5 style: recognised.
const LISTED: &str = r#"{{ bos_token }}{% set text = messages[0].content if messages[0].role == 'system' else '' %}{% if tools %}{% set text = text + '\nList of tools: [' %}{% set text = text + (tools | tojson) + ']' %}{% endif %}<|im_start|>system
{{ text }}<|im_end|>
{% for message in messages %}{% if message.role != 'system' %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;

/// StepFun style: llama.cpp trims the contents for it.
const TRIMMED: &str = r#"{% if tools %}You have access to the following functions in JSONSchema format:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}{% for message in messages %}<|{{ message.role }}|>{{ message.reasoning_content }}{{ message.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"#;

/// Templates of today ask for the date by a function, if there is one.
const DATED: &str = r#"{% if date is not defined %}{% if strftime_now is defined %}{% set date = strftime_now( "%d %b %Y" ) %}{% endif %}{% endif %}<|system|>{{ 'Day ' + strftime_now('%j') + ', ' }}{{ date }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"#;

const TEMPLATES: [(&str, &str); 10] = [
    ("dated", DATED),
    ("hermes", HERMES),
    ("llama3", LLAMA3),
    ("mistral", MISTRAL),
    ("gemma", GEMMA),
    ("typed", TYPED),
    ("coder", CODER),
    ("channels", CHANNELS),
    ("listed", LISTED),
    ("trimmed", TRIMMED),
];

fn open(text: &str) -> LlamaTemplate {
    LlamaTemplate::open(&source(text), None).unwrap()
}

fn source(text: &str) -> Source<'_> {
    Source { text, bos: "<s>", eos: "</s>", strip_bos: true }
}

fn tools() -> Vec<String> {
    vec![
        r#"{"type":"function","function":{"name":"turn_on","description":"Turns <on> & \"off\" – für alle","parameters":{"type":"object","properties":{"zebra":{"type":"string","enum":["ä","b"]},"apple":{"type":"integer","default":1.50},"mango":{"type":"array","items":{"type":"number"}}},"required":["zebra","apple"]},"strict":true}}"#.into(),
        r#"{"function":{"parameters":{},"name":"list_areas"},"type":"function"}"#.into(),
    ]
}

fn call(name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: Some("call_1".into()), name: name.into(), arguments: arguments.into() }
}

fn conversations() -> Vec<Vec<Message>> {
    let user = |text: &str| Message::text(Role::User, text);
    let assistant = |text: &str| Message::text(Role::Assistant, text);
    let calling = |text: &str, calls: Vec<ToolCall>| Message { tool_calls: calls, ..assistant(text) };
    let result = |text: &str| Message {
        name: Some("turn_on".into()),
        tool_call_id: Some("call_1".into()),
        ..Message::text(Role::Tool, text)
    };
    let arguments = r#"{"zebra": "<a & b>", "apple": 1e3, "mango": [1.0, 2, {"z": null, "a": "\u00fc \"q\""}]}"#;
    let odd = "  5 < 6 && \"quoted\" 'single' {{ braces }} {% raw %} \\n é 日本 🏠 \u{0}\u{1}\t\r\n ";
    vec![
        vec![user("Hello")],
        vec![user(odd), assistant(odd), user(odd)],
        vec![Message::text(Role::System, odd), user("Hello"), assistant("Hi"), user("Lamp on")],
        vec![Message::text(Role::Developer, "Be brief."), user("Hello")],
        vec![
            user("Lamp on"),
            calling("", vec![call("turn_on", arguments)]),
            result(r#"{"ok": true, "b": 1}"#),
            assistant("Done."),
            user("Thanks"),
        ],
        vec![
            user("Lamp on"),
            calling("One moment.", vec![call("turn_on", arguments), call("list_areas", "")]),
            result("a"),
            result("b"),
        ],
        vec![user("Why?"), Message { reasoning: Some(" Because. ".into()), ..assistant("So.") }, user("Hm")],
        vec![
            user("Go"),
            Message { reasoning: Some("Think".into()), ..calling("", vec![call("list_areas", "{}")]) },
            result("x"),
        ],
        vec![user("Say"), assistant("The end")],
        vec![Message::text(Role::System, "Only a system text")],
        vec![result("orphaned"), user("And?")],
        vec![],
    ]
}

/// Compares both ways over all conversations, with and without tools; gives how many texts were equal.
fn compare(name: &str, template: &LlamaTemplate) -> usize {
    let mut n_equal = 0;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    for tools in [vec![], tools()] {
        let prepared = template.prepare_typed(&tools).unwrap();
        for (index, messages) in conversations().iter().enumerate() {
            for open_answer in [true, false] {
                // The reference looks at the clock.
                let direct = prepared.render_at(messages, open_answer, now, &Wanted::default());
                let reference = prepared.render_by(messages, |chat, tools, messages, out| {
                    // SAFETY: both handles are alive and used by this thread alone; the texts outlive the call.
                    unsafe { hob_chat_reference(chat, tools, messages, open_answer, out) }
                });
                match reference {
                    Ok(expected) => {
                        assert_eq!(direct.unwrap(), expected, "{name}, conversation {index}, {} tools", tools.len());
                        n_equal += 1;
                    }
                    Err(expected) => {
                        assert_eq!(direct.unwrap_err().to_string(), expected.to_string(), "{name}, {index}")
                    }
                }
            }
        }
    }
    n_equal
}

#[test]
fn the_text_is_the_one_llama_cpp_applies() {
    for (name, text) in TEMPLATES {
        let n_equal = compare(name, &open(text));
        // Gemma refuses histories that do not alternate.
        assert_eq!(n_equal, if name == "gemma" { 32 } else { 48 }, "{name}");
    }
}

#[test]
fn the_models_own_templates_render_as_llama_cpp_applies_them() {
    for path in [Some(models::smollm2()), models::qwen()].into_iter().flatten() {
        let model = LoadedModel::load(&path, Weights::None, None, |_| {}).unwrap();
        assert_eq!(compare(&path.display().to_string(), &model.template), 48, "{}", path.display());
    }
}

#[test]
fn keys_keep_their_order_in_tools_and_calls() {
    let prepared = open(HERMES).prepare(&tools()).unwrap();
    let messages = &conversations()[4];
    let text = prepared.render(messages, true).unwrap();
    let order = |text: &str| ["zebra", "apple", "mango"].map(|key| text.find(key).unwrap()).is_sorted();
    let (tools, call) = text.split_at(text.find("<tool_call>\n").unwrap());
    assert!(order(tools) && order(call), "{text}");
    assert!(text.contains("<a & b>") && text.contains("für alle"), "{text}");
    assert!(text.ends_with("<|im_start|>assistant\n"));
}

#[test]
fn a_place_for_tools_is_found_where_there_is_one() {
    for (name, text) in TEMPLATES {
        assert_eq!(open(text).takes_tools(), !["gemma", "typed"].contains(&name), "{name}");
    }
    let smollm2 = LoadedModel::load(&models::smollm2(), Weights::None, None, |_| {}).unwrap();
    assert!(!smollm2.template().takes_tools());
    if let Some(path) = models::qwen() {
        assert!(LoadedModel::load(&path, Weights::None, None, |_| {}).unwrap().template().takes_tools());
    }
}

#[test]
fn the_variant_for_tools_is_taken_with_tools_only() {
    let plain = "plain:{{ messages[0].content }}";
    let variant = "variant:{{ tools[0].function.name }}";
    let template = LlamaTemplate::open(&source(plain), Some(&source(variant))).unwrap();
    assert!(template.takes_tools());
    let messages = [Message::text(Role::User, "Hello")];
    assert_eq!(template.prepare(&[]).unwrap().render(&messages, true).unwrap(), "plain:Hello");
    assert_eq!(template.prepare(&tools()).unwrap().render(&messages, true).unwrap(), "variant:turn_on");
}

#[test]
fn a_template_shows_the_day_it_is_told() {
    // Noon in Greenwich: the same day in every time zone but the easternmost.
    const DAY: i64 = 24 * 3600;
    let messages = [Message::text(Role::User, "a")];
    let at =
        |text, unix_s| open(text).prepare(&[]).unwrap().render_at(&messages, true, unix_s, &Wanted::default()).unwrap();
    let noon = 1_796_040_000;
    assert_eq!(at(DATED, noon), "<|system|>Day 334, 30 Nov 2026<|user|>a<|assistant|>");
    assert_eq!(at(DATED, noon + DAY), "<|system|>Day 335, 01 Dec 2026<|user|>a<|assistant|>");
    for text in [LLAMA3, CHANNELS] {
        assert!(at(text, noon).contains("30 Nov 2026") && at(text, noon + DAY).contains("01 Dec 2026"), "{text}");
    }
    assert_eq!(at(HERMES, noon), at(HERMES, noon + DAY));
}

#[test]
fn bos_is_left_to_the_vocabulary_that_adds_it() {
    let messages = [Message::text(Role::User, "<s>Hello")];
    for (strip_bos, expected) in [(true, "<s>Hello</s>"), (false, "<s><s>Hello</s>")] {
        let text = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";
        let template = LlamaTemplate::open(&Source { strip_bos, ..source(text) }, None).unwrap();
        assert_eq!(template.prepare(&[]).unwrap().render(&messages, false).unwrap(), expected);
    }
}

#[test]
fn faults_are_told_and_nothing_breaks() {
    let refused = |text: &str| LlamaTemplate::open(&source(text), None).err().unwrap().to_string();
    for text in ["{% for x in %}", "{% if a %}", "{{ 'open", "{{ unclosed"] {
        let error = refused(text);
        assert!(error.starts_with("chat template: does not parse: ") && error.len() > 40, "{text}: {error}");
    }
    assert_eq!(refused("chatml"), "chat template: holds no Jinja");

    let gemma = open(GEMMA).prepare(&[]).unwrap();
    let twice = [Message::text(Role::User, "a"), Message::text(Role::User, "b")];
    let error = gemma.render(&twice, true).unwrap_err().to_string();
    assert_eq!(error, "chat template: Roles must alternate user/assistant");
    assert_eq!(gemma.render(&twice[..1], true).unwrap(), "<start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\n");

    let template = open(HERMES);
    for tool in ["", "{", "[]", "null", r#"{"type":"function"}"#, r#"{"type":"other","function":{"name":"x"}}"#] {
        assert!(template.prepare(&[tool.to_owned()]).is_err(), "{tool}");
    }
    let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
    let call = |arguments: String| {
        let calls = vec![ToolCall { id: None, name: "x".into(), arguments }];
        [Message::text(Role::User, "a"), Message { tool_calls: calls, ..Message::text(Role::Assistant, "") }]
    };
    let prepared = template.prepare(&[]).unwrap();
    let error = prepared.render(&call(deep(100_000)), true).unwrap_err().to_string();
    assert_eq!(error, "chat template: messages[1]: JSON nested deeper than 128");
    assert!(prepared.render(&call("not JSON".into()), true).unwrap_err().to_string().contains("arguments"));
    assert!(prepared.render(&call(deep(100)), true).unwrap().contains(&deep(100)));
    assert!(template.prepare(&[format!(r#"{{"type":{}}}"#, deep(200))]).err().unwrap().to_string().contains("deeper"));
}

#[test]
fn a_file_without_a_template_says_how_to_give_one() {
    let Some(path) = models::gemma() else { return };
    let load = |template| LoadedModel::load(Path::new(&path), Weights::None, template, |_| {});
    let error = load(None).err().unwrap().to_string();
    assert_eq!(error, "chat template: the model's file has none; set model.chat_template to a Jinja file");
    let template = load(Some(GEMMA)).unwrap().template();
    let text = template.prepare(&[]).unwrap().render(&[Message::text(Role::User, "a")], true).unwrap();
    assert!(text.starts_with("<start_of_turn>user"), "the vocabulary adds BOS: {text}");
}
