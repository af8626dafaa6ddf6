//! Parses the messages of a chat request.
//!
//! Calls and their results have no ids here, or not always: results belong to calls by their order, so ids are made. They are
//! counted, so that the same history always has the same ones.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::http::error::ApiError;
use crate::http::fields::check_count;
use crate::request::{Message, Role, ToolCall};

/// Far beyond what fits any context, and cheap to refuse.
const MESSAGES_MAX: usize = 2_000;

#[derive(Deserialize)]
pub(super) struct WireMessage {
    role: String,
    content: Option<String>,
    thinking: Option<String>,
    images: Option<Vec<Value>>,
    tool_calls: Option<Vec<WireCall>>,
    tool_name: Option<String>,
    name: Option<String>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct WireCall {
    id: Option<String>,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    arguments: Option<Box<RawValue>>,
}

/// A call that has no result yet.
struct Open {
    id: String,
    name: String,
}

pub(super) fn read_all(messages: Vec<WireMessage>) -> Result<Vec<Message>, ApiError> {
    check_count("messages", messages.len(), 0, MESSAGES_MAX)?;
    let mut n_calls = 0;
    let mut open = VecDeque::new();
    let read = |(index, message)| read(message, &format!("messages[{index}]"), &mut open, &mut n_calls);
    messages.into_iter().enumerate().map(read).collect()
}

/// `place`: where the message stands, for errors. `n_calls`: before it.
fn read(
    message: WireMessage,
    place: &str,
    open: &mut VecDeque<Open>,
    n_calls: &mut usize,
) -> Result<Message, ApiError> {
    let role = match message.role.as_str() {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => {
            let reason = format!("\"{other}\": must be system, user, assistant or tool");
            return Err(ApiError::field(format!("{place}.role"), reason));
        }
    };
    if message.images.is_some_and(|images| !images.is_empty()) {
        return Err(ApiError::field(format!("{place}.images"), "images are not supported yet: send text alone"));
    }
    let calls = message.tool_calls.unwrap_or_default();
    if role != Role::Assistant && !calls.is_empty() {
        return Err(ApiError::field(format!("{place}.tool_calls"), "only an assistant's message may have them"));
    }
    let mut tool_calls = Vec::with_capacity(calls.len());
    for (index, call) in calls.into_iter().enumerate() {
        *n_calls += 1;
        let place = format!("{place}.tool_calls[{index}].function");
        // Nine letters and digits: the only form that Mistral's templates take.
        let id = call.id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call{:05}", *n_calls));
        if call.function.name.is_empty() {
            return Err(ApiError::field(format!("{place}.name"), "must not be empty"));
        }
        let arguments = call.function.arguments.as_ref().map_or("{}", |arguments| arguments.get());
        if !arguments.starts_with('{') {
            return Err(ApiError::field(format!("{place}.arguments"), format!("{arguments}: must be an object")));
        }
        open.push_back(Open { id: id.clone(), name: call.function.name.clone() });
        tool_calls.push(ToolCall { id: Some(id), name: call.function.name, arguments: arguments.to_owned() });
    }
    let named = message.tool_name.or(message.name).filter(|name| !name.is_empty());
    let mut tool_call_id = message.tool_call_id.filter(|id| !id.is_empty());
    let mut name = named;
    if role == Role::Tool {
        let is_meant = |call: &Open| match (&tool_call_id, &name) {
            (Some(id), _) => call.id == *id,
            (None, Some(name)) => call.name == *name,
            (None, None) => true,
        };
        // A history that was trimmed at its front may begin with a result whose call is gone.
        if let Some(call) = open.iter().position(is_meant).and_then(|place| open.remove(place)) {
            tool_call_id = Some(call.id);
            name = Some(call.name);
        }
    }
    Ok(Message {
        role,
        content: message.content.unwrap_or_default(),
        reasoning: message.thinking.filter(|thinking| !thinking.is_empty()),
        name,
        tool_calls,
        tool_call_id,
        n_marked_bytes: 0,
    })
}
