//! Parses the input of a request: a question, or items that tell a conversation.
//!
//! An *item* is a message, a call, a call's result, or what was thought. What the assistant thought, said and called in one turn
//! are several items here and one message to a template, so they are put together again.

use serde::Deserialize;
use serde_json::Value;

use crate::http::error::ApiError;
use crate::http::fields::content::{Content, Joined};
use crate::http::fields::parts::{self, Part};
use crate::http::fields::{check_count, from_json, tools};
use crate::request::{Message, Role, ToolCall};

/// Far beyond what fits any context, and cheap to refuse.
const ITEMS_MAX: usize = 4_000;

#[derive(Deserialize)]
struct Item {
    r#type: Option<String>,
    role: Option<String>,
    content: Option<Content<Part>>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<Content<Part>>,
    summary: Option<Vec<Piece>>,
}

#[derive(Deserialize)]
struct Piece {
    text: Option<String>,
}

pub(super) fn read(input: Value) -> Result<Vec<Message>, ApiError> {
    let items = match input {
        Value::String(text) => return Ok(vec![Message::text(Role::User, text)]),
        Value::Array(items) => items,
        other => return Err(ApiError::field("input", format!("{other}: must be a text or a list of items"))),
    };
    check_count("input", items.len(), 0, ITEMS_MAX)?;
    let mut messages: Vec<Message> = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let place = format!("input[{index}]");
        add(from_json(&item.to_string(), &place)?, &place, &mut messages)?;
    }
    Ok(messages)
}

/// `place`: where the item stands, for errors.
fn add(item: Item, place: &str, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    match item.r#type.as_deref() {
        None | Some("message") => add_message(item, place, messages),
        Some("reasoning") => {
            let thought = thought(item, place)?;
            // Some clients keep no more than the item's name.
            if !thought.is_empty() {
                let turn = turn(messages);
                turn.reasoning.get_or_insert_default().push_str(&thought);
            }
            Ok(())
        }
        Some("function_call") => {
            let name = item.name.filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| ApiError::field(format!("{place}.name"), "is required"))?;
            let arguments =
                tools::written_arguments(item.arguments.unwrap_or_default(), &format!("{place}.arguments"))?;
            let id = item.call_id.filter(|id| !id.is_empty());
            turn(messages).tool_calls.push(ToolCall { id, name, arguments });
            Ok(())
        }
        Some("function_call_output") => {
            let output = item.output.ok_or_else(|| ApiError::field(format!("{place}.output"), "is required"))?;
            let Joined { text, .. } = parts::join(output, &format!("{place}.output"))?;
            let name = item.call_id.as_deref().and_then(|id| name_of(messages, id));
            messages.push(Message { tool_call_id: item.call_id, name, ..Message::text(Role::Tool, text) });
            Ok(())
        }
        Some("item_reference") => {
            Err(ApiError::field(place, "a reference to an earlier item: items are not kept, send the item itself"))
        }
        Some(other) => {
            let known = "message, reasoning, function_call or function_call_output";
            Err(ApiError::field(format!("{place}.type"), format!("\"{other}\": must be {known}")))
        }
    }
}

fn add_message(item: Item, place: &str, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let role = match item.role.as_deref() {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some(other) => {
            let reason = format!("\"{other}\": must be user, assistant, system or developer");
            return Err(ApiError::field(format!("{place}.role"), reason));
        }
        None => return Err(ApiError::field(format!("{place}.role"), "is required")),
    };
    let content = item.content.ok_or_else(|| ApiError::field(format!("{place}.content"), "is required"))?;
    let Joined { text: content, n_marked_bytes, .. } = parts::join(content, &format!("{place}.content"))?;
    match messages.last_mut() {
        // What was thought before it, of the same turn.
        Some(turn)
            if role == Role::Assistant
                && turn.role == role
                && turn.content.is_empty()
                && turn.tool_calls.is_empty() =>
        {
            turn.content = content;
        }
        _ => messages.push(Message { n_marked_bytes, ..Message::text(role, content) }),
    }
    Ok(())
}

/// The assistant's message that what follows belongs to: the last one, or a new one.
fn turn(messages: &mut Vec<Message>) -> &mut Message {
    if messages.last().is_none_or(|last| last.role != Role::Assistant) {
        messages.push(Message::text(Role::Assistant, ""));
    }
    messages.last_mut().expect("one was put there")
}

/// The whole thought, else its summary.
fn thought(item: Item, place: &str) -> Result<String, ApiError> {
    let content = item.content.map(|content| parts::join(content, &format!("{place}.content"))).transpose()?;
    let content = content.unwrap_or_default().text;
    let summary = item.summary.into_iter().flatten().filter_map(|piece| piece.text).collect::<Vec<_>>().join("\n");
    Ok(if content.is_empty() { summary } else { content })
}

/// The tool that the call named `id` was for.
fn name_of(messages: &[Message], id: &str) -> Option<String> {
    let calls = messages.iter().rev().flat_map(|message| &message.tool_calls);
    calls.into_iter().find(|call| call.id.as_deref() == Some(id)).map(|call| call.name.clone())
}
