//! The daemon: builds the parts in order, connects them, and stops them in reverse order.
//!
//! ```text
//!   telemetry ← scheduler ← http → planner
//! ```
//!
//! Threads start only here. A part is stopped by closing its inbox and joining its thread; sockets are bound first and served
//! last, so that a port in use is known before a model is loaded.

use std::sync::Arc;
use std::thread::JoinHandle;

use futures_util::future::BoxFuture;
use tracing::{info, warn};

use crate::config::{Config, Listen};
use crate::engine::Model;
use crate::http::{BindError, House, Server};
use crate::prompt::{Head, PlanFailure, Planned, Planner, PlannerHandle, Profile, PromptError, Spoken};
use crate::request::Request;
use crate::scheduler::{self, Pin, SchedulerHandle, StartError, Status, Submission, SubmitError};
use crate::telemetry::{self, Store, TelemetryHandle};

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("profiles")]
    Profiles(#[from] PromptError),
    #[error("scheduler")]
    Scheduler(#[from] StartError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("a thread could not start")]
    Thread(#[from] std::io::Error),
}

/// All parts, running; `serve` answers requests until it is told to stop.
pub struct Daemon {
    server: Server,
    rooms: Arc<Rooms>,
    threads: Threads,
}

/// What HTTP reaches: the two doors and what never changes.
struct Rooms {
    planner: PlannerHandle,
    scheduler: SchedulerHandle,
    models: Vec<String>,
    n_vocab: usize,
}

struct Threads {
    telemetry_door: TelemetryHandle,
    planner: JoinHandle<()>,
    scheduler: JoinHandle<()>,
    telemetry: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts every part but the answering. `server` is bound already; `profiles` are read already.
    pub fn start<M: Model>(
        config: &Config,
        profiles: Vec<Profile>,
        model: Arc<M>,
        server: Server,
    ) -> Result<Daemon, DaemonError> {
        Daemon::start_with(config, profiles, model, server, Planner::pins)
    }

    /// Like `start`, but keeps nothing warm: the first request to a profile computes all of it.
    pub fn start_cold<M: Model>(
        config: &Config,
        profiles: Vec<Profile>,
        model: Arc<M>,
        server: Server,
    ) -> Result<Daemon, DaemonError> {
        Daemon::start_with(config, profiles, model, server, |_| Ok(Vec::new()))
    }

    fn start_with<M: Model>(
        config: &Config,
        profiles: Vec<Profile>,
        model: Arc<M>,
        server: Server,
        pins: impl FnOnce(&mut Planner) -> Result<Vec<Head>, PromptError>,
    ) -> Result<Daemon, DaemonError> {
        let (telemetry_door, records) = telemetry::inbox();
        let models = model_names(config, &profiles);
        let mut planner = Planner::new(model.vocab(), model.template(), config.model.name.clone(), profiles)?;
        let pins = pins(&mut planner)?.into_iter().map(|head| Pin { name: head.name, prompt: head.prompt }).collect();
        let (planner_door, inbox) = PlannerHandle::new(config.server.queue);
        let planner = spawn("hob-planner", move || planner.run(inbox))?;

        let n_vocab = model.vocab().n_tokens();
        let record = telemetry_door.clone();
        let options = scheduler::Options {
            n_cells: config.model.context,
            parallel: config.model.parallel,
            queue: config.server.queue,
            kv_type: config.model.kv_type,
            n_threads: config.model.threads,
            pins,
            record: Box::new(move |what| record.record(what)),
        };
        let (scheduler_door, scheduler) = scheduler::start(model, options)?;
        let limits = scheduler_door.limits();
        info!(memory = ?limits.memory, cells = limits.n_cells, ids = limits.n_seq_max, "context opened");
        if !limits.flash_attention {
            warn!("flash attention is off on this device: idle cells slow every step down");
        }

        // Nothing above writes a file: a start that is refused leaves none behind.
        let telemetry = start_telemetry(config, records)?;
        let rooms = Rooms { planner: planner_door, scheduler: scheduler_door, models, n_vocab };
        let threads = Threads { telemetry_door, planner, scheduler, telemetry };
        Ok(Daemon { server, rooms: Arc::new(rooms), threads })
    }

    /// Where it listens, ports resolved.
    pub fn addresses(&self) -> Vec<Listen> {
        self.server.addresses()
    }

    /// The scheduler's door: to watch its status.
    pub fn scheduler(&self) -> SchedulerHandle {
        self.rooms.scheduler.clone()
    }

    /// Answers until `stop`, lets running answers end for up to 10 s, then stops every part.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let Daemon { server, rooms, threads } = self;
        server.serve(rooms.clone(), stop).await;
        rooms.scheduler.stop();
        // The planner ends when its last door is gone.
        drop(rooms);
        join(threads.scheduler);
        threads.telemetry_door.stop();
        if let Some(telemetry) = threads.telemetry {
            join(telemetry);
        }
        join(threads.planner);
    }
}

impl House for Rooms {
    fn plan(&self, request: Request) -> BoxFuture<'_, Result<Planned, PlanFailure>> {
        Box::pin(self.planner.plan(request))
    }

    fn remember(&self, spoken: Spoken) {
        self.planner.remember(spoken);
    }

    fn submit(&self, submission: Submission) -> Result<(), SubmitError> {
        self.scheduler.submit(submission)
    }

    fn status(&self) -> Status {
        self.scheduler.status()
    }

    fn models(&self) -> Vec<String> {
        self.models.clone()
    }

    fn context(&self) -> usize {
        self.scheduler.limits().n_cells
    }

    fn n_vocab(&self) -> usize {
        self.n_vocab
    }
}

/// What a client may write as `model`: a profile, or the model itself, which knows no house.
fn model_names(config: &Config, profiles: &[Profile]) -> Vec<String> {
    profiles.iter().map(|profile| profile.name.clone()).chain([config.model.name.clone()]).collect()
}

/// A house goes on without telemetry when its disk is full or its file is another's: it is told once, and rows count as dropped.
fn start_telemetry(config: &Config, records: telemetry::Inbox) -> Result<Option<JoinHandle<()>>, std::io::Error> {
    let settings = &config.telemetry;
    match Store::open(&settings.path, settings.keep_days, settings.flush) {
        Ok(store) => {
            let thread = spawn("hob-telemetry", move || store.run(records))?;
            Ok(Some(thread))
        }
        Err(error) => {
            warn!(error = %chain(&error), "telemetry is off");
            Ok(None)
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, std::io::Error> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        warn!("a thread ended by a panic");
    }
}

/// An error with its causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
