//! Parses the system text and the messages.
//!
//! Results of calls stand in a user's message here, and in messages of their own where templates read them: they come first,
//! the user's own text behind them. Turns of one speaker in a row are one turn, as in Anthropic's service; many templates
//! refuse two. What the system says later than at the beginning belongs to the user's turn, too.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::http::error::ApiError;
use crate::http::fields::content::{Content, Joined, Mark, is_marked};
use crate::request::{Message, Role, ToolCall};

#[derive(Deserialize)]
pub(super) struct WireMessage {
    role: String,
    content: Content<Block>,
}

/// Which fields there are depends on the type.
#[derive(Default, Deserialize)]
pub(super) struct Block {
    r#type: String,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<Box<RawValue>>,
    tool_use_id: Option<String>,
    content: Option<Content<Block>>,
    is_error: Option<bool>,
    tool_name: Option<String>,
    cache_control: Option<Mark>,
}

/// `None`: there is nothing in it.
pub(super) fn read_system(system: Content<Block>) -> Result<Option<Message>, ApiError> {
    let message = texts(Role::System, system, "system")?;
    Ok(Some(message).filter(|message| !message.content.is_empty()))
}

pub(super) fn read_all(messages: Vec<WireMessage>) -> Result<Vec<Message>, ApiError> {
    let mut read: Vec<Message> = Vec::with_capacity(messages.len());
    // Of each call its tool: a result names the call alone, and some templates write the tool's name beside it.
    let mut tools = HashMap::new();
    for (index, WireMessage { role, content }) in messages.into_iter().enumerate() {
        let place = format!("messages[{index}].content");
        let turn = match role.as_str() {
            "user" => read_user(content, &place, &tools)?,
            "assistant" => vec![read_assistant(content, &place, &mut tools)?],
            "system" if read.iter().all(|message| message.role == Role::System) => {
                vec![texts(Role::System, content, &place)?]
            }
            "system" => vec![said_between(texts(Role::User, content, &place)?)],
            other => {
                let reason = format!("\"{other}\": must be user, assistant or system");
                return Err(ApiError::field(format!("messages[{index}].role"), reason));
            }
        };
        for message in turn {
            match read.last_mut() {
                Some(last) if last.role == message.role && matches!(last.role, Role::User | Role::Assistant) => {
                    go_on(last, message);
                }
                _ => read.push(message),
            }
        }
    }
    Ok(read)
}

/// Results of calls, then what the user says, if there is such.
fn read_user(content: Content<Block>, place: &str, tools: &HashMap<String, String>) -> Result<Vec<Message>, ApiError> {
    let (mut turn, mut said) = (Vec::new(), Joined::default());
    for (index, block) in blocks(content).into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        match block.r#type.as_str() {
            "text" => block.say(&mut said, &place)?,
            "tool_result" => turn.push(block.result(&place, tools)?),
            _ => return Err(block.unfit(&place)),
        }
    }
    if said.n_parts > 0 || turn.is_empty() {
        turn.push(message(Role::User, said));
    }
    Ok(turn)
}

fn read_assistant(
    content: Content<Block>,
    place: &str,
    tools: &mut HashMap<String, String>,
) -> Result<Message, ApiError> {
    let (mut said, mut thought, mut tool_calls) = (Joined::default(), Joined::default(), Vec::new());
    for (index, block) in blocks(content).into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        match block.r#type.as_str() {
            "text" => block.say(&mut said, &place)?,
            // Where what was thought was left out, there is nothing to send back.
            "thinking" => {
                if let Some(thinking) = block.thinking.filter(|thinking| !thinking.is_empty()) {
                    thought.push(&thinking, false);
                }
            }
            // Only Anthropic's service can read it.
            "redacted_thinking" => {}
            "tool_use" => {
                let call = block.call(&place)?;
                tools.extend(call.id.clone().map(|id| (id, call.name.clone())));
                tool_calls.push(call);
            }
            _ => return Err(block.unfit(&place)),
        }
    }
    let reasoning = Some(thought.text).filter(|thought| !thought.is_empty());
    Ok(Message { reasoning, tool_calls, ..message(Role::Assistant, said) })
}

/// A message that has texts alone.
fn texts(role: Role, content: Content<Block>, place: &str) -> Result<Message, ApiError> {
    let mut said = Joined::default();
    for (index, block) in blocks(content).into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        match block.r#type.as_str() {
            "text" => block.say(&mut said, &place)?,
            _ => return Err(block.unfit(&place)),
        }
    }
    Ok(message(role, said))
}

/// What the client's system says in the middle of a conversation, as Claude Code does: part of the user's turn, in a tag.
/// Templates refuse such a message or put it in front of all others, and small models answer worse behind one.
fn said_between(mut message: Message) -> Message {
    const OPENING: &str = "<system>\n";
    if message.n_marked_bytes > 0 {
        message.n_marked_bytes += OPENING.len();
    }
    message.content = format!("{OPENING}{}\n</system>", message.content);
    message
}

fn message(role: Role, said: Joined) -> Message {
    Message { n_marked_bytes: said.n_marked_bytes, ..Message::text(role, said.text) }
}

/// `message` becomes the end of `last`.
fn go_on(last: &mut Message, message: Message) {
    if !last.content.is_empty() && !message.content.is_empty() {
        last.content.push('\n');
    }
    if message.n_marked_bytes > 0 {
        last.n_marked_bytes = last.content.len() + message.n_marked_bytes;
    }
    last.content.push_str(&message.content);
    last.tool_calls.extend(message.tool_calls);
    if let Some(thought) = message.reasoning {
        let before = last.reasoning.take().map(|before| before + "\n").unwrap_or_default();
        last.reasoning = Some(before + &thought);
    }
}

/// A text alone is one block of text.
fn blocks(content: Content<Block>) -> Vec<Block> {
    match content {
        Content::Parts(blocks) => blocks,
        Content::Text(text) => {
            vec![Block { r#type: "text".to_owned(), text: Some(text), ..Block::default() }]
        }
    }
}

impl Block {
    fn say(self, said: &mut Joined, place: &str) -> Result<(), ApiError> {
        let text = self.text.ok_or_else(|| ApiError::field(format!("{place}.text"), "is required"))?;
        said.push(&text, is_marked(self.cache_control.as_ref(), place)?);
        Ok(())
    }

    fn call(self, place: &str) -> Result<ToolCall, ApiError> {
        is_marked(self.cache_control.as_ref(), place)?;
        let name = self.name.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| ApiError::field(format!("{place}.name"), "is required"))?;
        // Its own text, keys in their order: it was part of the prompt's next version, byte for byte.
        let input = self.input.as_deref().map_or("{}", RawValue::get);
        if !input.starts_with('{') {
            return Err(ApiError::field(format!("{place}.input"), format!("{input}: must be an object")));
        }
        Ok(ToolCall { id: self.id.filter(|id| !id.is_empty()), name, arguments: input.to_owned() })
    }

    fn result(self, place: &str, tools: &HashMap<String, String>) -> Result<Message, ApiError> {
        let id = self.tool_use_id.filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| ApiError::field(format!("{place}.tool_use_id"), "is required"))?;
        let mut said = Joined::default();
        // Templates have no other place for it.
        let opening = if self.is_error == Some(true) { "error: " } else { "" };
        for (index, block) in self.content.map(blocks).unwrap_or_default().into_iter().enumerate() {
            let place = format!("{place}.content[{index}]");
            match block.r#type.as_str() {
                "text" => block.say(&mut said, &place)?,
                // A tool that a search found: all tools stand in the prompt, and this is which.
                "tool_reference" => said.push(block.tool_name.as_deref().unwrap_or_default(), false),
                _ => return Err(block.unfit(&place)),
            }
        }
        if is_marked(self.cache_control.as_ref(), place)? {
            said.n_marked_bytes = said.text.len();
        }
        if said.n_marked_bytes > 0 {
            said.n_marked_bytes += opening.len();
        }
        said.text.insert_str(0, opening);
        // A history that was trimmed at its front may begin with a result whose call is gone.
        let name = tools.get(&id).cloned();
        Ok(Message { name, tool_call_id: Some(id), ..message(Role::Tool, said) })
    }

    /// Why it cannot stand where it does.
    fn unfit(&self, place: &str) -> ApiError {
        let kind = self.r#type.as_str();
        let reason = match kind {
            "image" => "images are not supported yet: send text alone".to_owned(),
            "document" | "search_result" => {
                format!("\"{kind}\" is not supported yet: send what is in it as text")
            }
            "thinking" | "redacted_thinking" | "tool_use" => {
                format!("\"{kind}\" can only stand in an assistant's message")
            }
            "tool_result" => "\"tool_result\" can only stand in a user's message".to_owned(),
            _ => format!("\"{kind}\" is not supported: text, thinking, tool_use and tool_result are"),
        };
        ApiError::field(format!("{place}.type"), reason)
    }
}
