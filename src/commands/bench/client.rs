//! A daemon of its own on a loopback port, and the client that asks it.
//!
//! *TTFT* here is what a client sees: from sending the request to reading the first piece of the answer. The daemon is the real
//! one with the configured settings, but for where it listens and where its records and its K/V go: not to the house's.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::BenchError;
use crate::config::{Config, Listen};
use crate::daemon::{Daemon, DaemonError};
use crate::engine::Model;
use crate::http::Server;
use crate::prompt::Profile;

/// Tokens to generate: as in a real answer, the next step is under way while the first piece travels.
const N_ANSWER: usize = 4;

/// A running daemon; `stop` ends it.
pub(super) struct Running<'a> {
    runtime: &'a Runtime,
    agent: ureq::Agent,
    address: Listen,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), DaemonError>>,
    folder: PathBuf,
}

/// What one question showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) ttft: Duration,
    /// The daemon's own measurement: from the request read to its first token.
    pub(super) ttft_inside: Duration,
    pub(super) n_prompt: usize,
    pub(super) n_reused: usize,
}

type Start<M> = fn(&Config, Vec<Profile>, Arc<M>, Server) -> Result<Daemon, DaemonError>;

impl<'a> Running<'a> {
    /// A daemon that serves `profile` and keeps its head warm; returns when it is.
    pub(super) fn warm<M: Model>(
        runtime: &'a Runtime,
        config: &Config,
        profile: &Profile,
        model: Arc<M>,
    ) -> Result<Running<'a>, BenchError> {
        Running::start(runtime, config, profile, model, new_folder(), Daemon::start)
    }

    /// Stops it and starts another one on the folder that it leaves; returns when its head is warm again.
    pub(super) fn restarted<M: Model>(
        self,
        config: &Config,
        profile: &Profile,
        model: Arc<M>,
    ) -> Result<Running<'a>, BenchError> {
        let runtime = self.runtime;
        let folder = self.end();
        Running::start(runtime, config, profile, model, folder, Daemon::start)
    }

    /// A daemon that serves `profile` and holds nothing of it. Its first request is cold in every respect: a `cache_salt` would
    /// not do, as pins belong to everybody, and another first line would be another prompt.
    pub(super) fn cold<M: Model>(
        runtime: &'a Runtime,
        config: &Config,
        profile: &Profile,
        model: Arc<M>,
    ) -> Result<Running<'a>, BenchError> {
        let mut config = config.clone();
        // Nothing of it is kept, so the weights need not be read to be hashed.
        config.cache.disk = 0;
        Running::start(runtime, &config, profile, model, new_folder(), Daemon::start_cold)
    }

    fn start<M: Model>(
        runtime: &'a Runtime,
        config: &Config,
        profile: &Profile,
        model: Arc<M>,
        folder: PathBuf,
        start: Start<M>,
    ) -> Result<Running<'a>, BenchError> {
        let mut config = config.clone();
        config.server.listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
        config.telemetry.path = folder.join("hob.sqlite");
        config.state_folder.clone_from(&folder);
        config.cache.folder = folder.join("kv");
        let server = runtime.block_on(Server::bind(&config.server)).map_err(DaemonError::from)?;
        let daemon = start(&config, vec![profile.clone()], model, server)?;
        let address = daemon.addresses().remove(0);
        let mut status = daemon.scheduler().watch();
        let (stop, stopped) = oneshot::channel();
        // Dropping the sender stops it, too.
        let served = runtime.spawn(daemon.serve(async { drop(stopped.await) }));
        let is_warm =
            runtime.block_on(status.wait_for(|status| status.pins.iter().all(|pin| pin.is_warm || pin.has_failed)));
        is_warm.map_err(|_| BenchError::Answer("the daemon ended before it was warm".to_owned()))?;
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        Ok(Running { runtime, agent, address, stop, served, folder })
    }

    /// Asks `model` one question and reads the answer to its end.
    pub(super) fn ask(&self, model: &str, question: &str) -> Result<Asked, BenchError> {
        let body = question_body(model, question).to_string();
        let url = format!("http://{}/v1/chat/completions", self.address);
        let started = Instant::now();
        let response = self.agent.post(url).header("content-type", "application/json").send(&body)?;
        let is_fine = response.status().is_success();
        let lines = BufReader::new(response.into_body().into_reader()).lines();
        if !is_fine {
            let text = lines.collect::<Result<Vec<String>, _>>()?.join("\n");
            return Err(BenchError::Answer(text));
        }
        let (mut ttft, mut usage) = (None, Value::Null);
        for line in lines {
            let line = line?;
            let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else { continue };
            let chunk: Value = serde_json::from_str(data)?;
            // An answer may end before it has any text; then its end is the first news.
            let choice = &chunk["choices"][0];
            let delta = &choice["delta"];
            let says = |field: &str| delta[field].as_str().is_some_and(|text| !text.is_empty());
            let is_news = says("content")
                || says("reasoning_content")
                || delta["tool_calls"].is_array()
                || !choice["finish_reason"].is_null();
            if is_news {
                ttft = ttft.or_else(|| Some(started.elapsed()));
            }
            if chunk["usage"].is_object() {
                usage = chunk["usage"].clone();
            }
        }
        let number = |pointer: &str| {
            let missing = || BenchError::Answer(format!("the answer has no usage{pointer}: {usage}"));
            usage.pointer(pointer).and_then(Value::as_f64).ok_or_else(missing)
        };
        Ok(Asked {
            ttft: ttft.ok_or_else(|| BenchError::Answer("the answer has no first piece".to_owned()))?,
            ttft_inside: Duration::from_secs_f64(number("/hob/ttft_ms")? / 1_000.0),
            n_prompt: number("/prompt_tokens")? as usize,
            n_reused: number("/prompt_tokens_details/cached_tokens")? as usize,
        })
    }

    /// Stops it and removes what it wrote.
    pub(super) fn stop(self) {
        let _ = std::fs::remove_dir_all(self.end());
    }

    /// Stops it; what it wrote.
    fn end(self) -> PathBuf {
        let Running { runtime, agent, stop, served, folder, .. } = self;
        // An idle connection would be waited for.
        drop(agent);
        let _ = stop.send(());
        if let Err(error) = runtime.block_on(served) {
            tracing::warn!(%error, "the daemon of the benchmark");
        }
        folder
    }
}

/// For what one daemon writes; it makes it.
fn new_folder() -> PathBuf {
    std::env::temp_dir().join(format!("hob-bench-{:016x}", fastrand::u64(..)))
}

/// The body that `ask` sends.
pub(super) fn question_body(model: &str, question: &str) -> Value {
    json!({
        "model": model,
        "stream": true,
        "stream_options": { "include_usage": true },
        "temperature": 0,
        "max_tokens": N_ANSWER,
        "messages": [{ "role": "user", "content": question }],
    })
}
