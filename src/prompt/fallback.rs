//! Tools for templates that have no place for them, written the way Hermes models learnt it.
//!
//! *Fallback*: definitions at the end of the system text, calls as `<tool_call>` text in the assistant's turn, results as
//! `<tool_response>` text in a user's turn. Such a template would drop all three without a word.

use crate::request::{Message, Role, ToolCall};

const TEXT: &str = include_str!("../../assets/tools-fallback.txt");

/// What the system text ends with; `None` without tools. Each definition stands as it was sent.
pub fn tools_text(tools: &[String]) -> Option<String> {
    (!tools.is_empty()).then(|| TEXT.trim_end().replacen("{tools}", &tools.join("\n"), 1))
}

/// `messages` with calls and results as text. Results in a row, as parallel calls give them, share one user message.
pub(super) fn calls_as_text(messages: &[Message]) -> Vec<Message> {
    let mut written: Vec<Message> = Vec::with_capacity(messages.len());
    let mut follows_result = false;
    for message in messages {
        if message.role == Role::Tool {
            let response = format!("<tool_response>\n{}\n</tool_response>", message.content);
            match written.last_mut() {
                Some(results) if follows_result => {
                    results.content.push('\n');
                    results.content.push_str(&response);
                }
                _ => written.push(Message::text(Role::User, response)),
            }
        } else if message.tool_calls.is_empty() {
            written.push(message.clone());
        } else {
            let calls = message.tool_calls.iter().map(call_text);
            let content = Some(message.content.clone()).filter(|content| !content.is_empty());
            let parts: Vec<String> = content.into_iter().chain(calls).collect();
            written.push(Message { content: parts.join("\n"), tool_calls: Vec::new(), ..message.clone() });
        }
        follows_result = message.role == Role::Tool;
    }
    written
}

/// The arguments stand byte for byte as the client sent them back: they are in the cells like that.
fn call_text(call: &ToolCall) -> String {
    let name = serde_json::Value::from(call.name.as_str());
    let arguments = if call.arguments.is_empty() { "{}" } else { &call.arguments };
    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
}
