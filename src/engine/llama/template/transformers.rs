//! The text must be the one that Python's `transformers` gives, which is what models were trained on: compared over the
//! templates of llama.cpp's collection (`scripts/templates.py` fetches them) and the conversations of `conversations.json`.
//!
//! A *difference* is a conversation that hob renders otherwise with some template. Each that is known stands below with its
//! reason; one that is new fails the test, and so does one that is gone. Three things llama.cpp does to all templates alike;
//! they are done to the reference, too, and hide nothing else: it tells them the date, that the model is to think unless the
//! request says otherwise, and of each tool its name, description and parameters, in this order.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{LlamaTemplate, Source};
use crate::engine::ChatTemplate;
use crate::request::{Message, Role, ToolCall, Wanted};

const CONVERSATIONS: &str = include_str!("conversations.json");
const REFERENCE: &str = include_str!("transformers.py");
const N_TEMPLATES: usize = 73;
const BOS: &str = "<s>";
const EOS: &str = "</s>";
/// 2026-11-30 12:00:00 UTC.
const NOW: i64 = 1_796_040_000;

/// Templates that append to a list, which the sandbox of `transformers` refuses. llama.cpp lets them; so does the reference,
/// to show all the rest.
const CHANGING_LISTS: [&str; 2] = ["Kimi-K2-Instruct", "Kimi-K2-Thinking"];

#[derive(Clone, Copy)]
enum Of {
    All,
    WithTools,
    WithoutTools,
    These(&'static [&'static str]),
}
use Of::{All, These, WithTools, WithoutTools};

/// Templates, conversations, reason.
const DIFFERENCES: &[(&[&str], Of, &str)] = &[
    (
        &["Apriel-1.6-15b-Thinker-fixed", "ByteDance-Seed-OSS", "LFM2.5-8B-A1B", "unsloth-Apriel-1.5"],
        These(&["call in odd letters"]),
        "Python quotes and escapes a text within a list or an object as in source code; llama.cpp's Jinja does so in part",
    ),
    (
        &["ByteDance-Seed-OSS"],
        These(&["bare tools"]),
        "the template goes through the parameters' properties, though a tool may have none; llama.cpp's Jinja finds nothing",
    ),
    (
        &[
            "CohereForAI-c4ai-command-r-plus-tool_use",
            "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
            "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
        ],
        WithoutTools,
        "the template goes through its tools without asking whether there are any; `transformers` gives it None, which \
         fails, llama.cpp nothing, which is none",
    ),
    (
        &["CohereForAI-c4ai-command-r-plus-tool_use"],
        These(&["ordered tools"]),
        "the template asks each parameter for its description; one without is an error to Python, nothing to llama.cpp",
    ),
    (
        &["IFM-K2-Horizon"],
        These(&["reasoning and call", "second round"]),
        "llama.cpp finds out whether a template wants arguments as objects by an answer without thoughts, which this one \
         refuses: so it gets them as text, and refuses that",
    ),
    (
        &["LFM2.5-8B-A1B", "openai-gpt-oss-120b"],
        These(&["reasoning and call"]),
        "the template knows thoughts as `thinking`; llama.cpp moves `reasoning_content` there",
    ),
    (&["LFM2.5-8B-A1B"], These(&["kept thoughts"]), "as above: `reasoning_content` is moved to `thinking`"),
    (
        &["mistralai-Ministral-3-14B-Reasoning-2512"],
        These(&["reasoning", "reasoning and call", "second round", "no thinking in a round", "kept thoughts"]),
        "the template knows thoughts as parts of the content; llama.cpp moves `reasoning_content` there",
    ),
    (
        &["mistralai-Ministral-3-14B-Reasoning-2512"],
        These(&["empty"]),
        "the template refuses an empty answer; llama.cpp takes its check out",
    ),
    (
        &["StepFun3.5-Flash"],
        These(&["white space"]),
        "llama.cpp trims what is said, for else this model thinks in circles",
    ),
    (
        &["fireworks-ai-llama-3-firefunction-v2"],
        All,
        "the template shows `functions`, which nobody gives it; that is an error to Python, nothing to llama.cpp",
    ),
    (
        &["google-gemma-2-2b-it"],
        These(&["empty", "odd letters", "system", "system and tools", "turns", "white space"]),
        "the template refuses system texts; llama.cpp puts them in front of what the user says",
    ),
    (
        &["google-gemma-4-31B-it"],
        These(&["call in odd letters"]),
        "llama.cpp's Jinja shows a null as nothing, Python as None",
    ),
    (
        &["google-gemma-4-31B-it"],
        These(&["call with words"]),
        "the template does not open the answer after a result that words came with; llama.cpp does it",
    ),
    (
        &["google-gemma-4-31B-it-interleaved"],
        These(&[
            "call",
            "call and answer",
            "call in odd letters",
            "call with words",
            "call without arguments",
            "parallel calls",
            "reasoning and call",
            "second round",
            "no thinking in a round",
        ]),
        "the template knows results as parts of the calling message only; llama.cpp puts them there",
    ),
    (
        &["llama-cpp-deepseek-r1"],
        WithTools,
        "the template is made for llama.cpp: `map` gives a list there, a generator in Python, which is no JSON",
    ),
    (
        &["meetkai-functionary-medium-v3.1"],
        WithTools,
        "`safe` makes Python escape what is added to it as in HTML; to llama.cpp it means nothing",
    ),
    (
        &["llm-jp-llm-jp-4.1-8b-thinking", "openai-gpt-oss-120b"],
        These(&["finished"]),
        "the template ends the last answer as a model does, by `<|return|>`; llama.cpp as one that more follows, by `<|end|>`",
    ),
    (
        &["muse-glimmer"],
        These(&["little effort"]),
        "the template asks for the effort under a name of its own; llama.cpp gives it under that one",
    ),
    (
        &["openbmb-MiniCPM5-1B"],
        These(&["call in odd letters"]),
        "a list or an object that the template shows as it is: Python writes it out, llama.cpp's Jinja only the numbers and \
         texts of a list",
    ),
    (
        &[
            "Apertus-8B-Instruct",
            "Bielik-11B-v3.0-Instruct",
            "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
            "Qwen-QwQ-32B",
            "Reka-Edge",
            "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
            "deepseek-ai-DeepSeek-V3.1",
            "deepseek-ai-DeepSeek-V3.2",
            "deepseek-ai-DeepSeek-V4",
            "deepseek-ai-DeepSeek-V4-Flash-0731",
            "google-gemma-4-31B-it",
            "google-gemma-4-31B-it-interleaved",
            "llama-cpp-rwkv-world",
            "openbmb-MiniCPM5-1B",
            "poolside-Laguna-XS-2.1",
            "poolside-Laguna-XS.2",
        ],
        These(&["thinking left open"]),
        "a model that thinks only if told to; llama.cpp tells all to that are not told otherwise",
    ),
];

/// What templates make of each conversation; `None`: they refuse it.
type Rendered = BTreeMap<String, BTreeMap<String, Option<String>>>;

#[test]
fn the_text_is_the_one_that_transformers_gives() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/templates");
    let python = folder.join(".venv/bin/python");
    if !folder.join(".verified").is_file() || !folder.join(".venv/installed").is_file() {
        eprintln!("skipped: {} or its jinja2 is missing, scripts/templates.py fetches both", folder.display());
        return;
    }
    let table: Value = serde_json::from_str(CONVERSATIONS).unwrap();
    let expected = reference(&python, &folder, &table);
    assert_eq!(expected.len(), N_TEMPLATES);

    let mut found = BTreeMap::new();
    for (name, expected) in &expected {
        let text = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let template =
            LlamaTemplate::open(&Source { text: &text, bos: BOS, eos: EOS, strip_bos: false }, None).unwrap();
        for (conversation, expected) in expected {
            let rendered = render(&template, &table["tools"], &table["conversations"][conversation]);
            if rendered != *expected {
                found.insert((name.as_str(), conversation.as_str()), first_difference(&rendered, expected));
            }
        }
    }
    let known = known(&table);
    let new = found.iter().filter(|(place, _)| !known.contains(place));
    let new: String = new.map(|((name, conversation), what)| format!("\n{name}, {conversation}: {what}")).collect();
    let gone: Vec<_> = known.iter().filter(|place| !found.contains_key(place)).collect();
    assert!(new.is_empty() && gone.is_empty(), "gone: {gone:?}\nnew:{new}");
}

fn known(table: &Value) -> BTreeSet<(&str, &str)> {
    let all = table["conversations"].as_object().unwrap();
    let those = |has_tools: bool| all.iter().filter(move |(_, talk)| talk.get("tools").is_some() == has_tools);
    let mut known = BTreeSet::new();
    for (templates, of, reason) in DIFFERENCES {
        let conversations: Vec<&str> = match of {
            All => all.keys().map(String::as_str).collect(),
            WithTools => those(true).map(|(name, _)| name.as_str()).collect(),
            WithoutTools => those(false).map(|(name, _)| name.as_str()).collect(),
            These(these) => these.to_vec(),
        };
        for place in templates.iter().flat_map(|template| conversations.iter().map(move |name| (*template, *name))) {
            assert!(known.insert(place), "{place:?} is listed twice: {reason}");
        }
    }
    known
}

fn first_difference(hob: &Option<String>, reference: &Option<String>) -> String {
    let (Some(left), Some(right)) = (hob, reference) else {
        return if hob.is_none() { "hob refuses it".into() } else { "transformers refuses it".into() };
    };
    let n_common = left.chars().zip(right.chars()).take_while(|(left, right)| left == right).count();
    let from = |text: &str| text.chars().skip(n_common.saturating_sub(20)).take(80).collect::<String>();
    format!("hob {:?}, transformers {:?}", from(left), from(right))
}

fn reference(python: &Path, folder: &Path, table: &Value) -> Rendered {
    let asked = json!({
        "folder": folder,
        "now": NOW,
        "names": {
            "bos_token": BOS,
            "eos_token": EOS,
            "date_string": "30 Nov 2026",
            "datetime": "Nov 30 2026",
            "enable_thinking": true,
        },
        "changing_lists": CHANGING_LISTS,
        "tools": table["tools"],
        "conversations": table["conversations"],
    });
    let mut command = Command::new(python);
    command.args(["-I", "-c", REFERENCE]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(asked.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the reference failed");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn render(template: &LlamaTemplate, tools: &Value, talk: &Value) -> Option<String> {
    let tools = talk.get("tools").map(|name| tools[name.as_str().unwrap()].as_array().unwrap());
    let tools: Vec<String> = tools.into_iter().flatten().map(Value::to_string).collect();
    let messages: Vec<Message> = talk["messages"].as_array().unwrap().iter().map(message).collect();
    let (mut opens_answer, mut wanted) = (true, Wanted::default());
    for (name, value) in talk["names"].as_object().into_iter().flatten() {
        match name.as_str() {
            "add_generation_prompt" => opens_answer = value == true,
            "enable_thinking" => wanted.thinking.is_on = value.as_bool(),
            "reasoning_effort" => wanted.thinking.effort = value.as_str().map(str::to_owned),
            _ => wanted.template_args.push((name.clone(), value.to_string())),
        }
    }
    template.prepare(&tools).unwrap().render_at(&messages, opens_answer, NOW, &wanted).ok()
}

/// A message as OpenAI's API has it.
fn message(json: &Value) -> Message {
    let text = |json: &Value| json.as_str().map(str::to_owned);
    let role = match json["role"].as_str().unwrap() {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        role => panic!("{role} is no role"),
    };
    let calls = json["tool_calls"].as_array().into_iter().flatten();
    let calls = calls.map(|call| ToolCall {
        id: text(&call["id"]),
        name: text(&call["function"]["name"]).unwrap(),
        arguments: text(&call["function"]["arguments"]).unwrap(),
    });
    Message {
        reasoning: text(&json["reasoning_content"]),
        name: text(&json["name"]),
        tool_call_id: text(&json["tool_call_id"]),
        tool_calls: calls.collect(),
        ..Message::text(role, text(&json["content"]).unwrap())
    }
}
