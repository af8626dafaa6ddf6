//! The HTTP side: sockets, routes, dialects. The only room that knows hyper, axum or a wire format.
//!
//! A *dialect* is one vendor's wire format: it parses a body to a `Request` and renders `Event`s to bytes. Everything
//! between (planning, the length check, submitting, waiting, parting the answer) is the same for all of them and stands in
//! `answer.rs`, `choice.rs`, `deltas.rs` and `stream.rs`; what their bodies share is read in `fields`.
//! Nothing here decides what is computed; when a client goes away its event receiver is dropped, and that is all.

mod access;
mod answer;
mod anthropic;
mod body;
mod choice;
mod deltas;
mod error;
mod fields;
mod listener;
mod logprobs;
mod ollama;
mod openai;
mod pins;
mod rate;
mod ready;
mod requests;
mod responses;
mod routes;
mod stream;
#[cfg(test)]
mod tests;
mod wishes;

use futures_util::future::BoxFuture;

pub use listener::{BindError, Server};
pub use openai::{BadBody, parse_chat};

use crate::prompt::{PinWish, PlanFailure, Planned, Spoken};
use crate::request::{Owner, Request};
use crate::scheduler::{Forgotten, PinError, Status, Submission, SubmitError};
use crate::sources::Readings;
use crate::telemetry::{ReadError, RequestRow, Wanted};

/// What HTTP needs of the house behind it. The daemon stands on the planner's and the scheduler's handles.
pub trait House: Send + Sync + 'static {
    /// The tokens of `request`'s prompt.
    fn plan(&self, request: Request) -> BoxFuture<'_, Result<Planned, PlanFailure>>;

    /// How many tokens `request`'s prompt has as it was sent, without what hob adds. Nothing is learnt from it.
    fn count(&self, request: Request) -> BoxFuture<'_, Result<usize, PlanFailure>>;

    /// Keeps the tokens of an answer for when its client sends it back.
    fn remember(&self, spoken: Spoken);

    /// Queues a planned request, once for each choice, all or none; each answer comes through its `events`.
    fn submit(&self, submissions: Vec<Submission>) -> Result<(), SubmitError>;

    fn status(&self) -> Status;

    /// Keeps warm what `wish` says, from now on and after a restart.
    fn pin(&self, wish: PinWish) -> BoxFuture<'_, Result<(), PinFailure>>;

    /// Ends that; `owner`: whose it must be. `false`: there is no such pin.
    fn unpin(&self, name: String, owner: Option<Owner>) -> BoxFuture<'_, Result<bool, PinFailure>>;

    /// Forgets what `whose` client left; `None`: what any client did. What is the house's stays.
    fn forget(&self, whose: Option<Owner>) -> BoxFuture<'_, Result<Forgotten, PinFailure>>;

    /// What telemetry holds of earlier requests, newest first.
    fn requests(&self, wanted: Wanted) -> BoxFuture<'_, Result<Vec<RequestRow>, ReadError>>;

    /// Names that `model` may have: the model's own and each profile's.
    fn models(&self) -> Vec<String>;

    /// What profiles' live entries last said.
    fn live(&self) -> Readings {
        Readings::default()
    }

    /// What there is to know of the model's file.
    fn card(&self) -> &ModelCard;

    /// Cells of the context: prompt and answer of one request must fit in.
    fn context(&self) -> usize;

    /// Tokens in the model's vocabulary.
    fn n_vocab(&self) -> usize;
}

/// A model as it is shown to who asks about it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ModelCard {
    /// `general.architecture`: "llama", "gemma3", …
    pub architecture: String,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// The context that the model was trained for, in tokens.
    pub n_context_train: u64,
    /// Numbers that stand for one token between two layers.
    pub width: u64,
    /// When its file was last changed, in seconds since 1970; 0: unknown.
    pub modified_s: i64,
    /// A prompt can say that it is to think, or not to.
    pub switches_thinking: bool,
}

/// Why a pin was not taken in or taken away.
#[derive(Debug, thiserror::Error)]
pub enum PinFailure {
    #[error(transparent)]
    Plan(#[from] PlanFailure),
    #[error(transparent)]
    Pin(#[from] PinError),
}
