//! The scheduler: one OS thread that owns the engine, the prefix tree, the budget, the queue and the running sequences.
//!
//! A *step* is one `decode` call: a token for every decoding sequence, then prefill chunks under the token budget.
//! This file is the door: what others send in and what they can watch. It decides nothing. Inside, `batch` (who joins a step),
//! `turns` (under which adapters), `shares` (how much each client had), `queue` (who is next), `draft` (what it may compute
//! ahead) and `emission` (what text may leave) are pure, `drafting` puts drafts into steps, `sequence` is one request's life,
//! `pins` their state, `pinning` how they come and go, `admission` says who runs, `saving` and `restoring` copy out of the cells
//! and back beside the steps, `disk` is the door to files, `forgetting` what goes on demand, `step` is the loop.

mod admission;
mod batch;
mod disk;
mod draft;
mod drafting;
mod emission;
mod forgetting;
mod pinning;
mod pins;
mod queue;
mod restoring;
mod saving;
mod sequence;
mod shares;
mod step;
#[cfg(test)]
mod tests;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc as async_mpsc, oneshot, watch};

pub use self::disk::{Disk, Lower, OpenLower, Opened};
pub use self::forgetting::Forgotten;
use crate::engine::{AnswerRules, ContextOptions, Engine, EngineError, KvType, Limits, MemoryClass, Model, Threads};
use crate::kv::budget::n_seq_max;
use crate::kv::learned::Learned;
use crate::kv::tiers::{Held, Tiers};
pub use crate::kv::{Budgets, Cells};
use crate::kv::{Cache, Holder, PinsTooLarge};
use crate::request::{AdapterSet, Event, MissCause, Owner, Priority, Sampling, TokenPrompt};
use crate::snapshots::Report;
use crate::telemetry::Record;

/// Everything the scheduler must know of a request.
pub struct Submission {
    pub prompt: TokenPrompt,
    pub sampling: Sampling,
    pub rules: Arc<AnswerRules>,
    pub n_logprobs: Option<usize>,
    /// `None`: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub owner: Owner,
    /// What it is computed under; each of them was loaded with the model.
    pub adapters: AdapterSet,
    pub priority: Priority,
    /// When the request was read: TTFT counts from here.
    pub received: Instant,
    /// What telemetry should know of it; the scheduler only passes it on.
    pub label: crate::telemetry::Label,
    /// Where the answer goes. Dropping the receiver cancels the request between two steps.
    pub events: async_mpsc::Sender<Event>,
}

/// A prefix to keep as long as the daemon lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub name: String,
    pub prompt: TokenPrompt,
    /// Whose requests may stand on it.
    pub owner: Owner,
    /// What it is computed under: only requests under the same may stand on it.
    pub adapters: AdapterSet,
    /// The configuration names it: it is not taken away, and a start without room for it is refused.
    pub is_configured: bool,
}

impl Pin {
    /// A configured one, which everybody may use, under no adapter.
    pub fn of_house(name: impl Into<String>, prompt: TokenPrompt) -> Pin {
        Pin { name: name.into(), prompt, owner: Owner::Public, adapters: AdapterSet::NONE, is_configured: true }
    }

    fn holder(&self) -> Holder {
        Holder { owner: self.owner, adapters: self.adapters }
    }
}

/// Why a pin was not taken in or taken away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    #[error(transparent)]
    TooLarge(#[from] PinsTooLarge),
    #[error("{n_pins} pins are as many as the context has sequences for, beside its answers: remove one first")]
    TooMany { n_pins: usize },
    #[error("the pin {name} is a profile's: it is changed in the configuration")]
    Configured { name: String },
    #[error("the pin {name} is another owner's: it has to be removed first, or another name taken")]
    Anothers { name: String },
    #[error("the disk does not keep up: ask again in a moment")]
    Busy,
    #[error("hob is stopping")]
    Stopped,
}

/// What can be seen from outside; published after each step that changed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The name of the memory's class; `None` until the context is open.
    pub memory: Option<&'static str>,
    /// What the last checkpoint took of `cache.ram`; `None`: none was taken yet, or the memory has none.
    pub checkpoint_bytes: Option<u64>,
    pub pins: Vec<PinStatus>,
    pub cells: Cells,
    /// Sequence ids: free, held by running sequences, all. The rest stand on what the cache holds.
    pub n_ids_free: usize,
    pub n_ids_running: usize,
    pub n_ids: usize,
    pub n_running: usize,
    pub n_waiting: usize,
    /// Prompt tokens not computed yet, of running and waiting requests together.
    pub n_tokens_ahead: usize,
    /// Measured prefill speed, 0 until something was computed.
    pub prefill_tokens_per_second: u64,
    /// How often other adapters came into force.
    pub n_adapter_switches: u64,
    /// What lies below the cells, and what may.
    pub lower: Held,
    pub lower_budgets: Budgets,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinStatus {
    pub name: String,
    pub is_configured: bool,
    pub is_public: bool,
    pub n_tokens: usize,
    pub n_done: usize,
    pub is_warm: bool,
    /// Where it would come from now: `cells`, `ram`, `disk`, or `none`.
    pub tier: &'static str,
    /// Since when it is pinned, in this run of the daemon.
    pub since: Instant,
    /// Warming failed too often to be tried again: `/ready` says `degraded` after `start_wait`.
    pub has_failed: bool,
    /// Requests that stood on it, and tokens they did not compute.
    pub n_hits: u64,
    pub n_reused: u64,
    /// It was computed again, because of this of the file that it should have come from.
    pub file_fault: Option<MissCause>,
}

/// Why a request was not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full; when to try again is predicted from the measured prefill speed.
    #[error("the queue is full, try again in {} s", retry_after.as_secs())]
    Busy { retry_after: Duration },
    #[error("hob is stopping")]
    Stopped,
}

/// Where records go; must not block.
pub type Recorder = Box<dyn Fn(Record) + Send>;

pub struct Options {
    pub n_cells: usize,
    /// Answers in progress at once.
    pub parallel: usize,
    /// Requests that may wait.
    pub queue: usize,
    pub kv_type: KvType,
    pub threads: Threads,
    pub pins: Vec<Pin>,
    pub record: Recorder,
    pub open_lower: OpenLower,
    pub speculation: Speculation,
}

/// When tokens are drafted and computed ahead. No answer depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Speculation {
    Off,
    /// Where it pays, as measured.
    #[default]
    Measured,
    /// As if it cost nothing: for tests, whose steps take no time.
    Free,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("{too_large}; that is {missing_bytes} bytes of K/V: raise model.context or shorten the profiles")]
    Pins { too_large: PinsTooLarge, missing_bytes: u64 },
    #[error("the scheduler's thread could not start: {0}")]
    Thread(#[from] std::io::Error),
}

pub(crate) enum Command {
    Submit(Vec<Submission>),
    Disk(Report),
    /// Pins that stand in place of those with the same names.
    Repin(Vec<Pin>),
    Pin {
        pin: Box<Pin>,
        done: oneshot::Sender<Result<(), PinError>>,
    },
    Unpin {
        name: String,
        /// `None`: whoever asks may take away any.
        owner: Option<Owner>,
        done: oneshot::Sender<Result<bool, PinError>>,
    },
    Forget {
        whose: Option<Owner>,
        done: oneshot::Sender<Result<Forgotten, PinError>>,
    },
    Stop,
}

/// The scheduler's door. Cheap to clone.
#[derive(Clone)]
pub struct SchedulerHandle {
    inbox: mpsc::SyncSender<Command>,
    status: watch::Receiver<Status>,
    /// Requests sent and not yet admitted; the queue's bound is checked against it before sending.
    n_waiting: Arc<AtomicUsize>,
    n_waiting_max: usize,
    limits: Limits,
}

impl SchedulerHandle {
    /// Hands a request in. Its events come as they happen; dropping their receiver cancels it.
    pub fn submit(&self, submission: Submission) -> Result<(), SubmitError> {
        self.submit_together(vec![submission])
    }

    /// Queues all or none. They are seen at once, so that those of one prompt stand on one prefill whatever the time.
    pub fn submit_together(&self, submissions: Vec<Submission>) -> Result<(), SubmitError> {
        let n_more = submissions.len();
        let priority = submissions.iter().map(|submission| submission.priority).max().unwrap_or_default();
        let n_max = queue::n_places(self.n_waiting_max, priority);
        let admit = |n: usize| (n + n_more <= n_max).then_some(n + n_more);
        if self.n_waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit).is_err() {
            return Err(self.busy());
        }
        self.inbox.try_send(Command::Submit(submissions)).map_err(|error| {
            self.n_waiting.fetch_sub(n_more, Ordering::Relaxed);
            match error {
                TrySendError::Full(_) => self.busy(),
                TrySendError::Disconnected(_) => SubmitError::Stopped,
            }
        })
    }

    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// To await changes of the status.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// What the opened context has.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Replaces pins by their names: the new ones are warmed, what the old ones held may be evicted.
    pub fn repin(&self, pins: Vec<Pin>) {
        // A closed inbox means that nothing is kept any more.
        let _ = self.inbox.send(Command::Repin(pins));
    }

    /// Takes `pin` in, in place of one of its owner's with the same name; it is warmed when there is time.
    pub async fn pin(&self, pin: Pin) -> Result<(), PinError> {
        let (done, answer) = oneshot::channel();
        self.command(Command::Pin { pin: Box::new(pin), done })?;
        answer.await.map_err(|_| PinError::Stopped)?
    }

    /// Takes the pin called `name` away; `false`: there is none. `owner`: whose it must be.
    pub async fn unpin(&self, name: String, owner: Option<Owner>) -> Result<bool, PinError> {
        let (done, answer) = oneshot::channel();
        self.command(Command::Unpin { name, owner, done })?;
        answer.await.map_err(|_| PinError::Stopped)?
    }

    /// Forgets what `whose` client left; `None`: what any client did. What is the house's stays.
    pub async fn forget(&self, whose: Option<Owner>) -> Result<Forgotten, PinError> {
        let (done, answer) = oneshot::channel();
        self.command(Command::Forget { whose, done })?;
        answer.await.map_err(|_| PinError::Stopped)?
    }

    /// Ends all answers and the thread.
    pub fn stop(&self) {
        // A closed inbox means that it has stopped already.
        let _ = self.inbox.send(Command::Stop);
    }

    /// Such commands are few, and the inbox has room for more than the queue.
    fn command(&self, command: Command) -> Result<(), PinError> {
        self.inbox.send(command).map_err(|_| PinError::Stopped)
    }

    fn busy(&self) -> SubmitError {
        let status = self.status.borrow();
        let retry_after = queue::retry_after(status.n_tokens_ahead, status.prefill_tokens_per_second);
        SubmitError::Busy { retry_after }
    }
}

/// Tokens of the largest step: a full prefill, and one token for each sequence that decodes.
pub fn n_batch(parallel: usize) -> usize {
    batch::PREFILL_BUDGET + parallel
}

/// Opens the engine on a thread of its own and starts the loop. Returns when the context stands.
///
/// A pin that cannot fit refuses the start, saying by how many tokens and bytes.
pub fn start<M: Model>(model: Arc<M>, options: Options) -> Result<(SchedulerHandle, JoinHandle<()>), StartError> {
    let (inbox, commands) = mpsc::sync_channel(options.queue + 16);
    let (status_sender, status) = watch::channel(Status::default());
    let (opened_sender, opened) = mpsc::sync_channel(1);
    let n_waiting = Arc::new(AtomicUsize::new(0));
    let n_waiting_max = options.queue;
    let thread = std::thread::Builder::new().name("hob-scheduler".to_owned()).spawn({
        let (n_waiting, inbox) = (n_waiting.clone(), inbox.clone());
        move || {
            // A report to a scheduler that has stopped is of no use to anybody.
            let reports = Box::new(move |report| drop(inbox.send(Command::Disk(report))));
            let opened = open(&*model, options, status_sender, n_waiting, reports);
            match opened {
                Ok(mut scheduler) => {
                    let limits = scheduler.engine.limits();
                    scheduler.publish_status();
                    if opened_sender.send(Ok(limits)).is_ok() {
                        scheduler.run(commands);
                    }
                }
                // A caller that went away does not want to know.
                Err(error) => drop(opened_sender.send(Err(error))),
            }
        }
    })?;
    let limits = opened.recv().unwrap_or_else(|_| {
        Err(StartError::Engine(EngineError::Context("the scheduler's thread ended while opening".to_owned())))
    })?;
    Ok((SchedulerHandle { inbox, status, n_waiting, n_waiting_max, limits }, thread))
}

fn open<M: Model>(
    model: &M,
    options: Options,
    status: watch::Sender<Status>,
    n_waiting: Arc<AtomicUsize>,
    reports: crate::snapshots::Reporter,
) -> Result<step::Scheduler<M::Engine<'_>>, StartError> {
    let facts = model.facts();
    let context = ContextOptions {
        n_cells: options.n_cells,
        n_seq_max: n_seq_max(options.parallel, options.pins.len(), options.n_cells, facts.n_vocab, |n| model.n_ids(n)),
        n_batch: n_batch(options.parallel),
        kv_type: options.kv_type,
        threads: options.threads,
    };
    let engine = model.open(&context)?;
    let limits = engine.limits();
    let (pins, asked) = options.pins.into_iter().partition(|pin: &Pin| pin.is_configured);
    let mut pins: Vec<Pin> = pins;
    pins::check(&pins, &limits).map_err(|too_large| {
        let missing_bytes = too_large.missing as u64 * facts.kv_bytes_per_token(options.kv_type);
        StartError::Pins { too_large, missing_bytes }
    })?;
    // What a client asked for once must not keep the house from starting.
    for pin in asked {
        let name = pin.name.clone();
        match pins::joined(&pins, pin, options.parallel, &limits) {
            Ok(joined) => pins = joined,
            Err(error) => tracing::warn!(pin = name, %error, "a pin is left out"),
        }
    }
    let lower = (options.open_lower)(&Opened { limits, saved_form: engine.saved_form() }, reports);
    let cache = Cache::new(limits.n_cells, limits.n_seq_max, limits.memory);
    let cache = match limits.memory_class {
        MemoryClass::Checkpointed => cache.with_checkpoints(),
        _ => cache,
    };
    let bytes_per_token = facts.kv_bytes_per_token(options.kv_type);
    Ok(step::Scheduler {
        cache: cache.with_tiers(Tiers::new(lower.budgets), limits.n_piece_max, bytes_per_token),
        savings: saving::Savings::new(lower.disk, lower.wait),
        reads: restoring::Reads::default(),
        learned: Learned::default(),
        looked_idle: std::time::Instant::now(),
        engine,
        vocab: model.vocab(),
        running: Vec::new(),
        waiting: Vec::new(),
        pins: pins::Pins::new(pins),
        parallel: options.parallel,
        n_waiting,
        status,
        record: options.record,
        speed: step::Speed::default(),
        drafts: match options.speculation {
            Speculation::Off => None,
            Speculation::Measured => Some(draft::Costs::untried()),
            Speculation::Free => Some(draft::Costs::free()),
        },
        turns: turns::Turns::default(),
        next_key: 0,
        n_steps: 0,
        n_chunked: 0,
        is_after_chunk: false,
        shares: shares::Shares::default(),
        n_passed: 0,
        sampled: None,
        is_warming_blocked: false,
    })
}
