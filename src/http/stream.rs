//! An answer as it comes, whatever the dialect: what keeps the connection alive, and how the stream begins and ends.
//!
//! A *script* is how one dialect writes an answer down, piece by piece.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::answer::{Answer, CACHE_HEADER, cache_header};
use super::choice::Piece;
use super::error::ApiError;
use crate::request::CacheUse;

/// Headers go out after this even if the request still waits: clients give up on a server that says nothing.
const HEADERS_WITHIN: Duration = Duration::from_secs(2);

/// Something is sent at least this often while the prompt is computed. Many proxies drop a
/// connection that is silent for 60 s; the client then asks again, and the same prompt is computed twice.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

pub(super) trait Script: Send + 'static {
    const CONTENT_TYPE: &'static str;

    /// What comes before the first piece. `cache`: what the cache did, if that is known already.
    fn opening(&mut self, _answer: &Answer, _cache: Option<&CacheUse>) -> String {
        String::new()
    }

    /// `piece`, and, when the answer is over by it, what ends the stream.
    fn piece(&mut self, answer: &Answer, piece: Piece) -> String;

    /// What clients read over; empty: this dialect has no such thing.
    fn keep_alive(&mut self, answer: &Answer) -> String;

    /// What ends a stream that cannot be completed.
    fn broken(&mut self, answer: &Answer, error: &ApiError) -> String;
}

/// The answer as a stream. An error before admission is still a status, unless admission takes more than two seconds.
pub(super) async fn respond<S: Script>(mut answer: Answer, mut script: S) -> Result<Response, ApiError> {
    let cache = match timeout_at(answer.received() + HEADERS_WITHIN, answer.admission()).await {
        Ok(cache) => Some(cache?),
        Err(_) => None,
    };
    let headers = [
        (header::CONTENT_TYPE, S::CONTENT_TYPE),
        (header::CACHE_CONTROL, "no-cache"),
        // A proxy that buffers the stream would hold back the keep-alives, too; nginx obeys this one.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let cache_header = cache.as_ref().map(|cache| cache_header(cache, &answer.plan));
    let opening = script.opening(&answer, cache.as_ref());
    let written = Written { answer, script, is_over: false };
    let pieces = stream::unfold(written, |mut written| async { Some((written.next().await?, written)) });
    let opening = stream::iter(Some(opening).filter(|opening| !opening.is_empty()));
    let body = futures_util::StreamExt::map(futures_util::StreamExt::chain(opening, pieces), Ok::<_, Infallible>);
    let mut response = (headers, Body::from_stream(body)).into_response();
    if let Some(cache) = cache_header {
        let value = HeaderValue::from_str(&cache).expect("digits and words are a header value");
        response.headers_mut().insert(CACHE_HEADER, value);
    }
    Ok(response)
}

struct Written<S> {
    answer: Answer,
    script: S,
    is_over: bool,
}

impl<S: Script> Written<S> {
    /// What to send next; `None` ends the stream.
    async fn next(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        Some(match timeout_at(Instant::now() + KEEP_ALIVE, self.answer.next()).await {
            Err(_) => self.script.keep_alive(&self.answer),
            Ok(Ok(piece)) => {
                self.is_over = self.answer.is_over();
                self.script.piece(&self.answer, piece)
            }
            Ok(Err(error)) => {
                self.is_over = true;
                warn!(id = self.answer.id, error = error.log_text(), "stream broken off");
                self.script.broken(&self.answer, &error)
            }
        })
    }
}

/// A server-sent event: its data is one line.
pub(super) fn event(data: &serde_json::Value) -> String {
    format!("data: {data}\n\n")
}
