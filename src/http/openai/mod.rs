//! OpenAI's dialect: chat completions and the list of models.
//!
//! `request` parses, with `message`, `tools`, `shape` and `thinking` for its parts; `answer` renders a whole answer, `stream` a
//! streamed one.

mod answer;
mod logprobs;
mod message;
mod request;
mod shape;
mod stream;
#[cfg(test)]
mod tests;
mod thinking;
mod tools;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::access::Caller;
use super::answer::{Answer, App, Asked, RequestId};
use super::body;
use super::error::ApiError;
use super::routes::json_response;
use crate::request::{LayoutMode, Priority, Request};

/// A request's header that says what may be moved in its prompt.
const LAYOUT: &str = "x-hob-layout";
/// A request's header for jobs that nobody waits for: a title, tags.
const PRIORITY: &str = "x-hob-priority";

/// The request in the body of a `POST /v1/chat/completions` of `client`, read as the route does: for `hob bench`.
pub fn parse_chat(body: &[u8], client: &str) -> Result<Request, BadBody> {
    Ok(request::parse(body, client)?.request)
}

/// A chat request inside another body.
pub(super) fn parse_request(body: &[u8], client: &str) -> Result<Request, ApiError> {
    Ok(request::parse(body, client)?.request)
}

/// A body of one of hob's own routes.
pub(super) fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let text = std::str::from_utf8(body).map_err(|error| ApiError::body(format!("the body is not UTF-8: {error}")))?;
    request::check_depth(text).map_err(ApiError::body)?;
    request::from_json(text, "")
}

/// What the route would answer with a 4xx.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BadBody(#[from] ApiError);

pub(super) async fn chat_completions(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = body::read(body, app.max_body).await?;
    let received = Instant::now();
    let mut asked = request::parse(&body, &caller.name)?;
    asked.request.layout = layout(&headers)?.or(caller.layout());
    asked.request.is_background = priority(&headers)?.unwrap_or(caller.priority()) == Priority::Background;
    caller.choose_model(&mut asked.request.model, &app.house.models());
    let request::ChatRequest { request, n_choices, form } = asked;
    let answer = Answer::begin(&app, Asked { request, n_choices, id, received }).await?;
    match form {
        request::Form::Whole => answer::respond(answer).await,
        request::Form::Stream { include_usage } => stream::respond(answer, include_usage).await,
    }
}

/// What the request says of who waits for it.
fn priority(headers: &HeaderMap) -> Result<Option<Priority>, ApiError> {
    let Some(value) = headers.get(PRIORITY) else { return Ok(None) };
    let found = Priority::NAMES.iter().find(|(name, _)| value == name);
    let (_, priority) = found.ok_or_else(|| {
        let names = Priority::NAMES.map(|(name, _)| name).join(", ");
        ApiError::field(PRIORITY, format!("{value:?}: must be one of {names}"))
    })?;
    Ok(Some(*priority))
}

/// The layout that the request wishes for itself.
fn layout(headers: &HeaderMap) -> Result<Option<LayoutMode>, ApiError> {
    let Some(value) = headers.get(LAYOUT) else { return Ok(None) };
    let found = LayoutMode::NAMES.iter().find(|(name, _)| value == name);
    let (_, mode) = found.ok_or_else(|| {
        let names = LayoutMode::NAMES.map(|(name, _)| name).join(", ");
        ApiError::field(LAYOUT, format!("{value:?}: must be one of {names}"))
    })?;
    Ok(Some(*mode))
}

pub(super) async fn models(State(app): State<Arc<App>>) -> Response {
    let models: Vec<Value> = app.house.models().iter().map(|name| model_json(name, app.created)).collect();
    json_response(&json!({ "object": "list", "data": models }))
}

pub(super) fn model(app: &App, id: &str) -> Result<Response, ApiError> {
    let models = app.house.models();
    if models.iter().any(|name| name == id) {
        Ok(json_response(&model_json(id, app.created)))
    } else {
        let known = models.join(", ");
        Err(ApiError::unknown_model(format!("model `{id}` is not here; there are: {known}")))
    }
}

fn model_json(name: &str, created: u64) -> Value {
    json!({ "id": name, "object": "model", "created": created, "owned_by": "hob" })
}
