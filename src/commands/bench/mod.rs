//! `hob bench`: what the cache and its machinery cost and save, on this machine with this model.
//!
//! A *measurement* is a median of wall-clock times; the goals are those of the design. Requests go through a real daemon over
//! loopback HTTP (`client`), the engine is measured beside it (`engine`), the CPU before it in parts (`outside`, `lookup`).
//! `bodies` is what is asked, `report` what is printed. Nothing is written but into a temporary folder.

mod bodies;
mod bound;
mod client;
mod drafts;
mod engine;
pub mod lookup;
mod outside;
mod report;
mod threads;

use std::io::{self, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use self::bodies::QUESTIONS;
use self::client::{Asked, Running};
use self::engine::{Alone, Suffix};
use self::outside::Outside;
pub use self::report::Report;
use self::report::{Asking, Goal, House, Lookup, Machine, Run, Settings, Speed, Ttft};
use crate::config::{Config, ConfigError, read_profiles};
use crate::daemon::DaemonError;
use crate::engine::{ContextOptions, DecodeError, EngineError, Model};
use crate::http::{BadBody, parse_chat};
use crate::prompt::{Moment, Planner, Profile, PromptError};
use crate::request::Token;

/// What the design promises (the CPU's goals stand in `outside`).
const WARM_BY_ALONE_MAX: f64 = 1.1;
const RESTARTED_BY_WARM_MAX: f64 = 2.0;
const LOOKUP_US_MAX: f64 = 50.0;

/// Cold runs take seconds each, and vary little.
const N_COLD: usize = 3;

/// Only the first question after a restart counts.
const N_RESTARTED: usize = 3;

/// Runs that measure the engine's pace.
const N_PACE: usize = 3;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// What a household waits for: all but the rest. Less than two minutes with a small model.
    House,
    /// Every number of threads, quiet and beside a busy one.
    Threads,
    /// Answers with drafts against the same without.
    Drafts,
    /// Answers that must call a tool against free ones.
    Bound,
    /// The CPU of one body: needs no weights.
    Request(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error("planning")]
    Prompt(#[from] PromptError),
    #[error("{path} cannot be read")]
    Request { path: PathBuf, source: io::Error },
    #[error("the body of the request")]
    Body(#[from] BadBody),
    #[error("asking the daemon")]
    Http(#[from] ureq::Error),
    #[error("JSON")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Answer(String),
    #[error("a thread, the runtime or a connection")]
    Io(#[from] io::Error),
}

/// Loads what the measurement needs of the configured model, measures and writes the report.
#[cfg(feature = "llama")]
pub fn run(config: &Config, scope: &Scope, format: super::format::Format, out: impl Write) -> Result<(), BenchError> {
    let model = match scope {
        Scope::Request(_) => super::model::load_vocabulary(config)?,
        Scope::House | Scope::Threads | Scope::Drafts | Scope::Bound => super::model::load(config)?,
    };
    Ok(bench(config, model, scope)?.write(format, out)?)
}

/// Measures, and says on stderr what it is at.
pub fn bench<M: Model>(config: &Config, model: Arc<M>, scope: &Scope) -> Result<Report, BenchError> {
    let mut profiles = read_profiles(config)?;
    if profiles.is_empty() {
        profiles.push(bodies::demo_profile());
    }
    let load_before = load_average();
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let bench = Bench { config, model, profiles, runtime };
    let (mut outside, mut house, mut threads, mut drafts, mut bound) = (None, None, None, None, None);
    match scope {
        Scope::House => {
            outside = Some(bench.outside(None)?);
            house = Some(House { lookup: bench.lookup(), speed: bench.speed()?, ttft: bench.ttft()? });
        }
        Scope::Threads => threads = Some(threads::measure(&*bench.model, &bench.context(0), cpus)?),
        Scope::Drafts => drafts = Some(drafts::measure(&bench)?),
        Scope::Bound => bound = Some(bound::measure(&bench)?),
        Scope::Request(path) => outside = Some(bench.outside(Some(path))?),
    }
    let variable = |name| std::env::var(name).ok();
    Ok(Report {
        machine: Machine { cpus, cpu_model: cpu_model(), load_before, load_after: load_average() },
        settings: Settings {
            model: config.model.name.clone(),
            kv_type: config.model.kv_type.name(),
            context: config.model.context,
            threads: config.model.threads.decode,
            prefill_threads: config.model.threads.prefill,
            gomp_spincount: variable("GOMP_SPINCOUNT"),
            omp_wait_policy: variable("OMP_WAIT_POLICY"),
        },
        house,
        outside,
        threads,
        drafts,
        bound,
    })
}

struct Bench<'a, M> {
    config: &'a Config,
    model: Arc<M>,
    /// At least one; the first is the household.
    profiles: Vec<Profile>,
    runtime: Runtime,
}

impl<M: Model> Bench<'_, M> {
    fn ttft(&self) -> Result<Ttft, BenchError> {
        let Bench { config, model, profiles, runtime } = self;
        let profile = &profiles[0];
        let mut cold = Vec::with_capacity(N_COLD);
        for (index, question) in QUESTIONS.iter().take(N_COLD).enumerate() {
            say(&format!("cold, {} of {N_COLD}", index + 1));
            let daemon = Running::cold(runtime, config, profile, model.clone())?;
            cold.push(daemon.ask(&profile.name, question)?);
            daemon.stop();
        }
        say("warming");
        let (head, prompts) = self.prompts()?;
        let n_suffixes: usize = prompts.iter().map(|prompt| prompt.len().saturating_sub(head.len())).sum();
        // Both compute the head at the same time: nothing is measured yet.
        let alone = Alone::open(model.clone(), &self.context(head.len() + n_suffixes), head)?;
        let daemon = Running::warm(runtime, config, profile, model.clone())?;
        alone.wait()?;
        say(&format!("warm, {} questions", QUESTIONS.len()));
        let (mut warm, mut alone_times) = (Vec::new(), Vec::new());
        // In turn, so that both meet the same machine.
        for (question, tokens) in QUESTIONS.iter().zip(prompts) {
            let asked = daemon.ask(&profile.name, question)?;
            if asked.n_prompt != tokens.len() {
                let (n_prompt, n_planned) = (asked.n_prompt, tokens.len());
                let reason = format!("the daemon's prompt has {n_prompt} tokens, the planner's {n_planned}");
                return Err(BenchError::Answer(reason));
            }
            warm.push(asked);
            alone_times.push(alone.time(Suffix { tokens, n_held: asked.n_reused })?);
        }
        let (mut daemon, mut restarted, mut restarts) = (daemon, Vec::new(), Vec::new());
        for (index, question) in QUESTIONS.iter().take(N_RESTARTED).enumerate() {
            say(&format!("restarted, {} of {N_RESTARTED}", index + 1));
            let begun = Instant::now();
            daemon = daemon.restarted(config, profile, model.clone())?;
            restarts.push(begun.elapsed());
            restarted.push(daemon.ask(&profile.name, question)?);
        }
        daemon.stop();

        let (cold, warm, restarted) = (asking(&cold), asking(&warm), asking(&restarted));
        let restarted_by_warm = restarted.ttft_ms / warm.ttft_ms;
        let alone_ms = milliseconds(median(alone_times.clone()));
        let warm_by_alone = warm.ttft_ms / alone_ms;
        Ok(Ttft {
            profile: profile.name.clone(),
            cold_by_warm: cold.ttft_ms / warm.ttft_ms,
            cold,
            warm,
            restarted,
            restart_ms: milliseconds(median(restarts)),
            restarted_by_warm,
            restarted_goal: Goal::at_most(RESTARTED_BY_WARM_MAX, restarted_by_warm),
            alone_ms,
            alone_runs_ms: alone_times.into_iter().map(milliseconds).collect(),
            warm_by_alone,
            goal: Goal::at_most(WARM_BY_ALONE_MAX, warm_by_alone),
        })
    }

    /// The tokens of the profile's head and of each question's prompt.
    fn prompts(&self) -> Result<(Vec<Token>, Vec<Vec<Token>>), BenchError> {
        let Bench { config, model, profiles, .. } = self;
        let profile = &profiles[0];
        let name = config.model.name.clone();
        let mut planner = Planner::new(model.vocab(), model.template(), name, vec![profile.clone()])?;
        let head = planner.pins()?.pop().map(|head| head.prompt.tokens).unwrap_or_default();
        let mut prompts = Vec::with_capacity(QUESTIONS.len());
        for question in QUESTIONS {
            let body = client::question_body(&profile.name, question).to_string();
            prompts.push(planner.plan(&parse_chat(body.as_bytes(), "bench")?, &Moment::now())?.prompt.tokens);
        }
        Ok((head, prompts))
    }

    fn outside(&self, body: Option<&Path>) -> Result<Vec<Outside>, BenchError> {
        let read =
            |path: &Path| std::fs::read(path).map_err(|source| BenchError::Request { path: path.to_owned(), source });
        let body = body.map(read).transpose()?;
        say("CPU outside the engine");
        outside::measure(&*self.model, &self.config.model.name, &self.profiles, body.as_deref())
    }

    fn lookup(&self) -> Lookup {
        say("the prefix tree");
        let us = lookup::measure().as_secs_f64() * 1e6;
        Lookup { held_tokens: lookup::N_HELD, us, goal: Goal::at_most(LOOKUP_US_MAX, us) }
    }

    fn speed(&self) -> Result<Speed, BenchError> {
        say("the engine's pace");
        let options = self.context(0);
        let paces = engine::pace(&*self.model, &options, options.threads, N_PACE)?;
        let prefill = median(paces.iter().map(|pace| pace.prefill).collect());
        let decode = median(paces.iter().map(|pace| pace.decode).collect());
        let copied = engine::copied(&*self.model, &options, N_PACE)?;
        let save = median(copied.iter().map(|copied| copied.save).collect());
        let restore = median(copied.iter().map(|copied| copied.restore).collect());
        let n_bytes = copied.iter().map(|copied| copied.n_bytes).max().unwrap_or(0);
        let per_second = |time: Duration| n_bytes as f64 / time.as_secs_f64().max(1e-9);
        Ok(Speed {
            prefill_tokens_per_second: engine::N_PREFILL as f64 / prefill.as_secs_f64(),
            decode_tokens_per_second: engine::N_DECODE as f64 / decode.as_secs_f64(),
            save_bytes_per_second: per_second(save),
            restore_bytes_per_second: per_second(restore),
            restore_by_prefill: prefill.as_secs_f64() / restore.as_secs_f64().max(1e-9),
        })
    }

    /// A context for `n_cells` (and never for fewer than measuring the pace takes), with an id for the head and for each question, else as the daemon opens its own.
    fn context(&self, n_cells: usize) -> ContextOptions {
        ContextOptions {
            n_cells: n_cells.max(2 * engine::CHUNK),
            n_seq_max: QUESTIONS.len() + 1,
            n_batch: engine::CHUNK,
            kv_type: self.config.model.kv_type,
            threads: self.config.model.threads,
        }
    }
}

fn asking(asked: &[Asked]) -> Asking {
    let runs: Vec<Run> = asked
        .iter()
        .map(|asked| Run {
            reused: asked.n_reused,
            of: asked.n_prompt,
            ttft_ms: milliseconds(asked.ttft),
            inside_ms: milliseconds(asked.ttft_inside),
        })
        .collect();
    Asking {
        reused: runs[0].reused,
        of: runs[0].of,
        ttft_ms: milliseconds(median(asked.iter().map(|asked| asked.ttft).collect())),
        inside_ms: milliseconds(median(asked.iter().map(|asked| asked.ttft_inside).collect())),
        runs,
    }
}

/// The middle one of some times, the upper of two; zero of none.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

/// Progress, for whoever waits.
fn say(what: &str) {
    // Nobody has to listen.
    let _ = writeln!(io::stderr(), "bench: {what}");
}

/// Runnable threads of the last minute, where the kernel tells.
fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::simulated::SimulatedModel;

    #[test]
    fn a_median_is_the_middle_one() {
        for (times, expected) in [(&[][..], 0), (&[3], 3), (&[9, 1, 5], 5), (&[1, 9], 9), (&[4, 2, 8, 6], 6)] {
            let times = times.iter().map(|&seconds| Duration::from_secs(seconds)).collect();
            assert_eq!(median(times), Duration::from_secs(expected));
        }
    }

    fn house(folder: &std::path::Path) -> Config {
        let file = folder.join("config.toml");
        std::fs::write(folder.join("house.md"), "Be brief. ".repeat(40)).unwrap();
        std::fs::write(&file, "[[profile]]\nname = \"house\"\nsystem = \"house.md\"").unwrap();
        Config::load(&file).unwrap()
    }

    #[test]
    fn everything_is_measured_over_the_simulated_engine() {
        let folder = tempfile::tempdir().unwrap();
        let config = house(folder.path());
        let report = bench(&config, Arc::new(SimulatedModel::new()), &Scope::House).unwrap();

        let House { ttft, speed, .. } = report.house.unwrap();
        let Ttft { cold, warm, restarted, profile, .. } = &ttft;
        assert_eq!((profile.as_str(), cold.runs.len(), warm.runs.len()), ("house", N_COLD, QUESTIONS.len()));
        assert!(cold.runs.iter().all(|run| run.reused == 0), "{cold:?}");
        // Each question reuses the pinned head, and computes no more than its own words and the answer's opening.
        let n_computed = |index: usize| warm.runs[index].of - warm.runs[index].reused;
        for (index, question) in QUESTIONS.iter().enumerate() {
            assert!((question.len()..question.len() + 40).contains(&n_computed(index)), "{:?}", warm.runs[index]);
        }
        assert_eq!(cold.runs[0].of, warm.runs[0].of);
        assert_eq!(restarted.runs.len(), N_RESTARTED);
        assert!(restarted.runs.iter().all(|run| run.reused >= warm.runs[0].reused), "{restarted:?}");
        assert!(report.outside.unwrap().iter().all(|row| row.n_tools == 30 && row.all_ms > 0.0));
        assert!(speed.save_bytes_per_second > 0.0 && speed.restore_bytes_per_second > 0.0, "{speed:?}");
        assert_eq!(report.threads, None);
    }

    #[test]
    fn every_number_of_threads_is_measured_quiet_and_busy() {
        let folder = tempfile::tempdir().unwrap();
        let report = bench(&house(folder.path()), Arc::new(SimulatedModel::new()), &Scope::Threads).unwrap();
        let rows = report.threads.unwrap();
        let places: Vec<_> = rows.iter().map(|row| (row.is_busy, row.threads)).collect();
        let numbers = 1..=report.machine.cpus;
        let expected: Vec<_> =
            [false, true].into_iter().flat_map(|is_busy| numbers.clone().map(move |n| (is_busy, n))).collect();
        assert_eq!(places, expected);
        assert_eq!(rows.iter().filter(|row| row.is_configured).count(), 2);
    }

    #[test]
    fn drafts_are_measured_against_plain_steps() {
        let folder = tempfile::tempdir().unwrap();
        let model = SimulatedModel::new().repeating(40, 1 << 20);
        let report = bench(&house(folder.path()), Arc::new(model), &Scope::Drafts).unwrap();
        let [calls, prose] = &report.drafts.unwrap()[..] else { panic!("two texts") };
        assert_eq!((calls.n_tokens, prose.n_tokens), (3 * 192, 3 * 192));
        for row in [calls, prose] {
            assert!(row.n_accepted <= row.n_drafted && row.plain_tokens_per_second > 0.0, "{row:?}");
            let ratio = row.drafting_tokens_per_second / row.plain_tokens_per_second;
            assert!((row.drafting_by_plain - ratio).abs() < 1e-9);
            assert_eq!(row.goal.is_met, ratio >= row.goal.at_least);
        }
    }

    #[test]
    fn bound_steps_are_measured_against_free_ones() {
        let folder = tempfile::tempdir().unwrap();
        let report = bench(&house(folder.path()), Arc::new(SimulatedModel::new()), &Scope::Bound).unwrap();
        let bound = report.bound.unwrap();
        assert!(bound.n_tools > 0 && bound.n_fitting + bound.n_refused > 0, "{bound:?}");
        let mixed = 0.95 * bound.fitting_step_ms + 0.05 * bound.refused_step_ms;
        assert!((bound.bound_by_free - bound.free_step_ms / mixed).abs() < 1e-9, "{bound:?}");
        assert_eq!(bound.goal.is_met, bound.bound_by_free >= bound.goal.at_least);
    }

    #[test]
    fn a_given_body_is_measured_and_a_bad_one_is_refused_like_by_the_route() {
        let folder = tempfile::tempdir().unwrap();
        let config = house(folder.path());
        let measured = |body: &str| {
            let file = folder.path().join("body.json");
            std::fs::write(&file, body).unwrap();
            bench(&config, Arc::new(SimulatedModel::new()), &Scope::Request(file))
        };
        let report = measured(r#"{"model": "another", "messages": [{"role": "user", "content": "Hello"}]}"#).unwrap();
        let rows = report.outside.unwrap();
        assert!(rows.iter().all(|row| row.goal.is_none() && row.n_tools == 0), "{rows:?}");
        assert_eq!(report.house, None);
        assert_eq!(crate::daemon::chain(&measured("{}").unwrap_err()), "the body of the request: model: is required");

        let missing = Scope::Request(folder.path().join("missing.json"));
        let error = bench(&config, Arc::new(SimulatedModel::new()), &missing).unwrap_err();
        assert!(matches!(error, BenchError::Request { .. }), "{error}");
    }
}
