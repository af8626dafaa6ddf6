//! Arguments → configuration → command → exit code.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use hob::commands::bench::Scope;
use hob::commands::chat;
use hob::commands::check::EX_CONFIG;
use hob::commands::format::Format;
use hob::commands::{ask, lint, pins};
#[cfg(feature = "llama")]
use hob::commands::{plan::PlanError, serve::ServeError};
use hob::config::{self, Config, ConfigError};
use hob::scheduler::StartError;
use tracing_subscriber::EnvFilter;

/// hob computes each repeated prompt token once.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// The configuration; else HOB_CONFIG, $CONFIGURATION_DIRECTORY/config.toml, the user's config folder,
    /// /etc/hob/config.toml.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Another model than the configured one.
    #[arg(long, global = true, value_name = "GGUF")]
    model: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon in the foreground.
    Serve,
    /// Read the configuration and all that it names, and print every fault.
    Check {
        #[arg(long)]
        json: bool,
    },
    /// Tell what the model and your profiles will cost in memory, and whether they fit, before anything is loaded.
    Plan {
        /// As one JSON object, for programs.
        #[arg(long)]
        json: bool,
        /// The body of a chat completion, as a client sent it: plan it instead, without computing anything.
        #[arg(long, value_name = "BODY.json")]
        request: Option<PathBuf>,
    },
    /// Talk with the running daemon in this terminal.
    Chat {
        /// Which assistant to talk with: a profile's name. Without one, the first.
        profile: Option<String>,
        /// Where the daemon is, if not where the configuration says: http://192.168.1.5:8088
        #[arg(long)]
        url: Option<String>,
    },
    /// Show what the cache did: hit rate, reused tokens, time to first token, evictions.
    Stats {
        /// How far to look back: 24h, 7d, 30m.
        #[arg(long, default_value = "24h", value_parser = since)]
        since: Duration,
        #[arg(long)]
        json: bool,
    },
    /// Tell why a request computed what it computed, and which setting would have helped.
    Why {
        /// What `x-request-id` says of it; `last`: the newest one.
        #[arg(default_value = "last")]
        id: String,
        #[arg(long)]
        json: bool,
    },
    /// Show what is kept warm: tokens, where they lie, hits, seconds saved.
    Pins {
        #[arg(long)]
        json: bool,
    },
    /// Keep something warm that no profile names, or stop it.
    #[command(subcommand)]
    Pin(PinCommand),
    /// Make a key for a client.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Forget what a client left: K/V in memory and on disk, its pins, what was learnt of its prompts.
    Forget {
        /// Its name, which is its address if it has no key; `all`: every client's.
        #[arg(value_name = "CLIENT|all")]
        client: String,
    },
    /// Name what in requests would break the reuse of what stands behind it. Exits with 1 if there is anything, with 2 if a
    /// body cannot be read.
    Lint {
        /// Bodies of chat completions, in the order in which they were sent: each is compared with the one before.
        #[arg(value_name = "BODY.json", required = true)]
        bodies: Vec<PathBuf>,
        #[arg(long)]
        json: bool,
    },
    /// Measure cold and warm time to first token, and what hob adds to the engine, on this machine and model.
    Bench {
        #[arg(long)]
        json: bool,
        /// Measure every number of threads instead, quiet and beside a busy one.
        #[arg(long)]
        threads: bool,
        /// Measure answers with drafts against the same without instead.
        #[arg(long, conflicts_with_all = ["threads", "request"])]
        drafts: bool,
        /// Measure answers that must call a tool against free ones instead.
        #[arg(long, conflicts_with_all = ["threads", "drafts", "request"])]
        bound: bool,
        /// The body of a chat completion, as a client sent it: measure its CPU outside the engine instead.
        #[arg(long, value_name = "BODY.json", conflicts_with = "threads")]
        request: Option<PathBuf>,
    },
}

#[derive(Subcommand)]
enum PinCommand {
    /// Keep warm what stands in front of the conversation in a request: its system text and tools.
    Add {
        name: String,
        /// The body of a chat completion, as a client sends it.
        #[arg(value_name = "BODY.json")]
        body: PathBuf,
        /// For everybody in the house; else for requests from this machine alone.
        #[arg(long)]
        public: bool,
    },
    /// Keep it warm no longer.
    Rm { name: String },
}

#[derive(Subcommand)]
enum KeyCommand {
    /// Prints the key, once, and puts its hash into the configuration.
    New { name: String },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    settle_openmp(&arguments.command);
    // The other commands say themselves what there is to say.
    let level = if matches!(arguments.command, Command::Serve) { "info" } else { "warn" };
    let filter = EnvFilter::try_from_env("HOB_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let has_colour = io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(has_colour).init();
    match run(arguments) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // A reader that closed the pipe has seen enough.
            if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
                return ExitCode::SUCCESS;
            }
            let _ = writeln!(io::stderr(), "hob: {error:#}");
            ExitCode::from(if is_of_configuration(&error) { EX_CONFIG } else { 1 })
        }
    }
}

/// Whether another start would fail alike until the configuration is changed.
fn is_of_configuration(error: &anyhow::Error) -> bool {
    let are_pins = |error: &StartError| matches!(error, StartError::Pins { .. });
    error.chain().any(|cause| cause.is::<ConfigError>() || cause.downcast_ref().is_some_and(are_pins))
}

fn run(arguments: Arguments) -> Result<u8> {
    let file = || config::locate(arguments.config.as_deref());
    let load = || -> Result<Config> {
        let mut config = Config::load(&file()?)?;
        if let Some(model) = &arguments.model {
            config.set_model(std::path::absolute(model).with_context(|| format!("--model {}", model.display()))?);
        }
        Ok(config)
    };
    let mut out = io::stdout();
    match arguments.command {
        Command::Serve => serve(&load()?)?,
        Command::Check { json } => {
            let report = hob::commands::check::check(&file()?);
            report.write(Format::of(json, &out), &mut out)?;
            return Ok(report.exit_code());
        }
        Command::Plan { json, request: Some(body) } => {
            plan_request(&load()?, &body, Format::of(json, &out), &mut out)?;
        }
        Command::Plan { json, request: None } => return plan(&load()?, Format::of(json, &out), &mut out),
        Command::Chat { profile, url } => {
            let (url, bearer) = match url {
                Some(url) => (url, ask::of_environment().unwrap_or_default()),
                None => {
                    let config = load()?;
                    (chat::url_of(&config.server.listen)?, ask::bearer(&config))
                }
            };
            chat::chat(&url, bearer, profile)?;
        }
        Command::Stats { since, json } => {
            hob::commands::stats::stats(&load()?, since, Format::of(json, &out), &mut out)?;
        }
        Command::Why { id, json } => hob::commands::why::why(&load()?, &id, Format::of(json, &out), &mut out)?,
        Command::Key(KeyCommand::New { name }) => hob::commands::key::new(&file()?, &name, &mut out)?,
        Command::Forget { client } => hob::commands::forget::forget(&load()?, &client, &mut out)?,
        Command::Pins { json } => pins::list(&load()?, Format::of(json, &out), &mut out)?,
        Command::Pin(PinCommand::Add { name, body, public }) => {
            pins::add(&load()?, &name, &body, public, &mut out)?;
        }
        Command::Pin(PinCommand::Rm { name }) => pins::remove(&load()?, &name, &mut out)?,
        Command::Lint { bodies, json } => {
            // A configuration that was not named need not be there.
            let config = match file() {
                Err(error) if arguments.config.is_none() => Err(error.to_string()),
                _ => Ok(load()?),
            };
            match lint::run(&bodies, config) {
                Ok(report) => {
                    report.write(Format::of(json, &out), &mut out)?;
                    return Ok(report.exit_code());
                }
                Err(error) => {
                    let _ = writeln!(io::stderr(), "hob: {:#}", anyhow::Error::from(error));
                    return Ok(lint::EX_UNREADABLE);
                }
            }
        }
        Command::Bench { json, threads, drafts, bound, request } => {
            let scope = match request {
                Some(body) => Scope::Request(body),
                None if threads => Scope::Threads,
                None if drafts => Scope::Drafts,
                None if bound => Scope::Bound,
                None => Scope::House,
            };
            bench(&load()?, &scope, Format::of(json, &out))?;
        }
    }
    Ok(0)
}

#[cfg(feature = "llama")]
fn serve(config: &Config) -> Result<()> {
    hob::commands::serve::serve(config, io::stdout()).map_err(|error| match error {
        // Transparent, and so not in its own chain.
        ServeError::Config(error) => error.into(),
        other => other.into(),
    })
}

#[cfg(feature = "llama")]
fn plan(config: &Config, format: Format, out: &mut impl Write) -> Result<u8> {
    let plan = hob::commands::plan::plan(config).map_err(|error| match error {
        PlanError::Config(error) => anyhow::Error::from(error),
        other => other.into(),
    })?;
    plan.write(format, out)?;
    Ok(plan.exit_code())
}

#[cfg(feature = "llama")]
fn plan_request(config: &Config, body: &Path, format: Format, out: &mut impl Write) -> Result<()> {
    let plan = hob::commands::plan::plan_request(config, body).map_err(|error| match error {
        PlanError::Config(error) => anyhow::Error::from(error),
        other => other.into(),
    })?;
    Ok(plan.write(format, out)?)
}

#[cfg(not(feature = "llama"))]
const NO_ENGINE: &str = "this hob was built without an engine: build it with the feature `llama`";

#[cfg(not(feature = "llama"))]
fn serve(_: &Config) -> Result<()> {
    anyhow::bail!(NO_ENGINE)
}

#[cfg(not(feature = "llama"))]
fn plan(_: &Config, _: Format, _: &mut impl Write) -> Result<u8> {
    anyhow::bail!(NO_ENGINE)
}

#[cfg(not(feature = "llama"))]
fn plan_request(_: &Config, _: &Path, _: Format, _: &mut impl Write) -> Result<()> {
    anyhow::bail!(NO_ENGINE)
}

#[cfg(feature = "llama")]
fn bench(config: &Config, scope: &Scope, format: Format) -> Result<()> {
    Ok(hob::commands::bench::run(config, scope, format, io::stdout())?)
}

#[cfg(not(feature = "llama"))]
fn bench(_: &Config, _: &Scope, _: Format) -> Result<()> {
    anyhow::bail!(NO_ENGINE)
}

fn since(text: &str) -> Result<Duration, String> {
    config::parse_duration(text).ok_or_else(|| format!("{text:?} is no time span; write 30m, 24h or 7d"))
}

/// How long llama.cpp's threads spin at a barrier before they sleep.
///
/// A home server is never idle, and spinning threads wait for one that the kernel put aside. Seconds for 256 tokens of prefill and
/// for 30 decode steps on two cores (`hob bench --threads`, the demo model, medians of five), quiet → beside a busy thread:
///
/// | | one thread | two threads |
/// |---|---|---|
/// | 2,000 turns | 0.94, 0.27 → 1.02, 0.27 | 0.52, 0.28 → 0.89, 0.75 |
/// | libgomp's own 300,000 | 0.95, 0.27 → 0.99, 0.28 | 0.51, 0.27 → 1.44, 0.96 |
/// | `OMP_WAIT_POLICY=passive` | 0.94, 0.28 → 0.98, 0.26 | 0.55, 0.55 → 0.94, 0.73 |
///
/// So 2,000 turns cost nothing when it is quiet, unlike passive waiting, and a third less than libgomp's own when it is not;
/// without control the latter has been seen to take 11 s for the same steps.
/// libgomp reads its environment before `main`, so the setting needs a second exec. The user's own setting wins.
fn settle_openmp(command: &Command) {
    const SPIN: &str = "GOMP_SPINCOUNT";
    let is_set = [SPIN, "OMP_WAIT_POLICY"].iter().any(|name| std::env::var_os(name).is_some());
    if is_set
        || !cfg!(all(feature = "llama", target_os = "linux"))
        || !matches!(command, Command::Serve | Command::Bench { .. })
    {
        return;
    }
    #[cfg(unix)]
    if let Ok(program) = std::env::current_exe() {
        use std::os::unix::process::CommandExt;
        // Returns only if it failed: then hob goes on without the setting.
        let _ = std::process::Command::new(program).args(std::env::args_os().skip(1)).env(SPIN, "2000").exec();
    }
}
