//! Parses the body of `POST /v1/chat/completions`.
//!
//! A *body* is JSON as the client wrote it; what comes out is a `Request` whose every value is checked, or an error that
//! names the field. Unknown fields are ignored, as OpenAI's clients expect; a known field that cannot be honoured is
//! refused, because an answer that ignores it would look right and be wrong.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::message::{self, WireMessage};
use super::sampling::WireSampling;
use super::{shape, thinking, tools};
use crate::http::error::ApiError;
use crate::request::{Client, Dialect, Request, ToolChoice, Wanted};

/// Levels of arrays and objects. The deepest of Home Assistant's recorded requests has 10; each level costs stack where JSON
/// is read recursively, as chat templates may do.
const DEPTH_MAX: usize = 64;
/// Far beyond what fits any context (a message costs at least four tokens or so), and cheap to refuse.
const MESSAGES_MAX: usize = 2_000;
/// Each generated piece of text is compared with each of them.
const STOP_MAX: usize = 16;
/// OpenAI's own limit.
const TOP_LOGPROBS_MAX: i64 = 20;
/// Each is a whole answer, and takes a sequence.
const CHOICES_MAX: i64 = 8;
/// It is only hashed; a page of text here is a mistake.
const CACHE_SALT_BYTES_MAX: usize = 256;

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
    let text = std::str::from_utf8(body)
        .map_err(|error| ApiError::body(format!("the body is not UTF-8 from byte {} on", error.valid_up_to())))?;
    check_depth(text).map_err(ApiError::body)?;
    let wire: WireRequest = from_json(text, "")?;

    let sampling = from_json::<WireSampling>(text, "")?.read()?;
    let n_logprobs = wire.n_logprobs()?;
    let n_choices = integer("n", wire.n, 1, CHOICES_MAX)?.unwrap_or(1) as usize;
    let thinking = wire.thinking();
    if wire.lora.as_ref().is_some_and(|adapters| !adapters.is_empty()) {
        return Err(ApiError::field("lora", "adapters are not supported yet"));
    }
    let tool_choice = tools::choice(wire.tool_choice.as_ref())?;
    // A small model that must call goes on calling as long as it may; a client that wants that says so.
    let must_call = matches!(tool_choice, ToolChoice::Required | ToolChoice::Named(_));
    let wanted = Wanted {
        tool_choice,
        one_call: wire.parallel_tool_calls.map_or(must_call, |several| !several),
        shape: shape::shape(wire.response_format.as_deref(), wire.grammar.clone(), wire.json_schema.as_deref())?,
        thinking: thinking.thinking()?,
        template_args: thinking.template_args()?,
    };
    let max_tokens = wire.max_tokens()?;
    let stop = stop(wire.stop)?;
    let model = wire.model.filter(|model| !model.is_empty()).ok_or_else(|| ApiError::field("model", "is required"))?;
    let messages = wire.messages.ok_or_else(|| ApiError::field("messages", "is required"))?;
    check_count("messages", messages.len(), 1, MESSAGES_MAX)?;
    let messages = message::read_all(messages)?;
    let tools = tools::read_all(wire.tools.unwrap_or_default())?;

    if let Some(salt) = wire.cache_salt.as_ref().filter(|salt| salt.len() > CACHE_SALT_BYTES_MAX) {
        let reason = format!("has {} bytes: at most {CACHE_SALT_BYTES_MAX} are allowed", salt.len());
        return Err(ApiError::field("cache_salt", reason));
    }
    let client = Client { name: peer.to_owned(), salt: wire.cache_salt, dialect: Dialect::OpenAi };
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
            is_background: false,
        },
        n_choices,
        form,
    })
}

/// A value from JSON text; `place`: where in the body the text stands, with nothing for the body itself.
pub(super) fn from_json<T: DeserializeOwned>(text: &str, place: &str) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        // The root's path is a dot.
        let field = match path.as_str() {
            "." => place.to_owned(),
            _ if place.is_empty() => path,
            _ => format!("{place}.{path}"),
        };
        if !inner.is_data() {
            ApiError::body(format!("the body is not valid JSON: {inner}"))
        } else if field.is_empty() {
            ApiError::body(inner.to_string())
        } else {
            ApiError::field(field, inner)
        }
    })?;
    deserializer.end().map_err(|error| ApiError::body(format!("the body is not valid JSON: {error}")))?;
    Ok(value)
}

/// Refuses JSON text nested deeper than the limit; cheap enough to come before parsing.
pub(super) fn check_depth(json: &str) -> Result<(), String> {
    let (mut depth, mut deepest, mut is_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            _ if is_text => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    if deepest > DEPTH_MAX {
        return Err(format!("the JSON is nested {deepest} levels deep: at most {DEPTH_MAX} are allowed"));
    }
    Ok(())
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

fn stop(stop: Option<Value>) -> Result<Vec<String>, ApiError> {
    let texts = match stop {
        None => return Ok(Vec::new()),
        Some(Value::Array(texts)) => texts,
        Some(text) => vec![text],
    };
    check_count("stop", texts.len(), 0, STOP_MAX)?;
    texts
        .into_iter()
        .enumerate()
        .map(|(index, text)| match text {
            Value::String(text) if !text.is_empty() => Ok(text),
            other => Err(ApiError::field(
                format!("stop[{index}]"),
                format!("{other}: must be a text of at least one character"),
            )),
        })
        .collect()
}

pub(super) fn number(field: &str, value: Option<f64>, min: f64, max: f64, default: f32) -> Result<f32, ApiError> {
    match value {
        None => Ok(default),
        Some(value) if (min..=max).contains(&value) => Ok(value as f32),
        Some(value) => Err(ApiError::field(field, format!("{value}: must be {min} to {max}"))),
    }
}

pub(super) fn integer(field: &str, value: Option<i64>, min: i64, max: i64) -> Result<Option<i64>, ApiError> {
    match value {
        Some(value) if value < min => Err(ApiError::field(field, format!("{value}: must be at least {min}"))),
        Some(value) if value > max => Err(ApiError::field(field, format!("{value}: must be at most {max}"))),
        value => Ok(value),
    }
}

pub(super) fn check_count(field: &str, count: usize, min: usize, max: usize) -> Result<(), ApiError> {
    if (min..=max).contains(&count) {
        return Ok(());
    }
    Err(ApiError::field(field, format!("has {count} entries: must have {min} to {max}")))
}
