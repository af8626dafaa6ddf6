//! The planner: from a request's messages to the tokens the engine computes.
//!
//! tools as first seen → lay out (what changes behind what stays) → plan (order of sections) → render (template) → tokens and
//! cuts. One OS thread owns what it remembers: prepared templates, tokens of stretches, the profiles' heads, tool sets, what
//! changes in clients' prompts. It computes nothing on the model and knows no HTTP.

mod adapters;
mod answers;
mod asked;
mod calls;
mod canonical;
mod clock;
mod documents;
mod echoes;
mod fallback;
mod heads;
mod house_live;
mod kept;
mod landing;
pub mod lint;
mod live;
mod memo;
mod moment;
mod order;
mod pinned_day;
mod planner;
mod regions;
mod seen;
mod sentinel;
mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tokens;
mod toolset;
mod wanted;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;

pub use adapters::KnownAdapter;
pub use asked::PinWish;
pub use documents::{Past, order as order_documents};
pub use echoes::Spoken;
pub use fallback::tools_text;
pub use house_live::{HouseLive, HouseReader, HouseValue};
pub use landing::Landed;
pub use live::{Cause, Moved, RecordId};
pub use moment::Moment;
pub use planner::{Layout, PinsSink, Planner, forget_files};
pub use regions::Region;
pub use seen::{ToolsOrder, ToolsUse};

// Whoever has a plan has these with it.
pub use crate::engine::{AnswerParts, AnswerReader, AnswerRules, EngineError, PlainReader};
use crate::request::{AdapterSet, LayoutMode, Owner, Request, TokenPrompt};

/// The planner's door. Cheap to clone; the planner ends when the last one is gone.
#[derive(Clone)]
pub struct PlannerHandle {
    inbox: mpsc::SyncSender<Command>,
}

/// What the planner's thread receives from.
pub struct Inbox(mpsc::Receiver<Command>);

enum Command {
    Plan { request: Box<Request>, reply: oneshot::Sender<Result<Planned, PromptError>> },
    Count { request: Box<Request>, reply: oneshot::Sender<Result<usize, PromptError>> },
    Remember(Box<Spoken>),
    Forget { whose: Option<Owner>, done: oneshot::Sender<()> },
    Head { wish: Box<PinWish>, reply: oneshot::Sender<Result<Head, PromptError>> },
    KeepPin { wish: Box<PinWish>, done: oneshot::Sender<Result<(), String>> },
    RemovePin { name: String, owner: Option<Owner>, done: oneshot::Sender<Result<bool, String>> },
}

impl PlannerHandle {
    /// A door and the inbox behind it, for `Planner::run`. `n_waiting_max`: requests that may wait.
    pub fn new(n_waiting_max: usize) -> (PlannerHandle, Inbox) {
        let (sender, receiver) = mpsc::sync_channel(n_waiting_max);
        (PlannerHandle { inbox: sender }, Inbox(receiver))
    }

    /// The prompt of `request`. Requests are planned in the order they come.
    pub async fn plan(&self, request: Request) -> Result<Planned, PlanFailure> {
        let (reply, planned) = oneshot::channel();
        self.send(Command::Plan { request: Box::new(request), reply })?;
        planned.await.map_err(|_| PlanFailure::Stopped)?.map_err(PlanFailure::Prompt)
    }

    /// How many tokens the prompt of `request` has as it was sent, without what hob adds. Nothing is learnt from it.
    pub async fn count(&self, request: Request) -> Result<usize, PlanFailure> {
        let (reply, counted) = oneshot::channel();
        self.send(Command::Count { request: Box::new(request), reply })?;
        counted.await.map_err(|_| PlanFailure::Stopped)?.map_err(PlanFailure::Prompt)
    }

    /// Keeps the tokens of an answer for when its client sends it back. Forgotten if the planner is too busy: that costs
    /// tokens and never truth.
    pub fn remember(&self, spoken: Spoken) {
        let _ = self.inbox.try_send(Command::Remember(Box::new(spoken)));
    }

    /// Forgets what was kept of `whose` prompts and answers, in memory and in the layout's file; `None`: of all. When it
    /// returns, it is done.
    pub async fn forget(&self, whose: Option<Owner>) -> Result<(), PlanFailure> {
        let (done, is_done) = oneshot::channel();
        self.send(Command::Forget { whose, done })?;
        is_done.await.map_err(|_| PlanFailure::Stopped)
    }

    /// The tokens to keep warm for `wish`.
    pub async fn head(&self, wish: PinWish) -> Result<Head, PlanFailure> {
        let (reply, head) = oneshot::channel();
        self.send(Command::Head { wish: Box::new(wish), reply })?;
        head.await.map_err(|_| PlanFailure::Stopped)?.map_err(PlanFailure::Prompt)
    }

    /// Remembers `wish` over a restart; when it returns, it is in its file.
    pub async fn keep_pin(&self, wish: PinWish) -> Result<(), PlanFailure> {
        let (done, is_done) = oneshot::channel();
        self.send(Command::KeepPin { wish: Box::new(wish), done })?;
        is_done.await.map_err(|_| PlanFailure::Stopped)?.map_err(PlanFailure::File)
    }

    /// Forgets the pin called `name` that a client asked for; `owner`: whose it must be. `false`: there is none.
    pub async fn remove_pin(&self, name: String, owner: Option<Owner>) -> Result<bool, PlanFailure> {
        let (done, is_done) = oneshot::channel();
        self.send(Command::RemovePin { name, owner, done })?;
        is_done.await.map_err(|_| PlanFailure::Stopped)?.map_err(PlanFailure::File)
    }

    fn send(&self, command: Command) -> Result<(), PlanFailure> {
        self.inbox.try_send(command).map_err(|error| match error {
            mpsc::TrySendError::Full(_) => PlanFailure::Busy,
            mpsc::TrySendError::Disconnected(_) => PlanFailure::Stopped,
        })
    }
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum PlanFailure {
    #[error(transparent)]
    Prompt(#[from] PromptError),
    #[error("too many requests wait to be planned")]
    Busy,
    #[error("the planner has stopped")]
    Stopped,
    #[error("pins cannot be remembered: {0}")]
    File(String),
}

/// An assistant of the house, its files read.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Profile {
    pub name: String,
    pub system: String,
    /// JSON text of each tool definition.
    pub tools: Vec<String>,
    /// In the configured order.
    pub documents: Vec<Document>,
    pub max_tokens: Option<usize>,
    /// Whether the model thinks, if a request does not say; `None`: as its template has it.
    pub thinking: Option<bool>,
    /// What its requests are computed under that do not say; `None`: what is in force by default.
    pub adapters: Option<AdapterSet>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The file's name without its ending.
    pub title: String,
    pub text: String,
}

/// How much a section changes; sections stand in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Volatility {
    Fixed,
    Document,
    Session,
    Turn,
    Live,
}

impl Volatility {
    pub fn name(self) -> &'static str {
        match self {
            Volatility::Fixed => "fixed",
            Volatility::Document => "document",
            Volatility::Session => "session",
            Volatility::Turn => "turn",
            Volatility::Live => "live",
        }
    }
}

/// One piece of the prompt as planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// "policy", "tools", "document handbook", "client system", "history", "question", "live".
    pub name: String,
    pub class: Volatility,
    /// Length of its text in bytes.
    pub n_bytes: usize,
    /// The token offset at which it ends, where that is a stable cut.
    pub cut: Option<usize>,
}

/// A request's prompt, ready for the scheduler.
#[derive(Clone, Debug)]
pub struct Planned {
    pub prompt: TokenPrompt,
    /// How it was laid out in the end.
    pub mode: LayoutMode,
    pub sections: Vec<Section>,
    /// Which tokens are whose, from the first to the last.
    pub regions: Vec<Region>,
    /// The profile that answered, if one was named.
    pub profile: Option<String>,
    /// The request's own, else the profile's.
    pub max_tokens: Option<usize>,
    /// What prompt and answer are computed under.
    pub adapters: AdapterSet,
    /// What the answer must obey, and who reads it.
    pub rules: Arc<AnswerRules>,
    pub reader: Arc<dyn AnswerReader>,
    /// What left the client's own system text, from front to back, or would in `observe`.
    pub moved: Vec<Moved>,
    /// Bytes at the system text's end that an earlier request left behind and that as sent would be computed again.
    pub n_gained_bytes: usize,
    /// Where reuse would have ended as sent; `None`: nowhere sooner.
    pub gain: Option<Gain>,
    /// What the history with its live blocks was rendered from.
    pub live_cause: Cause,
    /// What was done to the order and the bytes of the tools, or would be in `observe`.
    pub tools: ToolsUse,
    /// Names the turn when its answer is remembered.
    pub record: Option<RecordId>,
    /// What the template wrote behind the last control token: the answer follows it.
    pub opening: String,
    pub timings: PlanTimings,
}

/// What laying out is worth to one request, or would be, once it is known how much of its prompt was reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gain {
    /// The token from which on the prompt as sent had not been seen, at the soonest.
    pub from: usize,
    /// In `observe`: the tokens that would have been reused, at the least; else as many as were.
    pub to: Option<usize>,
}

impl Gain {
    /// Tokens that were reused and as sent would not have been, or the other way round in `observe`.
    pub fn n_tokens(&self, n_cached: usize) -> usize {
        match self.to {
            None => n_cached.saturating_sub(self.from),
            Some(to) => to.saturating_sub(n_cached.max(self.from)),
        }
    }
}

/// What all requests to a profile begin with, as long as they bring no tools of their own; or what a client wished to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The profile's name, or the one that its client gave.
    pub name: String,
    pub owner: Owner,
    /// What it is computed under.
    pub adapters: AdapterSet,
    /// It is a profile's.
    pub is_configured: bool,
    pub prompt: TokenPrompt,
    pub sections: Vec<Section>,
}

/// CPU of the planner's parts for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanTimings {
    pub plan: Duration,
    pub render: Duration,
    pub tokenise: Duration,
}

/// What is wrong with a request's prompt; all are the client's to mend (4xx).
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    #[error("model `{name}` is not here; there are: {known}")]
    UnknownModel { name: String, known: String },
    #[error("messages[{index}] holds the character U+{code:X}, which is reserved")]
    Reserved { index: usize, code: u32 },
    #[error("{place} holds the character U+{code:X}, which is reserved")]
    ReservedElsewhere { place: String, code: u32 },
    #[error("the model's chat template refuses these messages: {reason}")]
    Template { reason: String },
    #[error("{place}: {reason}")]
    Wanted { place: String, reason: String },
    #[error("no system text and no tools end in front of the conversation: there is nothing to pin")]
    NoHead,
}

/// What a template says when it cannot render. Whatever it is, the messages led to it.
fn refused(error: EngineError) -> PromptError {
    match error {
        EngineError::Template(reason) => PromptError::Template { reason },
        EngineError::Wanted { place, reason } => PromptError::Wanted { place, reason },
        other => PromptError::Template { reason: other.to_string() },
    }
}
