//! What a client is told when its request cannot be answered.
//!
//! An *API error* carries two texts: the message goes to the client, `log` (if the cause says more than a client should
//! see) only to the log. Each dialect has its own form of it.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::PinFailure;
use crate::prompt::{PlanFailure, PromptError};
use crate::request::Dialect;
use crate::scheduler::{PinError, SubmitError};
use crate::telemetry::ReadError;

/// Where the planner finds the form of an answer at fault: as chats have it, and other dialects rename.
pub(super) const SCHEMA: &str = "response_format.json_schema.schema";

/// When to come back after the planner's inbox was full: it takes a request in milliseconds.
const PLANNER_RETRY: Duration = Duration::from_secs(1);

/// When to come back after telemetry's inbox was full: it takes a record in microseconds, unless the disk is stuck.
const TELEMETRY_RETRY: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    message: String,
    /// The field at fault: `messages[2].content`.
    param: Option<String>,
    /// A word that programs can match.
    code: Option<&'static str>,
    /// What the log should know and the client need not.
    log: Option<String>,
    number: Option<Number>,
}

/// What programs act on without reading the message.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    RetryAfter(Duration),
    /// Of a prompt that does not fit, for clients that shorten it themselves.
    Length {
        n_prompt: usize,
        n_context: usize,
    },
    /// Of pins that do not fit, in cells.
    Pins {
        n_needed: u32,
        n_missing: u32,
        n_context: u32,
    },
}

/// Left in a response's extensions: its body is written last, in the dialect of the path that was asked.
#[derive(Clone)]
pub(super) struct Fault(pub(super) Box<ApiError>);

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None, log: None, number: None }
    }

    /// `field` holds something it must not.
    pub(super) fn field(field: impl Into<String>, reason: impl std::fmt::Display) -> ApiError {
        let field = field.into();
        ApiError { param: Some(field.clone()), ..ApiError::body(format!("{field}: {reason}")) }
    }

    /// The field at fault stands in `place`.
    pub(super) fn inside(self, place: &str) -> ApiError {
        let Some(param) = self.param else { return self };
        let message = format!("{place}.{}", self.message);
        ApiError { param: Some(format!("{place}.{param}")), message, ..self }
    }

    /// The same, where the client knows the field by another name: `from` is a part of its name here.
    pub(super) fn renamed(self, from: &str, to: &str) -> ApiError {
        let Some(param) = self.param else { return self };
        let renamed = param.replacen(from, to, 1);
        ApiError { message: self.message.replacen(&param, &renamed, 1), param: Some(renamed), ..self }
    }

    /// The body as a whole cannot be read.
    pub(super) fn body(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn body_too_large(max: u64) -> ApiError {
        ApiError {
            code: Some("body_too_large"),
            ..ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body is larger than {max} bytes, which is server.max_body"),
            )
        }
    }

    pub(super) fn body_too_slow(limit: Duration) -> ApiError {
        ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {} seconds", limit.as_secs()),
        )
    }

    pub(super) fn too_long(n_prompt: usize, n_context: usize) -> ApiError {
        ApiError {
            param: Some("messages".to_owned()),
            code: Some("context_length_exceeded"),
            number: Some(Number::Length { n_prompt, n_context }),
            ..ApiError::body(format!(
                "this prompt has {n_prompt} tokens, the context holds {n_context}, of which an answer needs at least one"
            ))
        }
    }

    pub(super) fn unknown_model(message: impl Into<String>) -> ApiError {
        ApiError {
            param: Some("model".to_owned()),
            code: Some("model_not_found"),
            ..ApiError::new(StatusCode::NOT_FOUND, message)
        }
    }

    pub(super) fn unknown_route(path: &str) -> ApiError {
        ApiError {
            code: Some("unknown_route"),
            ..ApiError::new(StatusCode::NOT_FOUND, format!("{path} is not a route here"))
        }
    }

    pub(super) fn unknown_request(id: &str) -> ApiError {
        ApiError {
            code: Some("unknown_request"),
            ..ApiError::new(StatusCode::NOT_FOUND, format!("no request {id} is remembered"))
        }
    }

    pub(super) fn unknown_pin(name: &str) -> ApiError {
        ApiError {
            code: Some("unknown_pin"),
            ..ApiError::new(StatusCode::NOT_FOUND, format!("there is no pin {name}; GET /hob/v1/pins lists them"))
        }
    }

    /// `what` is for those who may change the house.
    pub(super) fn not_from_elsewhere(what: &str) -> ApiError {
        ApiError::forbidden(
            "not_from_elsewhere",
            format!(
                "{what} is for those who may use /hob/: commands on hob's own machine, and clients with that route"
            ),
        )
    }

    pub(super) fn no_key() -> ApiError {
        ApiError::unauthorized("a key is needed: send it as `Authorization: Bearer KEY`; `hob key new NAME` makes one")
    }

    pub(super) fn unknown_key() -> ApiError {
        ApiError::unauthorized("this key is not known here")
    }

    fn unauthorized(message: &str) -> ApiError {
        ApiError { code: Some("invalid_api_key"), ..ApiError::new(StatusCode::UNAUTHORIZED, message) }
    }

    pub(super) fn admin_needs_key() -> ApiError {
        ApiError::forbidden("key_needed", "hob's own routes need a key beyond hob's own machine".to_owned())
    }

    pub(super) fn route_not_allowed(client: &str, path: &str) -> ApiError {
        ApiError::forbidden("route_not_allowed", format!("{client} may not ask for {path}: see its `routes`"))
    }

    pub(super) fn foreign_host(host: &str) -> ApiError {
        let message = format!("{host:?} is no name of this server; if it is, put it into server.allowed_hosts");
        ApiError::forbidden("foreign_host", message)
    }

    pub(super) fn foreign_origin(origin: &str) -> ApiError {
        let message =
            format!("pages of {origin:?} may not ask here; if they should, put it into server.allowed_origins");
        ApiError::forbidden("foreign_origin", message)
    }

    fn forbidden(code: &'static str, message: String) -> ApiError {
        ApiError { code: Some(code), ..ApiError::new(StatusCode::FORBIDDEN, message) }
    }

    pub(super) fn too_many_requests(client: &str, retry_after: Duration) -> ApiError {
        ApiError {
            code: Some("rate_limit_exceeded"),
            number: Some(Number::RetryAfter(retry_after)),
            ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, format!("{client} asks more often than its `rate` allows"))
        }
    }

    pub(super) fn wrong_method(method: &str, path: &str) -> ApiError {
        ApiError {
            code: Some("method_not_allowed"),
            ..ApiError::new(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not take {method}"))
        }
    }

    /// The daemon is going down, or the part that would answer has.
    pub(super) fn stopping() -> ApiError {
        ApiError {
            code: Some("stopping"),
            ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down")
        }
    }

    fn busy(message: &str, retry_after: Duration) -> ApiError {
        ApiError {
            code: Some("queue_full"),
            number: Some(Number::RetryAfter(retry_after)),
            ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }

    /// The engine could not go on with the request; `message` is fit for the client.
    pub(super) fn failed(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// We broke a rule of our own; only the log says which.
    pub(super) fn internal(log: String) -> ApiError {
        ApiError { log: Some(log), ..ApiError::failed("the server lost track of this request") }
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn log_text(&self) -> &str {
        self.log.as_ref().unwrap_or(&self.message)
    }

    /// As clients of `dialect` read it.
    pub(super) fn to_json(&self, dialect: Dialect, id: &str) -> Value {
        match dialect {
            Dialect::OpenAi => self.to_openai(),
            Dialect::Ollama => self.to_ollama(),
            Dialect::Anthropic => {
                let error = json!({ "type": self.anthropic_type(), "message": self.anthropic_message() });
                json!({ "type": "error", "error": error, "request_id": id })
            }
        }
    }

    /// OpenAI's error object.
    pub(super) fn to_openai(&self) -> Value {
        let kind = if self.status.is_client_error() { "invalid_request_error" } else { "server_error" };
        let mut error = json!({ "message": self.message, "type": kind, "param": self.param, "code": self.code });
        if let Some(Number::Length { n_prompt, n_context }) = self.number {
            error["n_prompt_tokens"] = n_prompt.into();
            error["n_ctx"] = n_context.into();
        }
        if let Some(Number::Pins { n_needed, n_missing, n_context }) = self.number {
            error["needed"] = n_needed.into();
            error["missing"] = n_missing.into();
            error["n_ctx"] = n_context.into();
        }
        json!({ "error": error })
    }

    pub(super) fn to_ollama(&self) -> Value {
        json!({ "error": self.message })
    }

    /// Clients know a prompt that is too long by Anthropic's words for it, and shorten it.
    fn anthropic_message(&self) -> String {
        match self.number {
            Some(Number::Length { n_prompt, n_context }) => {
                format!("prompt is too long: {n_prompt} tokens > {} maximum", n_context - 1)
            }
            _ => self.message.clone(),
        }
    }

    /// Anthropic's words for kinds of errors.
    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            status if status < 500 => "invalid_request_error",
            _ => "api_error",
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let json = [(header::CONTENT_TYPE, "application/json")];
        let mut response = (self.status, json).into_response();
        if let Some(Number::RetryAfter(retry_after)) = self.number {
            let seconds = retry_after.as_millis().div_ceil(1000).max(1);
            let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(Fault(Box::new(self)));
        response
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> ApiError {
        match error {
            SubmitError::Busy { retry_after } => ApiError::busy("the queue is full", retry_after),
            SubmitError::Stopped => ApiError::stopping(),
        }
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> ApiError {
        let message = error.to_string();
        match error {
            ReadError::Busy => ApiError::busy(&message, TELEMETRY_RETRY),
            ReadError::Off => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message),
            ReadError::Database(source) => {
                ApiError { log: Some(format!("{message}: {source}")), ..ApiError::failed(message) }
            }
        }
    }
}

impl From<PlanFailure> for ApiError {
    fn from(failure: PlanFailure) -> ApiError {
        match failure {
            PlanFailure::Prompt(error) => error.into(),
            PlanFailure::Busy => ApiError::busy("too many prompts are being planned", PLANNER_RETRY),
            PlanFailure::Stopped => ApiError::stopping(),
            PlanFailure::File(_) => ApiError::failed(failure.to_string()),
        }
    }
}

impl From<PinFailure> for ApiError {
    fn from(failure: PinFailure) -> ApiError {
        let conflict =
            |code, message: String| ApiError { code: Some(code), ..ApiError::new(StatusCode::CONFLICT, message) };
        let error = match failure {
            PinFailure::Plan(failure) => return failure.into(),
            PinFailure::Pin(error) => error,
        };
        let message = error.to_string();
        match error {
            PinError::TooLarge(too_large) => {
                let n = |cells: usize| u32::try_from(cells).unwrap_or(u32::MAX);
                let (n_needed, n_missing) = (n(too_large.needed), n(too_large.missing));
                let number = Some(Number::Pins { n_needed, n_missing, n_context: n(too_large.context) });
                ApiError { number, ..conflict("pins_too_large", message) }
            }
            PinError::TooMany { .. } => conflict("too_many_pins", message),
            PinError::Configured { .. } => conflict("configured_pin", message),
            PinError::Anothers { .. } => conflict("anothers_pin", message),
            PinError::Busy => ApiError::busy(&message, TELEMETRY_RETRY),
            PinError::Stopped => ApiError::stopping(),
        }
    }
}

impl From<PromptError> for ApiError {
    fn from(error: PromptError) -> ApiError {
        let message = error.to_string();
        let param = match error {
            PromptError::UnknownModel { .. } => return ApiError::unknown_model(message),
            PromptError::Reserved { index, .. } => format!("messages[{index}]"),
            PromptError::ReservedElsewhere { place, .. } | PromptError::Wanted { place, .. } => place,
            PromptError::Template { .. } | PromptError::NoHead => "messages".to_owned(),
        };
        ApiError { param: Some(param), ..ApiError::body(message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up_and_at_least_a_second() {
        for (retry_after, expected) in [(0, "1"), (1, "1"), (1000, "1"), (1001, "2"), (61_500, "62")] {
            let error = ApiError::from(SubmitError::Busy { retry_after: Duration::from_millis(retry_after) });
            let response = error.into_response();
            assert_eq!(response.status(), 503);
            assert_eq!(response.headers()["retry-after"], expected, "{retry_after} ms");
        }
    }

    #[test]
    fn a_prompt_error_names_its_place() {
        let check = |error: PromptError, status: u16, param: &str| {
            let error = ApiError::from(error);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (status, Some(param)));
        };
        check(PromptError::UnknownModel { name: "a".into(), known: "b".into() }, 404, "model");
        check(PromptError::Reserved { index: 3, code: 0xE000 }, 400, "messages[3]");
        check(PromptError::ReservedElsewhere { place: "tools[1]".into(), code: 0xE000 }, 400, "tools[1]");
        check(PromptError::Wanted { place: "tool_choice".into(), reason: "no".into() }, 400, "tool_choice");
        check(PromptError::Template { reason: "roles must alternate".into() }, 400, "messages");
    }

    #[test]
    fn the_log_has_its_own_text_where_there_is_one() {
        let error = ApiError::internal("row 7 of the batch".into());
        for dialect in [Dialect::OpenAi, Dialect::Ollama, Dialect::Anthropic] {
            assert!(!error.to_json(dialect, "1").to_string().contains("row 7"));
        }
        assert_eq!(error.log_text(), "row 7 of the batch");
    }
}
