//! OpenAI's dialect: chat completions and the list of models.
//!
//! `request` parses, with `message` for its messages; `answer` renders a whole answer, `stream` a
//! streamed one.

mod answer;
mod message;
mod request;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::stream::Chunks;
use super::access::Caller;
use super::answer::{Answer, App, Asked, RequestId};
use super::error::ApiError;
use super::routes::json_response;
use super::{body, stream as streamed, wishes};
use crate::request::Request;

/// The request in the body of a `POST /v1/chat/completions` of `client`, read as the route does: for `hob bench`.
pub fn parse_chat(body: &[u8], client: &str) -> Result<Request, BadBody> {
    Ok(request::parse(body, client)?.request)
}

/// A chat request inside another body.
pub(super) fn parse_request(body: &[u8], client: &str) -> Result<Request, ApiError> {
    Ok(request::parse(body, client)?.request)
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
    let request::ChatRequest { mut request, n_choices, form } = request::parse(&body, &caller.name)?;
    wishes::settle(&mut request, &headers, &caller, &app.house.models())?;
    let answer = Answer::begin(&app, Asked { request, n_choices, id, received }).await?;
    match form {
        request::Form::Whole => answer::respond(answer).await,
        request::Form::Stream { include_usage } => {
            let chunks = Chunks::new(answer.n_choices(), include_usage);
            streamed::respond(answer, chunks).await
        }
    }
}

pub(super) async fn models(State(app): State<Arc<App>>) -> Response {
    let models: Vec<Value> = app.house.models().iter().map(|name| model_json(name, app.created)).collect();
    json_response(&json!({ "object": "list", "data": models }))
}

/// How a context pools is fixed when it is made, and hob's is made to answer.
pub(super) async fn embeddings() -> ApiError {
    ApiError::field("model", "models here answer chats and make no embeddings; hob has no second model yet")
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
