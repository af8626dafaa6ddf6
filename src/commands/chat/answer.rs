//! The daemon as a client sees it: who is there, and one answer as it comes.
//!
//! A *door* knows the address; an *answer* is read by a thread of its own, since reading blocks. Dropping the answer shuts
//! its connection down, by which the daemon learns that nobody waits any more.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;
use ureq::Agent;
use ureq::http::Response;

use super::ChatError;

/// A daemon of the same house answers in milliseconds.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// An error's body; more is no error message.
const ERROR_BYTES_MAX: u64 = 64 * 1024;

#[derive(Clone)]
pub(super) struct Door {
    /// Without the slash and the `/v1` that people write behind it.
    url: String,
    /// The `Authorization` of each request.
    bearer: String,
}

impl Door {
    /// Without a key.
    pub(super) fn open(url: &str) -> Result<Door, ChatError> {
        let url = url.trim_end_matches('/');
        let url = url.strip_suffix("/v1").unwrap_or(url);
        if !url.starts_with("http://") {
            let reason = "must begin with http://, as http://127.0.0.1:8088".to_owned();
            return Err(ChatError::Unreachable { url: url.to_owned(), reason });
        }
        Ok(Door { url: url.to_owned(), bearer: String::new() })
    }

    pub(super) fn with_bearer(self, bearer: String) -> Door {
        Door { bearer, ..self }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Names that `model` may have: the profiles first.
    pub(super) fn models(&self) -> Result<Vec<String>, ChatError> {
        #[derive(Deserialize)]
        struct Models {
            data: Vec<Model>,
        }
        #[derive(Deserialize)]
        struct Model {
            id: String,
        }
        let response = agent().get(format!("{}/v1/models", self.url)).header("authorization", &self.bearer).call();
        let response = response.map_err(|error| self.unreachable(error))?;
        let text = text_of(response).map_err(|error| self.strange(error))?;
        let models: Models = serde_json::from_str(&text).map_err(|error| self.strange(error))?;
        Ok(models.data.into_iter().map(|model| model.id).collect())
    }

    /// Asks for a streamed chat completion.
    pub(super) fn ask(&self, body: Value) -> Answer {
        let agent = agent();
        let (sender, pieces) = mpsc::channel(16);
        let reader = Reader { agent: agent.clone(), door: self.clone(), sender };
        std::thread::spawn(move || reader.run(&body));
        Answer { agent: Some(agent), pieces }
    }

    pub(super) fn strange(&self, reason: impl fmt::Display) -> ChatError {
        ChatError::Strange { url: self.url.clone(), reason: reason.to_string() }
    }

    fn unreachable(&self, error: ureq::Error) -> ChatError {
        let url = self.url.clone();
        match error {
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => ChatError::NotThere { url },
            error => ChatError::Unreachable { url, reason: error.to_string() },
        }
    }
}

/// One for each request, so that shutting it down ends that request alone.
fn agent() -> Agent {
    let config = Agent::config_builder()
        .timeout_connect(Some(CONNECT_WITHIN))
        .http_status_as_error(false)
        // A proxy for the way out of the house does not know the way inside.
        .proxy(None)
        .build();
    config.into()
}

/// What an answer consists of: any number of texts, then one of the others.
#[derive(Debug)]
pub(super) enum Piece {
    Text(String),
    Done(Cost),
    Failed(ChatError),
}

pub(super) struct Answer {
    /// `Some` until it is dropped.
    agent: Option<Agent>,
    pieces: mpsc::Receiver<Piece>,
}

impl Answer {
    pub(super) async fn next(&mut self) -> Piece {
        let broken = || Piece::Failed(ChatError::Broken("the daemon closed the connection".to_owned()));
        self.pieces.recv().await.unwrap_or_else(broken)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.shutdown();
        }
    }
}

/// Reads one answer on a thread of its own, which ends when the answer does or nobody listens.
struct Reader {
    agent: Agent,
    door: Door,
    sender: mpsc::Sender<Piece>,
}

impl Reader {
    fn run(self, body: &Value) {
        let end = match self.read(body) {
            Ok(end) => end,
            Err(error) => Piece::Failed(error),
        };
        let _ = self.sender.blocking_send(end);
    }

    fn read(&self, body: &Value) -> Result<Piece, ChatError> {
        let url = format!("{}/v1/chat/completions", self.door.url);
        let response = self.agent.post(url).header("authorization", &self.door.bearer).send_json(body);
        let response = response.map_err(|error| self.door.unreachable(error))?;
        if !response.status().is_success() {
            let status = response.status();
            let text = text_of(response).unwrap_or_default();
            let message =
                serde_json::from_str(&text).ok().as_ref().and_then(error_message).unwrap_or(status.to_string());
            return Err(ChatError::Refused(message));
        }
        let mut cost = Cost::default();
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line.map_err(|error| ChatError::Broken(error.to_string()))?;
            // Empty lines part the events; others than data are comments that keep the connection alive.
            let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
            if data == "[DONE]" {
                return Ok(Piece::Done(cost));
            }
            let chunk: Value = serde_json::from_str(data).map_err(|error| self.door.strange(error))?;
            if let Some(message) = error_message(&chunk) {
                return Err(ChatError::Broken(message));
            }
            if let Ok(usage) = serde_json::from_value(chunk["usage"].clone()) {
                cost = usage;
            }
            if let Some(text) = chunk["choices"][0]["delta"]["content"].as_str().filter(|text| !text.is_empty())
                && self.sender.blocking_send(Piece::Text(text.to_owned())).is_err()
            {
                break;
            }
        }
        Err(ChatError::Broken("the daemon closed the connection".to_owned()))
    }
}

/// The message of OpenAI's error object.
fn error_message(value: &Value) -> Option<String> {
    value["error"]["message"].as_str().map(str::to_owned)
}

fn text_of(response: Response<ureq::Body>) -> io::Result<String> {
    let mut text = String::new();
    response.into_body().into_reader().take(ERROR_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// What a turn cost, from the answer's `usage`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Cost {
    completion_tokens: u64,
    /// Absent where another server than hob answers.
    hob: Option<HobCost>,
}

#[derive(Debug, Deserialize)]
struct HobCost {
    reused: u64,
    of: u64,
    cause: String,
    ttft_ms: Option<f64>,
    /// First to last token.
    decode_ms: f64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(HobCost { reused, of, cause, ttft_ms, decode_ms }) = &self.hob else {
            return write!(f, "{} tokens", self.completion_tokens);
        };
        write!(f, "{reused} of {of} prompt tokens reused")?;
        if let Some(ttft_ms) = ttft_ms {
            write!(f, " · first token after {}", crate::commands::format::milliseconds(*ttft_ms))?;
        }
        if self.completion_tokens > 1 && *decode_ms > 0.0 {
            write!(f, " · {:.1} tokens/s", (self.completion_tokens - 1) as f64 * 1000.0 / decode_ms)?;
        }
        write!(f, " · {cause}")
    }
}
