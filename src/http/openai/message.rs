//! Parses the messages of a chat request.
//!
//! A *part* is one piece of a message's content; only text can be read here, and its parts are joined by a line feed. A
//! *mark* is `cache_control`, on a part or on the whole message: the client holds what stands before its end to be constant.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::http::error::ApiError;
use crate::http::fields::{check_depth, from_json};
use crate::request::{Message, Role, ToolCall};

#[derive(Deserialize)]
pub(super) struct WireMessage {
    role: String,
    content: Option<Content>,
    reasoning_content: Option<String>,
    name: Option<String>,
    tool_calls: Option<Vec<WireToolCall>>,
    tool_call_id: Option<String>,
    cache_control: Option<Mark>,
}

enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    r#type: String,
    text: Option<String>,
    cache_control: Option<Mark>,
}

#[derive(Deserialize)]
struct Mark {
    r#type: String,
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
    let (content, mut n_marked_bytes) = match message.content {
        None => (String::new(), 0),
        Some(Content::Text(text)) => (text, 0),
        Some(Content::Parts(parts)) => join(parts, &format!("{place}.content"))?,
    };
    if is_marked(message.cache_control, place)? {
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

/// The text of all parts, and how much of it stands before the last mark.
fn join(parts: Vec<Part>, place: &str) -> Result<(String, usize), ApiError> {
    let (mut joined, mut n_marked_bytes) = (String::new(), 0);
    for (index, part) in parts.into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        let text = match (part.r#type.as_str(), part.text) {
            ("text", Some(text)) => text,
            ("text", None) => return Err(ApiError::field(format!("{place}.text"), "is required")),
            (other, _) => {
                let reason = match other {
                    "image_url" => "images are not supported yet: send text alone".to_owned(),
                    "input_audio" => "audio is not supported yet: send text alone".to_owned(),
                    _ => format!("\"{other}\" is not supported: only text can be read here"),
                };
                return Err(ApiError::field(format!("{place}.type"), reason));
            }
        };
        if index > 0 {
            joined.push('\n');
        }
        joined.push_str(&text);
        if is_marked(part.cache_control, &place)? {
            n_marked_bytes = joined.len();
        }
    }
    Ok((joined, n_marked_bytes))
}

fn is_marked(mark: Option<Mark>, place: &str) -> Result<bool, ApiError> {
    match mark {
        None => Ok(false),
        Some(Mark { r#type }) if r#type == "ephemeral" => Ok(true),
        Some(Mark { r#type }) => {
            let reason = format!("\"{type}\": must be \"ephemeral\"");
            Err(ApiError::field(format!("{place}.cache_control.type"), reason))
        }
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
    let arguments = read_arguments(call.function.arguments.as_deref(), &place)?;
    Ok(ToolCall { id: call.id, name: call.function.name, arguments })
}

/// OpenAI sends the arguments as a string that holds JSON, other clients as the object itself. Either way the text stays
/// as it came, keys in their order: it was part of the prompt's next version, byte for byte.
fn read_arguments(arguments: Option<&RawValue>, place: &str) -> Result<String, ApiError> {
    let Some(arguments) = arguments.map(RawValue::get) else { return Ok("{}".to_owned()) };
    if arguments.starts_with('{') {
        return Ok(arguments.to_owned());
    }
    if !arguments.starts_with('"') {
        return Err(ApiError::field(place, format!("{arguments}: must be an object, or a string that holds one")));
    }
    let text: String = from_json(arguments, place)?;
    // Some clients send nothing where there are none.
    if text.trim().is_empty() {
        return Ok("{}".to_owned());
    }
    // The body's own depth does not count what is inside a string; the chat template parses it all the same.
    check_depth(&text).map_err(|reason| ApiError::field(place, reason))?;
    match serde_json::from_str::<&RawValue>(&text) {
        Ok(json) if json.get().starts_with('{') => Ok(text),
        Ok(_) => Err(ApiError::field(place, "must be a string that holds an object")),
        Err(error) => Err(ApiError::field(place, format!("must be a string that holds an object: {error}"))),
    }
}

/// By hand: a derived untagged enum would forget which field was wrong.
impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        struct TextOrParts;

        impl<'de> Visitor<'de> for TextOrParts {
            type Value = Content;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a string or a list of parts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
                let mut all = Vec::new();
                while let Some(part) = parts.next_element()? {
                    all.push(part);
                }
                Ok(Content::Parts(all))
            }
        }

        deserializer.deserialize_any(TextOrParts)
    }
}
