//! One request's way behind every dialect: plan, check its length, submit, wait.
//!
//! An *answer* is the receiving end of a submitted request. Dropping it, which hyper does with the handler or the body
//! when the client's connection ends, drops the event receiver, and so the scheduler learns that nobody is waiting.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::House;
use super::error::ApiError;
use crate::prompt::Spoken;
use crate::request::{CacheUse, Done, Event, Finish, Request};
use crate::scheduler::Submission;
use crate::telemetry::Label;

/// What handlers share.
pub(super) struct App {
    pub(super) house: Arc<dyn House>,
    /// Largest body in bytes.
    pub(super) max_body: u64,
    /// `/ready` no longer waits for the pins after this.
    pub(super) start_wait: Duration,
    pub(super) started: Instant,
    /// The start in seconds since 1970, which `/v1/models` calls each model's birth.
    pub(super) created: u64,
    pub(super) closing: Closing,
}

/// Tells running answers that the daemon waits for them no longer.
#[derive(Clone)]
pub(super) struct Closing(pub(super) watch::Receiver<bool>);

impl Closing {
    async fn closed(&mut self) {
        // An error means that the server itself is gone, which is the same news.
        let _ = self.0.wait_for(|is_closing| *is_closing).await;
    }
}

/// Who asks: the connection's peer.
#[derive(Clone)]
pub(super) struct Peer(pub(super) Arc<str>);

/// `x-request-id`, made by us.
#[derive(Clone)]
pub(super) struct RequestId(pub(super) String);

pub(super) struct Answer {
    pub(super) id: String,
    /// The model as the client named it.
    pub(super) model: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    received: Instant,
    events: mpsc::Receiver<Event>,
    closing: Closing,
    house: Arc<dyn House>,
    /// What was said so far, for the planner to know again.
    spoken: Spoken,
}

impl Answer {
    /// Plans and submits `request`, which was read completely at `received`.
    pub(super) async fn begin(
        app: &App,
        request: Request,
        RequestId(id): RequestId,
        received: Instant,
    ) -> Result<Answer, ApiError> {
        let n_vocab = app.house.n_vocab();
        if let Some((token, _)) = request.sampling.logit_bias.iter().find(|(token, _)| token.0 as usize >= n_vocab) {
            let reason = format!("token {} is not in the vocabulary, which has {n_vocab} tokens", token.0);
            return Err(ApiError::field("logit_bias", reason));
        }

        let owner = request.client.owner();
        let (model, client) = (request.model.clone(), request.client.clone());
        let (sampling, stop) = (request.sampling.clone(), request.stop.clone());
        let planned = app.house.plan(request).await?;

        let (n_prompt, n_context) = (planned.prompt.tokens.len(), app.house.context());
        if n_prompt + 1 > n_context {
            return Err(ApiError::too_long(n_prompt, n_context));
        }

        // As many events as tokens fit, and the first and last: the scheduler never finds it full, however slowly the
        // client reads, and the channel allocates only what it holds.
        let (sender, events) = mpsc::channel(n_context + 2);
        app.house.submit(Submission {
            prompt: planned.prompt,
            sampling,
            max_tokens: planned.max_tokens,
            stop,
            owner,
            received: received.into_std(),
            label: Label {
                id: id.clone(),
                client: client.name,
                profile: planned.profile,
                dialect: client.dialect.name(),
            },
            events: sender,
        })?;
        let spoken = Spoken {
            owner,
            opening: planned.opening,
            record: planned.record,
            text: String::new(),
            calls: Vec::new(),
            tokens: Vec::new(),
        };
        let (closing, house) = (app.closing.clone(), app.house.clone());
        Ok(Answer { id, model, created: unix_seconds(), received, events, closing, house, spoken })
    }

    /// When the request was read.
    pub(super) fn received(&self) -> Instant {
        self.received
    }

    /// The next event. Whatever ends an answer without completing it is an error here, so `Failed` is never returned.
    /// Safe to cancel.
    pub(super) async fn next(&mut self) -> Result<Event, ApiError> {
        let event = tokio::select! {
            biased;
            event = self.events.recv() => event,
            () = self.closing.closed() => None,
        };
        match event {
            Some(Event::Failed(message)) => Err(ApiError::failed(message)),
            Some(Event::Done(Done { finish: Finish::Error | Finish::Cancelled, .. })) => {
                Err(ApiError::failed("the model could not finish this answer; asking again may help"))
            }
            Some(event) => {
                self.listen(&event);
                Ok(event)
            }
            // The scheduler drops the sender without a last event only when it ends.
            None => Err(ApiError::stopping()),
        }
    }

    /// Collects what is said; at its end the planner is to know it again.
    fn listen(&mut self, event: &Event) {
        match event {
            Event::Text(text) => self.spoken.text.push_str(text),
            Event::Done(done) => {
                self.spoken.tokens = done.generated.clone();
                self.house.remember(self.spoken.clone());
            }
            Event::Admitted(_) | Event::Failed(_) => {}
        }
    }

    /// Waits for the first event.
    pub(super) async fn admission(&mut self) -> Result<CacheUse, ApiError> {
        match self.next().await? {
            Event::Admitted(cache) => Ok(cache),
            event => Err(ApiError::internal(format!("the first event was {event:?} instead of Admitted"))),
        }
    }

    /// Waits for the end: the whole text, and how it came about.
    pub(super) async fn whole(mut self) -> Result<(String, Done), ApiError> {
        let mut text = String::new();
        loop {
            match self.next().await? {
                Event::Text(piece) => text.push_str(&piece),
                Event::Done(done) => return Ok((text, done)),
                Event::Admitted(_) | Event::Failed(_) => {}
            }
        }
    }
}

/// The value of `x-hob-cache`.
pub(super) fn cache_header(cache: &CacheUse) -> String {
    format!(
        "reused={}; of={}; restored={}; cause={}",
        cache.n_cached,
        cache.n_prompt,
        cache.n_restored,
        cache.cause.name()
    )
}

pub(super) fn unix_seconds() -> u64 {
    // A clock before 1970 is not set yet; 0 says so.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
