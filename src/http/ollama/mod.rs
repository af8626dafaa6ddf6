//! Ollama's dialect: chat and generate as lines of JSON, and what its clients ask of models.
//!
//! `request` parses, with `message` for its messages; `answer` renders, whole and line by line; `models` lists and shows. What
//! Ollama's clients set to steer its memory (`keep_alive`, `num_ctx`, `num_gpu`, …) is accepted and changes nothing: hob's model
//! and context are loaded once, for all.

mod answer;
mod message;
mod models;
mod request;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use tokio::time::Instant;
use tracing::info;

use self::answer::Lines;
use self::request::{Asked, Question, Route};
use super::access::Caller;
use super::answer::{Answer, App, RequestId};
use super::error::{ApiError, SCHEMA};
use super::{body, stream, wishes};

pub(super) use self::models::{embed, ps, pull, show, tags, version};

pub(super) async fn chat(
    state: State<Arc<App>>,
    caller: Extension<Caller>,
    id: Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    respond(state, caller, id, headers, body, Route::Chat).await
}

pub(super) async fn generate(
    state: State<Arc<App>>,
    caller: Extension<Caller>,
    id: Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    respond(state, caller, id, headers, body, Route::Generate).await
}

async fn respond(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
    route: Route,
) -> Result<Response, ApiError> {
    let body = body::read(body, app.max_body).await?;
    let received = Instant::now();
    let Asked { question, is_streamed, n_ctx } = request::parse(&body, &caller.name, route)?;
    let mut request = match question {
        Question::Answer(request) => *request,
        // Clients load a model by asking it nothing, and hob's is always loaded.
        Question::Load { model, reason } => {
            let model = models::known(&app, &model)?;
            return Ok(answer::loaded(&model, route, reason));
        }
    };
    if let Some(n_ctx) = n_ctx.filter(|&n_ctx| n_ctx > app.house.context() as f64)
        && !app.has_told_num_ctx.swap(true, std::sync::atomic::Ordering::Relaxed)
    {
        info!(num_ctx = n_ctx, context = app.house.context(), "a client wants a larger context than model.context");
    }
    models::without_tag(&mut request.model, &app.house.models());
    wishes::settle(&mut request, &headers, &caller, &app.house.models())?;
    // Known to be missing it is refused in Ollama's words, which clients look for.
    request.model = models::known(&app, &request.model)?;
    let asked = super::answer::Asked { request, n_choices: 1, id, received };
    let answer = Answer::begin(&app, asked).await.map_err(|error| error.renamed(SCHEMA, "format"))?;
    match is_streamed {
        true => stream::respond(answer, Lines::new(route)).await,
        false => answer::respond(answer, route).await,
    }
}
