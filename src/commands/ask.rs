//! One question to the running daemon over HTTP, by commands that change what it holds.

use std::io::{self, Read};
use std::time::Duration;

use serde_json::Value;
use ureq::http::Request;

use super::chat::{ChatError, url_of};
use crate::config::Config;

/// It is on this machine.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A pin is rendered and told to a scheduler that may be in a step of some seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// A pin takes some 200 bytes of it.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("no daemon answers at {url}: start one with `hob serve`")]
    NotThere { url: String },
    #[error("{url} cannot be reached: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    NoAddress(#[from] ChatError),
    #[error("{url} does not answer like hob")]
    Strange { url: String },
}

/// What the daemon of `config` answers; a `body` is JSON.
pub(super) fn ask(config: &Config, method: &str, path: &str, body: String) -> Result<Value, AskError> {
    let url = url_of(&config.server.listen)?;
    let unreachable = |reason: String| AskError::Unreachable { url: url.clone(), reason };
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_connect(Some(CONNECT_WITHIN))
        .timeout_global(Some(ANSWER_WITHIN))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .into();
    let request = Request::builder()
        .method(method)
        .uri(format!("{url}{path}"))
        .header("content-type", "application/json")
        .header("authorization", bearer(config))
        .body(body)
        .map_err(|error| unreachable(error.to_string()))?;
    let response = agent.run(request).map_err(|error| match error {
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            AskError::NotThere { url: url.clone() }
        }
        error => unreachable(error.to_string()),
    })?;
    let is_success = response.status().is_success();
    let mut text = String::new();
    let read = response.into_body().into_reader().take(ANSWER_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| unreachable(error.to_string()))?;
    let answer: Value = serde_json::from_str(&text).map_err(|_| AskError::Strange { url: url.clone() })?;
    match answer["error"]["message"].as_str() {
        Some(message) => Err(AskError::Refused(message.to_owned())),
        None if is_success => Ok(answer),
        None => Err(AskError::Strange { url }),
    }
}

/// The key that this command sends: `HOB_KEY`, else that of commands on this machine, which the daemon keeps in its state
/// folder. Without either nobody needs one, or the daemon says so.
pub fn bearer(config: &Config) -> String {
    let of_house = || std::fs::read_to_string(config.house_key_file()).ok().map(|key| format!("Bearer {}", key.trim()));
    of_environment().or_else(of_house).unwrap_or_default()
}

/// The same for a daemon that may be another machine's: this one's key stays here.
pub fn of_environment() -> Option<String> {
    std::env::var("HOB_KEY").ok().filter(|key| !key.is_empty()).map(|key| format!("Bearer {}", key.trim()))
}
