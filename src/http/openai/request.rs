//! Parses the body of `POST /v1/chat/completions`.
//!
//! A *body* is JSON as the client wrote it; what comes out is a `Request` whose every value is checked, or an error that
//! names the field. Unknown fields are ignored, as OpenAI's clients expect; a known field that cannot be honoured is
//! refused, because an answer that ignores it would look right and be wrong.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::message::{self, WireMessage};
use crate::http::error::ApiError;
use crate::http::fields::sampling::WireSampling;
use crate::http::fields::{self, adapters, check_count, from_json, integer, shape, thinking, tools};
use crate::request::{Client, Dialect, Priority, Request, Sampling, ToolChoice, Wanted};

/// Far beyond what fits any context (a message costs at least four tokens or so), and cheap to refuse.
const MESSAGES_MAX: usize = 2_000;
/// OpenAI's own limit.
const TOP_LOGPROBS_MAX: i64 = 20;
/// Each is a whole answer, and takes a sequence.
const CHOICES_MAX: i64 = 8;

#[derive(Debug)]
pub(super) struct ChatRequest {
    pub(super) request: Request,
    /// Answers that are asked for.
    pub(super) n_choices: usize,
    pub(super) form: Form,
}

/// How the answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Whole,
    Stream { include_usage: bool },
}

/// `peer`: the client's name.
pub(super) fn parse(body: &[u8], peer: &str) -> Result<ChatRequest, ApiError> {
    let text = fields::text(body)?;
    let wire: WireRequest = from_json(text, "")?;

    let sampling = from_json::<WireSampling>(text, "")?.read(&Sampling::default())?;
    let n_logprobs = wire.n_logprobs()?;
    let n_choices = integer("n", wire.n, 1, CHOICES_MAX)?.unwrap_or(1) as usize;
    let thinking = wire.thinking();
    let tool_choice = tools::choice(wire.tool_choice.as_ref())?;
    // A small model that must call goes on calling as long as it may; a client that wants that says so.
    let must_call = matches!(tool_choice, ToolChoice::Required | ToolChoice::Named(_));
    let wanted = Wanted {
        tool_choice,
        one_call: wire.parallel_tool_calls.map_or(must_call, |several| !several),
        shape: shape::shape(wire.response_format.as_deref(), wire.grammar.clone(), wire.json_schema.as_deref())?,
        thinking: thinking.thinking()?,
        template_args: thinking.template_args()?,
        adapters: adapters::adapters("lora", wire.lora.as_deref())?,
    };
    let max_tokens = wire.max_tokens()?;
    let stop = fields::stop("stop", wire.stop)?;
    let model = wire.model.filter(|model| !model.is_empty()).ok_or_else(|| ApiError::field("model", "is required"))?;
    let messages = wire.messages.ok_or_else(|| ApiError::field("messages", "is required"))?;
    check_count("messages", messages.len(), 1, MESSAGES_MAX)?;
    let messages = message::read_all(messages)?;
    let tools = tools::read_all(wire.tools.unwrap_or_default())?;

    let client = Client { name: peer.to_owned(), salt: fields::salt(wire.cache_salt)?, dialect: Dialect::OpenAi };
    let form = match wire.stream {
        Some(true) => {
            let options = wire.stream_options.unwrap_or_default();
            Form::Stream { include_usage: options.include_usage.unwrap_or(false) }
        }
        _ => Form::Whole,
    };
    let conversation = wire.user.filter(|name| !name.is_empty());
    let layout = None;
    Ok(ChatRequest {
        request: Request {
            model,
            messages,
            tools,
            sampling,
            wanted,
            n_logprobs,
            max_tokens,
            stop,
            client,
            conversation,
            layout,
            priority: Priority::default(),
        },
        n_choices,
        form,
    })
}

#[derive(Deserialize)]
struct WireRequest {
    model: Option<String>,
    messages: Option<Vec<WireMessage>>,
    tools: Option<Vec<Box<RawValue>>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    response_format: Option<Box<RawValue>>,
    grammar: Option<String>,
    json_schema: Option<Box<RawValue>>,
    reasoning_effort: Option<String>,
    enable_thinking: Option<bool>,
    think: Option<Value>,
    chat_template_kwargs: Option<Map<String, Value>>,
    reasoning_budget: Option<i64>,
    thinking_budget_tokens: Option<i64>,
    lora: Option<Vec<Value>>,
    n: Option<i64>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    stop: Option<Value>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    cache_salt: Option<String>,
    /// Home Assistant writes its conversation's id here.
    user: Option<String>,
}

#[derive(Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl WireRequest {
    fn thinking(&self) -> thinking::Fields<'_> {
        thinking::Fields {
            reasoning_effort: self.reasoning_effort.as_deref(),
            enable_thinking: self.enable_thinking,
            think: self.think.as_ref(),
            chat_template_kwargs: self.chat_template_kwargs.as_ref(),
            reasoning_budget: self.reasoning_budget,
            thinking_budget_tokens: self.thinking_budget_tokens,
        }
    }

    fn n_logprobs(&self) -> Result<Option<usize>, ApiError> {
        let top = integer("top_logprobs", self.top_logprobs, 0, TOP_LOGPROBS_MAX)?;
        match (self.logprobs, top) {
            (Some(true), top) => Ok(Some(top.unwrap_or(0) as usize)),
            (_, None | Some(0)) => Ok(None),
            (_, Some(_)) => Err(ApiError::field("top_logprobs", "logprobs must be true for it")),
        }
    }

    fn max_tokens(&self) -> Result<Option<usize>, ApiError> {
        let old = integer("max_tokens", self.max_tokens, 1, i64::MAX)?;
        let new = integer("max_completion_tokens", self.max_completion_tokens, 1, i64::MAX)?;
        Ok(new.or(old).map(|n_tokens| usize::try_from(n_tokens).unwrap_or(usize::MAX)))
    }
}
