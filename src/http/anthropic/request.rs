//! Parses the bodies of `POST /v1/messages` and `POST /v1/messages/count_tokens`.
//!
//! Unknown fields are ignored, and so is what only means something in Anthropic's cloud (`service_tier`, `container`, …); a known
//! field that cannot be honoured is refused.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::message::{self, Block, WireMessage};
use super::tools::{self, WireChoice};
use crate::http::error::ApiError;
use crate::http::fields::content::{Content, Mark, is_marked};
use crate::http::fields::sampling::WireSampling;
use crate::http::fields::{self, check_count, from_json, integer, shape};
use crate::request::{Client, Dialect, Priority, Request, Role, Sampling, Shape, Thinking, ToolChoice, Wanted};

/// Far beyond what fits any context, and cheap to refuse.
const MESSAGES_MAX: usize = 2_000;

#[derive(Debug)]
pub(super) struct Question {
    pub(super) request: Request,
    pub(super) is_streamed: bool,
    pub(super) terms: Terms,
}

/// What of a request shows in how its answer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Tokens that the client gave the answer.
    pub(super) max_tokens: usize,
    /// What was thought is told; else only that something was.
    pub(super) shows_thinking: bool,
}

#[derive(Deserialize)]
struct Wire {
    model: Option<String>,
    max_tokens: Option<i64>,
    system: Option<Content<Block>>,
    messages: Option<Vec<WireMessage>>,
    tools: Option<Vec<Box<RawValue>>>,
    tool_choice: Option<WireChoice>,
    stop_sequences: Option<Value>,
    thinking: Option<WireThinking>,
    output_config: Option<OutputConfig>,
    /// What `output_config.format` was called before; some clients still say so.
    output_format: Option<Box<RawValue>>,
    metadata: Option<Metadata>,
    stream: Option<bool>,
    cache_control: Option<Mark>,
    mcp_servers: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct WireThinking {
    r#type: String,
    budget_tokens: Option<i64>,
    display: Option<String>,
}

#[derive(Default, Deserialize)]
struct OutputConfig {
    effort: Option<String>,
    format: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Metadata {
    user_id: Option<String>,
}

/// `peer`: the client's name.
pub(super) fn parse(body: &[u8], peer: &str) -> Result<Question, ApiError> {
    let text = fields::text(body)?;
    let wire: Wire = from_json(text, "")?;
    let sampling = from_json::<WireSampling>(text, "")?.read(&Sampling::default())?;
    let max_tokens = integer("max_tokens", wire.max_tokens, 1, i64::MAX)?;
    let max_tokens = max_tokens.ok_or_else(|| ApiError::field("max_tokens", "is required"))?;
    let max_tokens = usize::try_from(max_tokens).unwrap_or(usize::MAX);
    let is_streamed = wire.stream.unwrap_or(false);
    let terms = Terms { max_tokens, shows_thinking: wire.shows_thinking()? };
    let request = Request { sampling, max_tokens: Some(max_tokens), ..wire.read(peer)? };
    if request.messages.last().is_some_and(|message| message.role == Role::Assistant) {
        let reason = "the last one must be the user's: an answer cannot go on from an assistant's text here";
        return Err(ApiError::field("messages", reason));
    }
    Ok(Question { request, is_streamed, terms })
}

/// What is only counted may end anywhere.
pub(super) fn parse_counted(body: &[u8], peer: &str) -> Result<Request, ApiError> {
    fields::body::<Wire>(body)?.read(peer)
}

impl Wire {
    /// The request, but for how its answer is made.
    fn read(self, peer: &str) -> Result<Request, ApiError> {
        let Wire { system, messages, metadata, mcp_servers, .. } = self;
        if mcp_servers.is_some_and(|servers| !servers.is_empty()) {
            return Err(ApiError::field("mcp_servers", "hob calls no tools itself: leave it out"));
        }
        let output = self.output_config.unwrap_or_default();
        let (tool_choice, is_alone) = tools::choice(self.tool_choice)?;
        // A small model that must call goes on calling as long as it may; a client that wants that says so.
        let must_call = matches!(tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        let wanted = Wanted {
            tool_choice,
            one_call: is_alone.unwrap_or(must_call),
            shape: read_shape(output.format.as_deref(), self.output_format.as_deref())?,
            thinking: read_thinking(self.thinking.as_ref(), output.effort.as_deref())?,
            ..Wanted::default()
        };
        let stop = fields::stop("stop_sequences", self.stop_sequences)?;
        let model =
            self.model.filter(|model| !model.is_empty()).ok_or_else(|| ApiError::field("model", "is required"))?;
        let messages = messages.ok_or_else(|| ApiError::field("messages", "is required"))?;
        check_count("messages", messages.len(), 1, MESSAGES_MAX)?;
        let system = system.map(message::read_system).transpose()?.flatten();
        let mut messages: Vec<_> = system.into_iter().chain(message::read_all(messages)?).collect();
        // It stands for a mark on the last block that can have one.
        if is_marked(self.cache_control.as_ref(), "")?
            && let Some(last) = messages.last_mut()
        {
            last.n_marked_bytes = last.content.len();
        }
        Ok(Request {
            model,
            messages,
            tools: tools::read_all(self.tools.unwrap_or_default())?,
            sampling: Sampling::default(),
            wanted,
            n_logprobs: None,
            max_tokens: None,
            stop,
            client: Client { name: peer.to_owned(), salt: None, dialect: Dialect::Anthropic },
            conversation: metadata.and_then(|metadata| metadata.user_id).filter(|id| !id.is_empty()),
            layout: None,
            priority: Priority::default(),
        })
    }

    fn shows_thinking(&self) -> Result<bool, ApiError> {
        match self.thinking.as_ref().and_then(|thinking| thinking.display.as_deref()) {
            None | Some("summarized") => Ok(true),
            Some("omitted") => Ok(false),
            Some(other) => {
                let reason = format!("\"{other}\": must be \"summarized\" or \"omitted\"");
                Err(ApiError::field("thinking.display", reason))
            }
        }
    }
}

fn read_shape(format: Option<&RawValue>, old: Option<&RawValue>) -> Result<Shape, ApiError> {
    match (format, old) {
        (Some(_), Some(_)) => {
            Err(ApiError::field("output_format", "an answer has one form: output_config.format is given, too"))
        }
        (Some(format), None) => shape::anthropic(format, "output_config.format"),
        (None, Some(format)) => shape::anthropic(format, "output_format"),
        (None, None) => Ok(Shape::Free),
    }
}

/// `effort` is for templates that know levels, and switches nothing on.
fn read_thinking(thinking: Option<&WireThinking>, effort: Option<&str>) -> Result<Thinking, ApiError> {
    let effort = match effort {
        None => None,
        Some(word @ ("low" | "medium" | "high")) => Some(word.to_owned()),
        Some("xhigh" | "max") => Some("high".to_owned()),
        Some(other) => {
            let reason = format!("\"{other}\": must be low, medium, high, xhigh or max");
            return Err(ApiError::field("output_config.effort", reason));
        }
    };
    let Some(WireThinking { r#type, budget_tokens, .. }) = thinking else {
        return Ok(Thinking { effort, ..Thinking::default() });
    };
    let is_on = match r#type.as_str() {
        "enabled" => Some(true),
        "disabled" => Some(false),
        // The model decides: as its template has it, or the profile.
        "adaptive" | "between_tools" => None,
        other => {
            let reason = format!("\"{other}\": must be enabled, disabled, adaptive or between_tools");
            return Err(ApiError::field("thinking.type", reason));
        }
    };
    let budget = integer("thinking.budget_tokens", *budget_tokens, 1, i64::MAX)?;
    let budget = budget.filter(|_| is_on == Some(true)).and_then(|n_tokens| usize::try_from(n_tokens).ok());
    Ok(Thinking { is_on, effort, budget })
}
