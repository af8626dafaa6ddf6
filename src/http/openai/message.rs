//! Parses the messages of a chat request.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::http::error::ApiError;
use crate::http::fields::content::{Content, Joined, Mark, is_marked};
use crate::http::fields::parts::{self, Part};
use crate::http::fields::tools;
use crate::request::{Message, Role, ToolCall};

#[derive(Deserialize)]
pub(super) struct WireMessage {
    role: String,
    content: Option<Content<Part>>,
    reasoning_content: Option<String>,
    name: Option<String>,
    tool_calls: Option<Vec<WireToolCall>>,
    tool_call_id: Option<String>,
    cache_control: Option<Mark>,
}

#[derive(Deserialize)]
struct WireToolCall {
    id: Option<String>,
    r#type: Option<String>,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    arguments: Option<Box<RawValue>>,
}

pub(super) fn read_all(messages: Vec<WireMessage>) -> Result<Vec<Message>, ApiError> {
    messages.into_iter().enumerate().map(|(index, message)| read(message, &format!("messages[{index}]"))).collect()
}

/// `place`: where the message stands, for errors.
fn read(message: WireMessage, place: &str) -> Result<Message, ApiError> {
    let role = role(&message.role).map_err(|reason| ApiError::field(format!("{place}.role"), reason))?;
    let calls = message.tool_calls.unwrap_or_default();
    if role != Role::Assistant && !calls.is_empty() {
        return Err(ApiError::field(format!("{place}.tool_calls"), "only an assistant's message may have them"));
    }
    let tool_calls = calls
        .into_iter()
        .enumerate()
        .map(|(index, call)| read_call(call, &format!("{place}.tool_calls[{index}]")))
        .collect::<Result<_, _>>()?;
    let content = message.content.map(|content| parts::join(content, &format!("{place}.content"))).transpose()?;
    let Joined { text: content, mut n_marked_bytes, .. } = content.unwrap_or_default();
    if is_marked(message.cache_control.as_ref(), place)? {
        n_marked_bytes = content.len();
    }
    Ok(Message {
        role,
        content,
        reasoning: message.reasoning_content,
        name: message.name,
        tool_calls,
        tool_call_id: message.tool_call_id,
        n_marked_bytes,
    })
}

fn role(name: &str) -> Result<Role, String> {
    match name {
        "system" => Ok(Role::System),
        "developer" => Ok(Role::Developer),
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "tool" => Ok(Role::Tool),
        _ => Err(format!("\"{name}\": must be system, developer, user, assistant or tool")),
    }
}

fn read_call(call: WireToolCall, place: &str) -> Result<ToolCall, ApiError> {
    if let Some(kind) = call.r#type.filter(|kind| kind != "function") {
        return Err(ApiError::field(format!("{place}.type"), format!("\"{kind}\": must be \"function\"")));
    }
    if call.function.name.is_empty() {
        return Err(ApiError::field(format!("{place}.function.name"), "must not be empty"));
    }
    let place = format!("{place}.function.arguments");
    let arguments = tools::arguments(call.function.arguments.as_deref(), &place)?;
    Ok(ToolCall { id: call.id, name: call.function.name, arguments })
}
