//! The daemon: builds the parts in order, connects them, and stops them in reverse order.
//!
//! ```text
//!   telemetry ← scheduler ← http → planner → live
//!   snapshots ↔      ↑________________|
//! ```
//!
//! Threads start only here. A part is stopped by closing its inbox and joining its thread; sockets are bound first and served
//! last, so that a port in use is known before a model is loaded.

pub mod documents;
mod lower;

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::config::{Config, Listen};
use crate::engine::Model;
use crate::http::{BindError, House, ModelCard, PinFailure, Server};
use crate::prompt::{
    Head, HouseLive, HouseReader, HouseValue, Layout, Moment, PinWish, PlanFailure, Planned, Planner, PlannerHandle,
    Profile, PromptError, Spoken,
};
use crate::request::{Owner, Request};
use crate::scheduler::{self, Forgotten, Pin, SchedulerHandle, StartError, Status, Submission, SubmitError};
use crate::sources::{Readings, Sources};
use crate::telemetry::{self, DocumentRow, ReadError, RequestRow, Store, TelemetryHandle, Wanted};

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("profiles")]
    Profiles(#[from] PromptError),
    #[error("scheduler")]
    Scheduler(#[from] StartError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("a thread ended by a panic: {0}; the log says why")]
    Died(String),
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
    telemetry: TelemetryHandle,
    models: Vec<String>,
    card: ModelCard,
    n_vocab: usize,
    readings: watch::Receiver<Readings>,
}

struct Threads {
    telemetry_door: TelemetryHandle,
    planner: JoinHandle<()>,
    scheduler: JoinHandle<()>,
    snapshots: Option<lower::Running>,
    telemetry: Option<JoinHandle<()>>,
    live: Sources,
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

    /// Like `start`, in a house whose wall clock is `clock`: for a day that is lived again.
    pub fn start_at<M: Model>(
        config: &Config,
        profiles: Vec<Profile>,
        model: Arc<M>,
        server: Server,
        clock: impl Fn() -> Moment + Send + 'static,
    ) -> Result<Daemon, DaemonError> {
        Daemon::start_with(config, profiles, model, server, |planner| {
            planner.set_clock(clock);
            planner.pins()
        })
    }

    fn start_with<M: Model>(
        config: &Config,
        mut profiles: Vec<Profile>,
        model: Arc<M>,
        server: Server,
        pins: impl FnOnce(&mut Planner) -> Result<Vec<Head>, PromptError>,
    ) -> Result<Daemon, DaemonError> {
        let (telemetry_door, records) = telemetry::inbox();
        let models = model_names(config, &profiles);
        let documents = documents::order(&config.telemetry.path, &mut profiles, &Moment::now());
        let live = config.profiles.iter().filter(|profile| !profile.live.is_empty());
        let live = Sources::start(live.map(|profile| (profile.name.clone(), profile.live.clone())).collect())?;
        let planner = Planner::new(model.vocab(), model.template(), config.model.name.clone(), profiles)?;
        let planner = planner.with_house_live(house_live(config, live.readings()));
        let planner = planner.with_adapters(config.model.known_adapters());
        let mut planner = planner.with_layout(Layout {
            mode: config.layout.mode,
            n_context_tokens: config.model.context,
            file: Some(config.layout_file()).filter(|file| file.is_absolute()),
        });
        if config.pins_file().is_absolute() {
            planner = planner.with_wishes(&config.pins_file()).with_day_file(config.day_file());
        }
        let pins = pins(&mut planner)?.into_iter().map(pin).collect();

        let n_vocab = model.vocab().n_tokens();
        let card = card(config, &*model);
        let record = telemetry_door.clone();
        let settings = lower::Settings::new(config, model.facts());
        let (running, snapshots) = mpsc::sync_channel(1);
        let options = scheduler::Options {
            n_cells: config.model.context,
            parallel: config.model.parallel,
            queue: config.server.queue,
            kv_type: config.model.kv_type,
            threads: config.model.threads,
            pins,
            record: Box::new(move |what| record.record(what)),
            open_lower: Box::new(move |opened, reporter| settings.open(opened, reporter, &running)),
            speculation: match config.model.speculate {
                true => scheduler::Speculation::Measured,
                false => scheduler::Speculation::Off,
            },
        };
        let (scheduler_door, scheduler) = scheduler::start(model, options)?;
        let (planner_door, inbox) = PlannerHandle::new(config.server.queue);
        let renewing = scheduler_door.clone();
        let planner = planner.with_renewal(Box::new(move |pins| renewing.repin(pins.into_iter().map(pin).collect())));
        let planner = spawn("hob-planner", move || planner.run(inbox))?;
        let limits = scheduler_door.limits();
        info!(memory = limits.memory_class.name(), cells = limits.n_cells, ids = limits.n_seq_max, "context opened");
        if !limits.flash_attention {
            warn!("flash attention is off on this device: idle cells slow every step down");
        }

        let snapshots = snapshots.try_recv().ok();
        // A start that is refused leaves no database behind.
        let telemetry = start_telemetry(config, records, &documents.rows)?;
        let rooms = Rooms {
            planner: planner_door,
            scheduler: scheduler_door,
            telemetry: telemetry_door.clone(),
            models,
            card,
            n_vocab,
            readings: live.readings(),
        };
        let threads = Threads { telemetry_door, planner, scheduler, snapshots, telemetry, live };
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
    ///
    /// A thread that ends by itself has broken an invariant: then the daemon stops too and says so, for a service manager to
    /// start it anew, instead of refusing every request from then on.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), DaemonError> {
        let Daemon { server, rooms, threads } = self;
        let stop = async {
            tokio::select! {
                () = stop => {}
                () = threads.end() => {}
            }
        };
        server.serve(rooms.clone(), stop).await;
        rooms.scheduler.stop();
        // Whatever is being read now is given up.
        drop(threads.live);
        // The planner ends when its last door is gone.
        drop(rooms);
        let mut died = Vec::new();
        let mut join = |name, thread: Option<JoinHandle<()>>| {
            if thread.is_some_and(|thread| thread.join().is_err()) {
                died.push(name);
            }
        };
        join("scheduler", Some(threads.scheduler));
        join("planner", Some(threads.planner));
        // What the scheduler gave it to write at its end is written first.
        join(
            "snapshots",
            threads.snapshots.map(|(door, thread)| {
                door.stop();
                thread
            }),
        );
        join("telemetry", threads.telemetry.inspect(|_| threads.telemetry_door.stop()));
        if died.is_empty() { Ok(()) } else { Err(DaemonError::Died(died.join(", "))) }
    }
}

impl Threads {
    /// Completes when a thread ended that every answer needs. Telemetry may end: answers go on without it.
    async fn end(&self) {
        // Rare enough to cost nothing, often enough that a restart is not waited for.
        const LOOK_EVERY: Duration = Duration::from_secs(1);
        while !self.scheduler.is_finished() && !self.planner.is_finished() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl House for Rooms {
    fn plan(&self, request: Request) -> BoxFuture<'_, Result<Planned, PlanFailure>> {
        Box::pin(self.planner.plan(request))
    }

    fn count(&self, request: Request) -> BoxFuture<'_, Result<usize, PlanFailure>> {
        Box::pin(self.planner.count(request))
    }

    fn remember(&self, spoken: Spoken) {
        self.planner.remember(spoken);
    }

    fn submit(&self, submissions: Vec<Submission>) -> Result<(), SubmitError> {
        self.scheduler.submit_together(submissions)
    }

    fn status(&self) -> Status {
        self.scheduler.status()
    }

    fn pin(&self, wish: PinWish) -> BoxFuture<'_, Result<(), PinFailure>> {
        Box::pin(async move {
            let head = self.planner.head(wish.clone()).await?;
            self.scheduler.pin(pin(head)).await?;
            let (name, owner) = (wish.name.clone(), wish.owner());
            if let Err(error) = self.planner.keep_pin(wish).await {
                // One that a restart would lose is none.
                self.scheduler.unpin(name, Some(owner)).await?;
                return Err(error.into());
            }
            Ok(())
        })
    }

    fn unpin(&self, name: String, owner: Option<Owner>) -> BoxFuture<'_, Result<bool, PinFailure>> {
        Box::pin(async move {
            // It may be remembered and not held, where it had no room at the start.
            let was_held = self.scheduler.unpin(name.clone(), owner).await?;
            Ok(self.planner.remove_pin(name, owner).await? || was_held)
        })
    }

    fn forget(&self, whose: Option<Owner>) -> BoxFuture<'_, Result<Forgotten, PinFailure>> {
        Box::pin(async move {
            // First, so that no answer that ends by it is learnt from afterwards.
            let forgotten = self.scheduler.forget(whose).await?;
            self.planner.forget(whose).await?;
            Ok(forgotten)
        })
    }

    fn requests(&self, wanted: Wanted) -> BoxFuture<'_, Result<Vec<RequestRow>, ReadError>> {
        Box::pin(self.telemetry.rows(wanted))
    }

    fn models(&self) -> Vec<String> {
        self.models.clone()
    }

    fn live(&self) -> Readings {
        self.readings.borrow().clone()
    }

    fn card(&self) -> &ModelCard {
        &self.card
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

fn card<M: Model>(config: &Config, model: &M) -> ModelCard {
    let facts = model.facts();
    let modified = std::fs::metadata(&config.model.path).and_then(|metadata| metadata.modified()).ok();
    let since = modified.and_then(|modified| modified.duration_since(SystemTime::UNIX_EPOCH).ok());
    ModelCard {
        architecture: facts.architecture.clone(),
        weight_bytes: facts.weight_bytes,
        n_context_train: facts.n_context_train,
        width: facts.width,
        modified_s: since.map_or(0, |since| since.as_secs() as i64),
        switches_thinking: model.template().switches_thinking(),
    }
}

fn pin(head: Head) -> Pin {
    let Head { name, prompt, owner, adapters, is_configured, sections: _ } = head;
    Pin { name, prompt, owner, adapters, is_configured }
}

/// What the planner reads of a profile's live entries: the last readings, whatever is being read now.
fn house_live(config: &Config, readings: watch::Receiver<Readings>) -> HouseReader {
    let with_clock = config.profiles.iter().filter(|profile| profile.has_clock);
    let with_clock: Vec<String> = with_clock.map(|profile| profile.name.clone()).collect();
    Box::new(move |profile| {
        let readings = readings.borrow();
        let values = readings.of(profile).iter().map(|reading| HouseValue {
            name: reading.name.clone(),
            text: reading.text.clone(),
            last_true: reading.read_at.filter(|_| reading.failure.is_some()),
        });
        HouseLive { has_clock: with_clock.iter().any(|name| name == profile), values: values.collect() }
    })
}

/// A house goes on without telemetry when its disk is full or its file is another's: it is told once, and rows count as dropped.
fn start_telemetry(
    config: &Config,
    records: telemetry::Inbox,
    documents: &[DocumentRow],
) -> Result<Option<JoinHandle<()>>, std::io::Error> {
    let settings = &config.telemetry;
    match Store::open(&settings.path, settings.keep_days, settings.flush) {
        Ok(mut store) => {
            if let Err(error) = store.keep_documents(documents) {
                warn!(%error, "how often documents change is not remembered");
            }
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::sync::mpsc;

    use super::*;
    use crate::engine::simulated::SimulatedModel;
    use crate::request::{AdapterSet, Priority, Sampling, Token, TokenPrompt};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_thread_that_ends_by_itself_ends_the_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        let text =
            format!("[server]\nlisten = [\"127.0.0.1:0\"]\n[telemetry]\npath = {:?}", folder.path().join("t.sqlite"));
        std::fs::write(&file, text).unwrap();
        let config = Config::load(&file).unwrap();
        let model = SimulatedModel::new();
        let faults = model.faults();
        let server = Server::bind(&config.server).await.unwrap();
        let daemon = Daemon::start(&config, Vec::new(), Arc::new(model), server).unwrap();
        faults.panic_at_next_decode();
        let (events, _receiver) = mpsc::channel(8);
        let submitted = daemon.scheduler().submit(Submission {
            prompt: TokenPrompt { tokens: vec![Token(1); 3], cuts: vec![] },
            sampling: Sampling::default(),
            rules: Arc::default(),
            n_logprobs: None,
            max_tokens: Some(1),
            stop: vec![],
            owner: Owner::Public,
            adapters: AdapterSet::NONE,
            priority: Priority::default(),
            received: Instant::now(),
            label: Default::default(),
            events,
        });
        assert_eq!(submitted, Ok(()));
        let ended = daemon.serve(std::future::pending()).await;
        assert_eq!(ended.unwrap_err().to_string(), "a thread ended by a panic: scheduler; the log says why");
    }
}
