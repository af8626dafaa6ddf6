//! One request's way behind every dialect: plan, check its length, submit, wait.
//!
//! An *answer* is the receiving end of a submitted request: one choice, or as many as were asked for. Dropping it, which hyper
//! does with the handler or the body when the client's connection ends, drops the event receivers, and so the scheduler learns
//! that nobody is waiting.

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use axum::http::HeaderName;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::House;
use super::access::Access;
use super::choice::{Choice, Piece, Whole};
use super::error::ApiError;
use crate::prompt::{Moved, Planned, Section, Spoken};
use crate::request::{CacheUse, Done, Event, Finish, LayoutMode, Request, Sampling};
use crate::scheduler::Submission;
use crate::telemetry::{GainRecord, Label, MovedRecord, PlanRecord, RegionRecord, SectionRecord};

/// What the cache did, and what the layout.
pub(super) const CACHE_HEADER: HeaderName = HeaderName::from_static("x-hob-cache");

/// Hex digits of a hash: enough to tell one text from another.
const HASH_DIGITS: usize = 12;

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
    pub(super) access: Access,
    /// The log knows that a client wishes for a larger context.
    pub(super) has_told_num_ctx: AtomicBool,
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

impl Peer {
    pub(super) fn is_unix(&self) -> bool {
        &*self.0 == "unix"
    }

    /// It asks on this machine.
    pub(super) fn is_here(&self) -> bool {
        self.is_unix() || self.0.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }
}

/// `x-request-id`, made by us.
#[derive(Clone)]
pub(super) struct RequestId(pub(super) String);

/// What is asked, beside the request itself.
pub(super) struct Asked {
    pub(super) request: Request,
    /// Answers to it, at least one.
    pub(super) n_choices: usize,
    pub(super) id: RequestId,
    /// When it was read completely.
    pub(super) received: Instant,
}

pub(super) struct Answer {
    pub(super) id: String,
    /// The model as the client named it.
    pub(super) model: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    /// How its prompt was planned.
    pub(super) plan: Arc<PlanRecord>,
    /// Log probabilities were asked for.
    pub(super) has_logprobs: bool,
    received: Instant,
    closing: Closing,
    choices: Vec<Choice>,
    /// The choice that spoke last; the next one is heard before the others.
    last: usize,
}

impl Answer {
    /// Plans the request and submits it once for each choice. They stand on one prefill: who comes later follows the first
    /// and computes the last prompt token alone. Is one refused, none is begun.
    pub(super) async fn begin(app: &App, asked: Asked) -> Result<Answer, ApiError> {
        let Asked { request, n_choices, id: RequestId(id), received } = asked;
        let n_vocab = app.house.n_vocab();
        if let Some((token, _)) = request.sampling.logit_bias.iter().find(|(token, _)| token.0 as usize >= n_vocab) {
            let reason = format!("token {} is not in the vocabulary, which has {n_vocab} tokens", token.0);
            return Err(ApiError::field("logit_bias", reason));
        }

        let (owner, priority) = (request.client.owner(), request.priority);
        let (model, client) = (request.model.clone(), request.client.clone());
        let (sampling, n_logprobs, stop) = (request.sampling.clone(), request.n_logprobs, request.stop.clone());
        let planned = app.house.plan(request).await?;

        let (n_prompt, n_context) = (planned.prompt.tokens.len(), app.house.context());
        if n_prompt + 1 > n_context {
            return Err(ApiError::too_long(n_prompt, n_context));
        }

        let plan = Arc::new(record(&planned));
        let mut choices = Vec::with_capacity(n_choices);
        let mut submissions = Vec::with_capacity(n_choices);
        for index in 0..n_choices {
            let is_first = index == 0;
            // Two events for each token that fits, and the first and last: the scheduler never finds it full, however slowly
            // the client reads, and the channel allocates only what it holds.
            let id = if is_first { id.clone() } else { format!("{id}.{index}") };
            let (sender, events) = mpsc::channel(2 * n_context + 2);
            let seed = sampling.seed.map(|seed| seed.wrapping_add(index as u32));
            submissions.push(Submission {
                prompt: planned.prompt.clone(),
                sampling: Sampling { seed, ..sampling.clone() },
                rules: Arc::clone(&planned.rules),
                n_logprobs,
                max_tokens: planned.max_tokens,
                stop: stop.clone(),
                owner,
                adapters: planned.adapters,
                priority,
                received: received.into_std(),
                label: Label {
                    id: id.clone(),
                    client: client.name.clone(),
                    profile: planned.profile.clone(),
                    dialect: client.dialect.name(),
                    // What the layout was worth counts once.
                    plan: is_first.then(|| Arc::clone(&plan)),
                },
                events: sender,
            });
            let spoken = Spoken {
                owner,
                opening: planned.opening.clone(),
                // A turn has one answer, and clients go on with the first choice.
                record: planned.record.filter(|_| is_first),
                text: String::new(),
                calls: Vec::new(),
                tokens: Vec::new(),
            };
            let obeyed = (Arc::clone(&planned.rules), Arc::clone(&planned.reader));
            choices.push(Choice::new(id, events, obeyed, Arc::clone(&app.house), spoken));
        }
        app.house.submit(submissions)?;
        let (created, closing) = (unix_seconds(), app.closing.clone());
        let has_logprobs = n_logprobs.is_some();
        Ok(Answer { id, model, created, plan, has_logprobs, received, closing, choices, last: n_choices - 1 })
    }

    pub(super) fn n_choices(&self) -> usize {
        self.choices.len()
    }

    pub(super) fn is_over(&self) -> bool {
        self.choices.iter().all(|choice| choice.is_over)
    }

    /// When the request was read.
    pub(super) fn received(&self) -> Instant {
        self.received
    }

    /// What is said next, by one of the choices; not to be called when all have ended. Whatever ends an answer without
    /// completing it is an error. Safe to cancel.
    pub(super) async fn next(&mut self) -> Result<Piece, ApiError> {
        loop {
            let (index, event) = self.event().await?;
            if let Some(piece) = self.choices[index].hear(index, event) {
                return Ok(piece);
            }
        }
    }

    /// Waits for an event: the first, if it is called before `next`.
    pub(super) async fn admission(&mut self) -> Result<CacheUse, ApiError> {
        match self.event().await? {
            (_, Event::Admitted(cache)) => Ok(cache),
            (_, event) => Err(ApiError::internal(format!("the first event was {event:?} instead of Admitted"))),
        }
    }

    /// Waits for the end of all choices.
    pub(super) async fn whole(mut self) -> Result<Vec<Whole>, ApiError> {
        let mut wholes: Vec<Option<Whole>> = self.choices.iter().map(|_| None).collect();
        while wholes.iter().any(Option::is_none) {
            let (index, event) = self.event().await?;
            if let Some(whole) = self.choices[index].collect(event) {
                wholes[index] = Some(whole);
            }
        }
        Ok(wholes.into_iter().flatten().collect())
    }

    /// The next event of a choice that is not over. `Failed` and its like are errors.
    async fn event(&mut self) -> Result<(usize, Event), ApiError> {
        let Answer { choices, closing, last, .. } = self;
        let n_choices = choices.len();
        let next = poll_fn(|context| {
            for index in (1..=n_choices).map(|step| (*last + step) % n_choices) {
                let choice = &mut choices[index];
                if !choice.is_over
                    && let Poll::Ready(event) = choice.events.poll_recv(context)
                {
                    return Poll::Ready((index, event));
                }
            }
            Poll::Pending
        });
        let event = tokio::select! {
            biased;
            event = next => Some(event),
            () = closing.closed() => None,
        };
        match event {
            Some((_, Some(Event::Failed(message)))) => Err(ApiError::failed(message)),
            Some((_, Some(Event::Done(Done { finish: Finish::Error | Finish::Cancelled, .. })))) => {
                Err(ApiError::failed("the model could not finish this answer; asking again may help"))
            }
            Some((index, Some(event))) => {
                *last = index;
                Ok((index, event))
            }
            // The scheduler drops the sender without a last event only when it ends.
            Some((_, None)) | None => Err(ApiError::stopping()),
        }
    }
}

/// What may be kept of a plan: no text of the prompt.
fn record(planned: &Planned) -> PlanRecord {
    let section = |section: &Section| SectionRecord {
        name: section.name.clone(),
        class: section.class.name().into(),
        n_bytes: section.n_bytes,
        cut: section.cut,
    };
    let moved = |moved: &Moved| MovedRecord {
        kind: moved.kind.into(),
        n_bytes: moved.text.len(),
        hash: blake3::hash(moved.text.as_bytes()).to_hex()[..HASH_DIGITS].to_owned(),
        message: moved.from_message,
        byte: moved.from_byte,
        to_message: moved.to_message,
    };
    PlanRecord {
        layout: planned.mode.name().into(),
        history: planned.live_cause.name().into(),
        sections: planned.sections.iter().map(section).collect(),
        regions: planned.regions.iter().map(|r| RegionRecord { section: r.section_idx, end: r.end }).collect(),
        moved: planned.moved.iter().map(moved).collect(),
        gain: planned.gain.map(|gain| GainRecord { from: gain.from, to: gain.to }),
        tools: planned.tools.order.name().into(),
    }
}

/// What the cache did, and what the layout, as each answer says it: in the order of `x-hob-cache`.
pub(super) fn cache_report(cache: &CacheUse, plan: &PlanRecord) -> Vec<(&'static str, Value)> {
    let cause = plan.cause(cache.cause.name(), cache.n_cached);
    let mut report = vec![
        ("reused", cache.n_cached.into()),
        ("of", cache.n_prompt.into()),
        ("restored", cache.n_restored.into()),
        ("cause", cause.into()),
        ("layout", plan.layout.as_ref().into()),
    ];
    let n_gained = plan.n_gained(cache.n_cached);
    if plan.is_observed() {
        report.extend([("moved", plan.moved.len().into()), ("gain", n_gained.into())]);
    } else if plan.layout != LayoutMode::Off.name() {
        report.extend([("moved", plan.moved.len().into()), ("saved", n_gained.into())]);
    }
    report
}

/// What stands in `usage.hob`: what the cache did, what the layout, and how long each part took.
pub(super) fn full_report(done: &Done, plan: &PlanRecord) -> Map<String, Value> {
    let Done { cache, timings, .. } = done;
    let times = [
        ("queue_ms", milliseconds(timings.queue).into()),
        ("ttft_ms", timings.ttft.map(milliseconds).into()),
        ("prefill_ms", milliseconds(timings.prefill).into()),
        ("decode_ms", milliseconds(timings.decode).into()),
    ];
    cache_report(cache, plan).into_iter().chain(times).map(|(key, value)| (key.to_owned(), value)).collect()
}

/// To a tenth: a warm prefill takes few milliseconds.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}

/// The value of `x-hob-cache`.
pub(super) fn cache_header(cache: &CacheUse, plan: &PlanRecord) -> String {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let pairs = cache_report(cache, plan).into_iter().map(|(key, value)| format!("{key}={}", word(&value)));
    pairs.collect::<Vec<_>>().join("; ")
}

pub(super) fn unix_seconds() -> u64 {
    // A clock before 1970 is not set yet; 0 says so.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
