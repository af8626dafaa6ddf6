//! Parses the bodies of `POST /api/chat` and `POST /api/generate`.
//!
//! *Options* are how the next token is chosen, in an object of their own; most have the names that llama-server gives them, too.
//! Home Assistant writes whole numbers with a fraction (`8192.0`).

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::message::{self, WireMessage};
use crate::http::error::ApiError;
use crate::http::fields::sampling::WireSampling;
use crate::http::fields::{self, from_json, integer, shape, thinking, tools};
use crate::request::{Client, Dialect, Message, Priority, Request, Role, Sampling, Wanted};

/// Ollama's own limit for `top_logprobs`.
const TOP_LOGPROBS_MAX: i64 = 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    Chat,
    Generate,
}

#[derive(Debug)]
pub(super) struct Asked {
    pub(super) question: Question,
    pub(super) is_streamed: bool,
    /// The context that the client wishes for, in tokens.
    pub(super) n_ctx: Option<f64>,
}

#[derive(Debug)]
pub(super) enum Question {
    Answer(Box<Request>),
    /// Nothing is asked: the model is to be loaded, or unloaded. `reason`: which, in Ollama's word.
    Load {
        model: String,
        reason: &'static str,
    },
}

#[derive(Deserialize)]
struct Wire {
    model: Option<String>,
    messages: Option<Vec<WireMessage>>,
    prompt: Option<String>,
    system: Option<String>,
    tools: Option<Vec<Box<RawValue>>>,
    format: Option<Box<RawValue>>,
    options: Option<Map<String, Value>>,
    stream: Option<bool>,
    think: Option<Value>,
    keep_alive: Option<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    images: Option<Vec<Value>>,
    raw: Option<bool>,
    suffix: Option<String>,
    template: Option<String>,
}

/// What of the options is no sampler's.
#[derive(Deserialize)]
struct Limits {
    num_ctx: Option<f64>,
    num_predict: Option<i64>,
    stop: Option<Value>,
}

/// `peer`: the client's name.
pub(super) fn parse(body: &[u8], peer: &str, route: Route) -> Result<Asked, ApiError> {
    let mut wire: Wire = fields::body(body)?;
    let model = wire.model.take().filter(|model| !model.is_empty());
    let model = model.ok_or_else(|| ApiError::field("model", "is required"))?;
    let is_streamed = wire.stream.unwrap_or(true);

    let options = Value::Object(whole_numbers(wire.options.take().unwrap_or_default())).to_string();
    let inside = |error: ApiError| error.inside("options");
    let limits: Limits = from_json(&options, "options")?;
    let sampling = from_json::<WireSampling>(&options, "options")?.read(&ollama_default()).map_err(inside)?;
    let stop = fields::stop("options.stop", limits.stop)?;
    let max_tokens = limits.num_predict.filter(|&n_tokens| n_tokens > 0);
    let n_ctx = limits.num_ctx;

    let load = |model| {
        let is_unloading = matches!(&wire.keep_alive, Some(Value::Number(n)) if n.as_f64() == Some(0.0));
        let reason = if is_unloading { "unload" } else { "load" };
        Ok(Asked { question: Question::Load { model, reason }, is_streamed, n_ctx })
    };
    let messages = match route {
        Route::Chat => message::read_all(wire.messages.take().unwrap_or_default())?,
        Route::Generate => wire.generated()?,
    };
    if messages.is_empty() {
        return load(model);
    }
    let think = wire.think.as_ref();
    let thinking = thinking::Fields { think, ..thinking::Fields::default() };
    let wanted =
        Wanted { shape: shape::ollama(wire.format.as_deref())?, thinking: thinking.thinking()?, ..Wanted::default() };
    let top = integer("top_logprobs", wire.top_logprobs, 0, TOP_LOGPROBS_MAX)?;
    let request = Request {
        model,
        messages,
        tools: tools::read_all(wire.tools.unwrap_or_default())?,
        sampling,
        wanted,
        n_logprobs: wire.logprobs.filter(|&is_wanted| is_wanted).map(|_| top.unwrap_or(0) as usize),
        max_tokens: max_tokens.map(|n_tokens| usize::try_from(n_tokens).unwrap_or(usize::MAX)),
        stop,
        client: Client { name: peer.to_owned(), salt: None, dialect: Dialect::Ollama },
        conversation: None,
        layout: None,
        priority: Priority::default(),
    };
    Ok(Asked { question: Question::Answer(Box::new(request)), is_streamed, n_ctx })
}

impl Wire {
    /// The one question of `/api/generate` as a conversation.
    fn generated(&self) -> Result<Vec<Message>, ApiError> {
        let refused = |field: &str, reason: &str| Err(ApiError::field(field, reason));
        if self.raw == Some(true) {
            return refused("raw", "prompts without the model's chat template are not supported: leave it out");
        }
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return refused("suffix", "text around a gap is not supported: leave it out");
        }
        if self.template.as_ref().is_some_and(|template| !template.is_empty()) {
            return refused("template", "the model's own chat template is used: leave it out");
        }
        if self.images.as_ref().is_some_and(|images| !images.is_empty()) {
            return refused("images", "images are not supported yet: send text alone");
        }
        let prompt = self.prompt.as_deref().unwrap_or_default();
        if prompt.is_empty() {
            return Ok(Vec::new());
        }
        let system = self.system.as_deref().filter(|system| !system.is_empty());
        let system = system.map(|system| Message::text(Role::System, system));
        Ok(system.into_iter().chain([Message::text(Role::User, prompt)]).collect())
    }
}

/// Ollama's defaults, for clients that were tuned on them; but for its penalty on repeating, which fits names of devices badly.
fn ollama_default() -> Sampling {
    Sampling { temperature: 0.8, top_k: 40, top_p: 0.9, ..Sampling::default() }
}

/// Options with their numbers as integers where they are whole.
fn whole_numbers(mut options: Map<String, Value>) -> Map<String, Value> {
    for value in options.values_mut() {
        if let Some(number) = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 9e15)
            && value.is_f64()
        {
            *value = Value::from(number as i64);
        }
    }
    options
}
