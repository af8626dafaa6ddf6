//! The route table, and what every answer has in common: an id, a log line, JSON for what is not here.
//!
//! A *route* is a path with its method; dialects bring their own handlers.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde_json::{Value, json};
use tracing::{debug, warn};

use super::access::Attempt;
use super::answer::{App, Peer, RequestId};
use super::error::{ApiError, Fault};
use super::{anthropic, ollama, openai, pins, ready, requests, responses};
use crate::request::Dialect;

pub(super) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(openai::chat_completions))
        .route("/v1/responses", post(responses::responses))
        .route("/v1/embeddings", post(openai::embeddings))
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/show", post(ollama::show))
        .route("/api/version", get(ollama::version))
        .route("/api/pull", post(ollama::pull))
        .route("/api/embed", post(ollama::embed))
        .route("/api/embeddings", post(ollama::embed))
        .route("/health", get(health))
        .route("/ready", get(ready::ready))
        .route("/hob/v1/pins", get(pins::pins).post(pins::add))
        .route("/hob/v1/pins/{name}", delete(pins::remove))
        .route("/hob/v1/forget", post(pins::forget))
        .route("/hob/v1/cache", get(ready::cache))
        .route("/hob/v1/requests", get(requests::requests))
        .route("/hob/v1/requests/{id}", get(requests::request))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard))
        .layer(middleware::from_fn(identify))
        .with_state(app)
}

pub(super) fn json_response(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// Alive: this thread answers. Says nothing about the model; `/ready` does.
async fn health() -> Response {
    json_response(&json!({ "status": "ok" }))
}

/// The path fails to be read where its percent signs do not decode to UTF-8.
async fn model(
    State(app): State<Arc<App>>,
    uri: Uri,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|_| ApiError::unknown_route(uri.path()))?;
    openai::model(&app, &id)
}

async fn unknown_route(uri: Uri) -> ApiError {
    ApiError::unknown_route(uri.path())
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::wrong_method(method.as_str(), uri.path())
}

/// Lets in whom `access` lets in.
async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().cloned().expect("each connection says whose it is");
    let (method, path, headers) = (request.method(), request.uri().path(), request.headers());
    let attempt = Attempt { peer: &peer, path, headers };
    let cors = app.access.cors(headers);
    // A browser asks whether it may ask, and brings no key for that.
    let is_preflight = method == Method::OPTIONS && !cors.is_empty();
    let mut response = match app.access.admit(&attempt, app.started.elapsed()) {
        _ if is_preflight => StatusCode::NO_CONTENT.into_response(),
        Err(error) => error.into_response(),
        Ok(caller) => {
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            next.run(request).await
        }
    };
    response.headers_mut().extend(cors);
    response
}

/// Gives each request its id, and the log its line.
async fn identify(mut request: Request, next: Next) -> Response {
    let id = format!("{:032x}", fastrand::u128(..));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;

    let (status, dialect) = (response.status().as_u16(), dialect(&path));
    match response.extensions_mut().remove::<Fault>() {
        Some(Fault(error)) => {
            let body = error.to_json(dialect, &id).to_string();
            match error.log_text() {
                error if status >= 500 => warn!(id, %method, path, status, error, "request failed"),
                error => debug!(id, %method, path, status, error, "request refused"),
            }
            *response.body_mut() = Body::from(body);
            // The router counted the empty one.
            response.headers_mut().remove(header::CONTENT_LENGTH);
        }
        None => debug!(id, %method, path, status, "request"),
    }
    let id = HeaderValue::from_str(&id).expect("hexadecimal digits are a header value");
    if dialect == Dialect::Anthropic {
        // Where its own clients look for it.
        response.headers_mut().insert("request-id", id.clone());
    }
    response.headers_mut().insert("x-request-id", id);
    response
}

/// What a client that asks for `path` speaks.
fn dialect(path: &str) -> Dialect {
    match path {
        "/v1/messages" | "/v1/messages/count_tokens" => Dialect::Anthropic,
        _ if path.starts_with("/api/") => Dialect::Ollama,
        _ => Dialect::OpenAi,
    }
}
