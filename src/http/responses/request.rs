//! Parses the body of `POST /v1/responses`.
//!
//! An *echo* is what a response repeats of its request: clients read it there. What would need a store of earlier responses is
//! refused, because an answer without its history would look right and be wrong.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::input;
use crate::http::error::ApiError;
use crate::http::fields::sampling::WireSampling;
use crate::http::fields::{self, adapters, from_json, integer, shape, thinking, tools};
use crate::request::{Client, Dialect, Message, Priority, Request, Role, Sampling, ToolChoice, Wanted};

/// OpenAI's own limit.
const TOP_LOGPROBS_MAX: i64 = 20;
/// What `include` names where probabilities are wanted.
const LOGPROBS: &str = "message.output_text.logprobs";

#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) request: Request,
    pub(super) echo: Echo,
    pub(super) is_streamed: bool,
}

/// See the module's head: each as the client wrote it, or OpenAI's default.
#[derive(Debug)]
pub(super) struct Echo(pub(super) Map<String, Value>);

#[derive(Deserialize)]
struct Wire {
    model: Option<String>,
    input: Option<Value>,
    instructions: Option<String>,
    tools: Option<Vec<Box<RawValue>>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    max_output_tokens: Option<i64>,
    top_logprobs: Option<i64>,
    include: Option<Vec<String>>,
    text: Option<Text>,
    reasoning: Option<Reasoning>,
    chat_template_kwargs: Option<Map<String, Value>>,
    stream: Option<bool>,
    user: Option<String>,
    cache_salt: Option<String>,
    lora: Option<Vec<Value>>,
    previous_response_id: Option<String>,
    conversation: Option<Value>,
    prompt: Option<Value>,
    background: Option<bool>,
}

#[derive(Deserialize)]
struct Text {
    format: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Reasoning {
    effort: Option<String>,
}

/// `peer`: the client's name.
pub(super) fn parse(body: &[u8], peer: &str) -> Result<Parsed, ApiError> {
    let text = fields::text(body)?;
    let mut wire: Wire = from_json(text, "")?;
    wire.refuse_stored()?;

    let model = wire.model.take().filter(|model| !model.is_empty());
    let model = model.ok_or_else(|| ApiError::field("model", "is required"))?;
    let input = wire.input.take().ok_or_else(|| ApiError::field("input", "is required"))?;
    let instructions = wire.instructions.take().filter(|text| !text.is_empty());
    let instructions = instructions.map(|text| Message::text(Role::System, text));
    let messages: Vec<Message> = instructions.into_iter().chain(input::read(input)?).collect();
    if messages.is_empty() {
        return Err(ApiError::field("input", "is empty: there is nothing to answer"));
    }

    let tool_choice = choice(wire.tool_choice.as_ref())?;
    // A small model that must call goes on calling as long as it may; a client that wants that says so.
    let must_call = matches!(tool_choice, ToolChoice::Required | ToolChoice::Named(_));
    let thinking = thinking::Fields {
        reasoning_effort: wire.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref()),
        chat_template_kwargs: wire.chat_template_kwargs.as_ref(),
        ..thinking::Fields::default()
    };
    let wanted = Wanted {
        tool_choice,
        one_call: wire.parallel_tool_calls.map_or(must_call, |several| !several),
        shape: shape::responses(wire.text.as_ref().and_then(|text| text.format.as_deref()))?,
        thinking: thinking.thinking()?,
        template_args: thinking.template_args()?,
        adapters: adapters::adapters("lora", wire.lora.as_deref())?,
    };
    let max_tokens = integer("max_output_tokens", wire.max_output_tokens, 1, i64::MAX)?;
    let request = Request {
        model,
        messages,
        tools: tools::read_flat(wire.tools.take().unwrap_or_default())?,
        sampling: from_json::<WireSampling>(text, "")?.read(&Sampling::default())?,
        wanted,
        n_logprobs: wire.n_logprobs()?,
        max_tokens: max_tokens.map(|n_tokens| usize::try_from(n_tokens).unwrap_or(usize::MAX)),
        stop: Vec::new(),
        client: Client { name: peer.to_owned(), salt: fields::salt(wire.cache_salt.take())?, dialect: Dialect::OpenAi },
        conversation: wire.user.take().filter(|name| !name.is_empty()),
        layout: None,
        priority: Priority::default(),
    };
    Ok(Parsed { request, echo: Echo::of(text)?, is_streamed: wire.stream == Some(true) })
}

impl Wire {
    fn refuse_stored(&self) -> Result<(), ApiError> {
        let is_given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        let stored = [
            (
                "previous_response_id",
                self.previous_response_id.is_some(),
                "responses are not kept: send the whole input",
            ),
            ("conversation", is_given(&self.conversation), "conversations are not kept: send the whole input"),
            ("prompt", is_given(&self.prompt), "prompts are not kept here: send its text as `instructions`"),
            ("background", self.background == Some(true), "responses are not kept, so none can be fetched later"),
        ];
        match stored.iter().find(|(_, is_wanted, _)| *is_wanted) {
            Some((field, _, reason)) => Err(ApiError::field(*field, *reason)),
            None => Ok(()),
        }
    }

    fn n_logprobs(&self) -> Result<Option<usize>, ApiError> {
        let top = integer("top_logprobs", self.top_logprobs, 0, TOP_LOGPROBS_MAX)?;
        let is_wanted = self.include.iter().flatten().any(|name| name == LOGPROBS) || top.is_some_and(|top| top > 0);
        Ok(is_wanted.then(|| top.unwrap_or(0) as usize))
    }
}

/// A function is named beside its type, not within an object of its own.
fn choice(choice: Option<&Value>) -> Result<ToolChoice, ApiError> {
    match choice {
        Some(object) if object["type"] == "function" && object.get("function").is_none() => {
            match object["name"].as_str() {
                Some(name) if !name.is_empty() => Ok(ToolChoice::Named(name.to_owned())),
                _ => Err(ApiError::field("tool_choice.name", "is required")),
            }
        }
        choice => tools::choice(choice),
    }
}

impl Echo {
    /// `body`: the request.
    fn of(body: &str) -> Result<Echo, ApiError> {
        let mut body: Map<String, Value> = from_json(body, "")?;
        let mut echo = Map::new();
        for (name, default) in [
            ("instructions", Value::Null),
            ("max_output_tokens", Value::Null),
            ("metadata", json!({})),
            ("parallel_tool_calls", json!(true)),
            ("prompt_cache_key", Value::Null),
            ("reasoning", json!({ "effort": null, "summary": null })),
            ("safety_identifier", Value::Null),
            ("temperature", json!(1.0)),
            ("text", json!({ "format": { "type": "text" } })),
            ("tool_choice", json!("auto")),
            ("tools", json!([])),
            ("top_logprobs", json!(0)),
            ("top_p", json!(1.0)),
            ("truncation", json!("disabled")),
            ("user", Value::Null),
        ] {
            let given = body.remove(name).filter(|value| !value.is_null());
            echo.insert(name.to_owned(), given.unwrap_or(default));
        }
        Ok(Echo(echo))
    }
}
