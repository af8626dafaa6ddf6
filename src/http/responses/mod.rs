//! OpenAI's responses: `POST /v1/responses`.
//!
//! `request` parses, with `input` for its items; `answer` renders a whole response, `stream` one that grows, event by event.
//! Nothing is stored: each request brings its whole history, and what its K/V stands on is found by its tokens.

mod answer;
mod input;
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
use tokio::time::Instant;

use self::stream::Events;
use super::access::Caller;
use super::answer::{Answer, App, Asked, RequestId};
use super::error::{ApiError, SCHEMA};
use super::{body, stream as streamed, wishes};

pub(super) async fn responses(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = body::read(body, app.max_body).await?;
    let received = Instant::now();
    let request::Parsed { mut request, echo, is_streamed } = request::parse(&body, &caller.name)?;
    wishes::settle(&mut request, &headers, &caller, &app.house.models())?;
    let begun = Answer::begin(&app, Asked { request, n_choices: 1, id, received }).await;
    let answer = begun.map_err(|error| error.renamed(SCHEMA, "text.format.schema").renamed(".function.", "."))?;
    match is_streamed {
        true => streamed::respond(answer, Events::new(echo)).await,
        false => answer::respond(answer, echo).await,
    }
}
