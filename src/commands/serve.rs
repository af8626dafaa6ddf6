//! `hob serve`: the daemon in the foreground.
//!
//! Shows how the pins get warm, says once where it listens and what to type, and runs until SIGTERM or SIGINT.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use super::progress::Progress;
use crate::config::{Config, ConfigError, KeyHash, Listen, read_profiles};
use crate::daemon::{Daemon, DaemonError};
use crate::engine::EngineError;
use crate::http::{BindError, Server};
use crate::private::key_text;
use crate::scheduler::{SchedulerHandle, Status};

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("{} cannot be made: commands on this machine would have no key", file.display())]
    HouseKey { file: PathBuf, source: io::Error },
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error("the runtime could not start")]
    Runtime(#[from] io::Error),
}

/// Runs the daemon until it is told to stop. `out` hears where it listens once the pins are warm.
pub fn serve(config: &Config, mut out: impl Write + Send + 'static) -> Result<(), ServeError> {
    let profiles = read_profiles(config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut server = Server::bind(&config.server).await?;
        if !config.server.access.clients.is_empty() {
            let file = config.house_key_file();
            let key = key_text(&file).map_err(|source| ServeError::HouseKey { file: file.clone(), source })?;
            server = server.with_house_key(KeyHash::of(&key));
        }
        // Loading blocks this thread, not the sockets: clients that connect meanwhile wait.
        let model = tokio::task::block_in_place(|| super::model::load(config))?;
        let name = profiles.first().map_or(config.model.name.clone(), |profile| profile.name.clone());
        let is_demo = config.model.path.file_stem().is_some_and(|stem| stem == super::DEMO_MODEL);
        let daemon = Daemon::start(config, profiles, model, server)?;
        let welcome = welcome(&daemon.addresses(), &name, is_demo);
        let scheduler = daemon.scheduler();
        tokio::spawn(async move {
            show_warming(scheduler).await;
            // A closed pipe must not end the daemon.
            let _ = out.write_all(welcome.as_bytes()).and_then(|()| out.flush());
        });
        daemon.serve(stop_signal()?).await?;
        Ok(())
    })
}

/// Completes at SIGTERM or SIGINT.
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        info!(signal = name, "stopping");
    })
}

/// Between two lines of progress in a log.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows the pins' progress until all are warm: a bar on a terminal, else a line now and then.
async fn show_warming(scheduler: SchedulerHandle) {
    let mut watch = scheduler.watch();
    let mut status = watch.borrow_and_update().clone();
    let n_tokens: usize = status.pins.iter().map(|pin| pin.n_tokens).sum();
    let n_done = |status: &Status| status.pins.iter().map(|pin| pin.n_done).sum::<usize>();
    let bar = io::stderr().is_terminal().then(|| Progress::tokens("warming", n_tokens as u64));
    let mut last_line = Instant::now();
    while !status.pins.iter().all(|pin| pin.is_warm || pin.has_failed) {
        match &bar {
            Some(bar) => bar.set(n_done(&status) as u64),
            None if last_line.elapsed() >= LINE_EVERY => {
                last_line = Instant::now();
                let tokens_per_second = status.prefill_tokens_per_second;
                let seconds_left = ((n_tokens - n_done(&status)) as u64).checked_div(tokens_per_second);
                info!(n_done = n_done(&status), n_tokens, tokens_per_second, seconds_left, "warming");
            }
            None => {}
        }
        if watch.changed().await.is_err() {
            return;
        }
        status = watch.borrow_and_update().clone();
    }
}

/// What to type now.
fn welcome(addresses: &[Listen], model: &str, is_demo: bool) -> String {
    let mut text = String::from("\nhob is warm.\n");
    for address in addresses {
        let (shown, curl) = match address {
            Listen::Tcp(address) => (format!("http://{address}/v1"), format!("http://{address}")),
            Listen::Unix(path) => {
                (format!("unix:{}", path.display()), format!("--unix-socket {} http://hob", path.display()))
            }
        };
        text += &format!(
            "\n  OpenAI-compatible endpoint: {shown}\n  try it:\n  curl -N {curl}/v1/chat/completions -H 'content-type: application/json' \
             -d '{{\"model\":\"{model}\",\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"When is the paper bin collected?\"}}]}}'\n"
        );
    }
    if is_demo {
        text += "\n  The demo model is tiny (135M parameters): its speed is real, its answers are not to be trusted.\n  \
                 Another one: MODEL=/path/to/model.gguf make run\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_welcome_has_a_line_to_paste() {
        let addresses = [Listen::Tcp("127.0.0.1:8088".parse().unwrap()), Listen::Unix("/run/hob.sock".into())];
        insta::assert_snapshot!(welcome(&addresses, "house", true), @r#"
        hob is warm.

          OpenAI-compatible endpoint: http://127.0.0.1:8088/v1
          try it:
          curl -N http://127.0.0.1:8088/v1/chat/completions -H 'content-type: application/json' -d '{"model":"house","stream":true,"messages":[{"role":"user","content":"When is the paper bin collected?"}]}'

          OpenAI-compatible endpoint: unix:/run/hob.sock
          try it:
          curl -N --unix-socket /run/hob.sock http://hob/v1/chat/completions -H 'content-type: application/json' -d '{"model":"house","stream":true,"messages":[{"role":"user","content":"When is the paper bin collected?"}]}'

          The demo model is tiny (135M parameters): its speed is real, its answers are not to be trusted.
          Another one: MODEL=/path/to/model.gguf make run
        "#);
    }
}
