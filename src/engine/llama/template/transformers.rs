//! The text must be the one that Python's `transformers` gives, which is what models were trained on: compared over the
//! templates of llama.cpp's collection (`scripts/templates.py`) and the conversations of `conversations.json`.
//!
//! A *difference* is a conversation that hob renders otherwise with some template. Each that is known stands below with its
//! reason; one that is new fails the test, and so does one that is gone.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{LlamaTemplate, Source};
use crate::engine::ChatTemplate;
use crate::request::{Message, Role, ToolCall};

const CONVERSATIONS: &str = include_str!("conversations.json");
const REFERENCE: &str = include_str!("transformers.py");
const BOS: &str = "<s>";
const EOS: &str = "</s>";
/// 2026-11-30 12:00:00 UTC.
const NOW: i64 = 1_796_040_000;

/// Template, conversation, reason.
const DIFFERENCES: &[(&str, &str, &str)] = &[];

/// Templates that append to a list.
const CHANGING_LISTS: [&str; 2] = ["Kimi-K2-Instruct", "Kimi-K2-Thinking"];

/// What templates make of each conversation; `None`: they refuse it.
type Rendered = BTreeMap<String, BTreeMap<String, Option<String>>>;

#[test]
fn the_text_is_the_one_that_transformers_gives() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/templates");
    let python = folder.join(".venv/bin/python");
    if !folder.join(".verified").is_file() || !python.is_file() {
        eprintln!("skipped: {} is missing or without jinja2, scripts/templates.py fetches both", folder.display());
        return;
    }
    let table: Value = serde_json::from_str(CONVERSATIONS).unwrap();
    let expected = reference(&python, &folder, &table);
    assert_eq!(expected.len(), 73, "templates");
    let mut found = Vec::new();
    for (name, expected) in &expected {
        let text = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let template = LlamaTemplate::open(&Source { text: &text, bos: BOS, eos: EOS, strip_bos: false }, None).unwrap();
        for (conversation, expected) in expected {
            eprintln!("== {name}");
            let rendered = render(&template, &table, conversation);
            if rendered != *expected {
                if let Some(folder) = std::env::var_os("HOB_DUMP") {
                    let folder = Path::new(&folder);
                    let write = |ending: &str, text: &Option<String>| {
                        std::fs::write(folder.join(format!("{name}.{conversation}.{ending}")), text.as_deref().unwrap_or("REFUSED")).unwrap();
                    };
                    write("hob", &rendered);
                    write("ref", expected);
                }
                found.push(format!("{name}, {conversation}"));
            }
        }
    }
    let known: Vec<String> = DIFFERENCES.iter().map(|(name, conversation, _)| format!("{name}, {conversation}")).collect();
    assert_eq!(found, known);
}

fn reference(python: &Path, folder: &Path, table: &Value) -> Rendered {
    let asked = json!({
        "folder": folder,
        "now": NOW,
        "names": {
            "bos_token": BOS,
            "eos_token": EOS,
            // llama.cpp tells every template the date under these names.
            "date_string": "30 Nov 2026",
            "datetime": "Nov 30 2026",
            // As it tells every template that nothing else is said to.
            "enable_thinking": true,
        },
        "changing_lists": CHANGING_LISTS,
        "tools": table["tools"],
        "conversations": table["conversations"],
    });
    let mut child = Command::new(python)
        .args(["-I", "-c", REFERENCE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(asked.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the reference failed");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn render(template: &LlamaTemplate, table: &Value, conversation: &str) -> Option<String> {
    let talk = &table["conversations"][conversation];
    let tools = talk.get("tools").map(|name| table["tools"][name.as_str().unwrap()].as_array().unwrap());
    let tools: Vec<String> = tools.into_iter().flatten().map(Value::to_string).collect();
    let messages: Vec<Message> = talk["messages"].as_array().unwrap().iter().map(message).collect();
    let opens_answer = talk["names"]["add_generation_prompt"] != false;
    template.prepare(&tools).unwrap().render_at(&messages, opens_answer, NOW).inspect_err(|e| eprintln!("ERR {conversation}: {e}")).ok()
}

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
