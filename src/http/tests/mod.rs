//! The HTTP side over real sockets, with a house that answers by script.
//!
//! `answers`: what good requests get; `bad_input`: what bad ones get, and that the next good one is answered;
//! `speaking`: answers that think and call, and several choices;
//! `connections`: sockets that close, stall, or talk nonsense, and the stop; `house`: `/ready` and what can be watched.

mod answers;
mod anthropic;
mod bad_input;
mod connections;
mod house;
mod ollama;
mod responses;
mod security;
mod speaking;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::{House, ModelCard, PinFailure, Server};
use crate::config::{self, Listen};
use crate::prompt::{
    AnswerReader, Cause, Gain, Moved, PinWish, PlainReader, PlanFailure, PlanTimings, Planned, PromptError, Region,
    Section, Spoken, ToolsUse, Volatility,
};
use crate::request::{
    AdapterSet, CacheUse, Done, Event, Finish, LayoutMode, MissCause, Owner, Request, Timings, Token, TokenPrompt,
};
use crate::scheduler::{Forgotten, Status, Submission, SubmitError};
use crate::telemetry::{ReadError, RequestRow, Wanted};

const MAX_BODY: u64 = 100_000;
const GOOD: &str = r#"{"model":"house","messages":[{"role":"user","content":"is the oven on?"}]}"#;

/// A house whose answers are written down beforehand.
struct Script {
    n_prompt: usize,
    status: Status,
    /// Sent as soon as a request is submitted.
    events: Vec<Event>,
    refusal: Option<SubmitError>,
    reader: Arc<dyn AnswerReader>,
    /// What telemetry holds, newest first; `None`: it is off.
    rows: Option<Vec<RequestRow>>,
    /// What the planner was asked to know again.
    remembered: Vec<Spoken>,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            n_prompt: 12,
            status: Status::default(),
            events: vec![
                Event::Admitted(CACHE),
                Event::Text("The oven ".into()),
                Event::Text("is off.".into()),
                Event::Done(done(Finish::Stop)),
            ],
            refusal: None,
            reader: Arc::new(PlainReader),
            rows: Some(Vec::new()),
            remembered: Vec::new(),
        }
    }
}

impl Script {
    /// Sends nothing by itself: the test takes the submission and answers.
    fn silent() -> Script {
        Script { events: Vec::new(), ..Script::default() }
    }

    fn sending(events: impl Into<Vec<Event>>) -> Script {
        Script { events: events.into(), ..Script::default() }
    }
}

static CARD: LazyLock<ModelCard> = LazyLock::new(|| ModelCard {
    architecture: "llama".into(),
    weight_bytes: 100_000_000,
    n_context_train: 2_048,
    width: 576,
    modified_s: 1_796_040_000,
    switches_thinking: true,
});

const CACHE: CacheUse = CacheUse { n_prompt: 12, n_cached: 9, n_restored: 0, cause: MissCause::Appended };

fn done(finish: Finish) -> Done {
    Done {
        finish,
        stop: None,
        cache: CACHE,
        n_generated: 6,
        generated: (0..6).map(Token).collect(),
        timings: Timings {
            queue: Duration::from_micros(1_250),
            ttft: Some(Duration::from_millis(40)),
            prefill: Duration::from_millis(31),
            decode: Duration::from_millis(120),
        },
    }
}

struct Fake {
    script: Mutex<Script>,
    planned: mpsc::Sender<Request>,
    submitted: mpsc::Sender<Submission>,
}

impl House for Fake {
    fn plan(&self, request: Request) -> BoxFuture<'_, Result<Planned, PlanFailure>> {
        async move {
            if request.model != "house" {
                let error = PromptError::UnknownModel { name: request.model, known: "house, smol".to_owned() };
                return Err(PlanFailure::Prompt(error));
            }
            let max_tokens = request.max_tokens;
            let mode = request.layout.unwrap_or(LayoutMode::Off);
            let section =
                Section { name: "client system".to_owned(), class: Volatility::Session, n_bytes: 40, cut: None };
            let moved = Moved {
                slot: 0,
                is_clock: true,
                kind: "clock",
                text: "It is 8.".into(),
                from_message: 0,
                from_byte: 0,
                to_message: Some(1),
            };
            self.planned.try_send(request).unwrap();
            let (n_prompt, reader) = {
                let script = self.script.lock().unwrap();
                (script.n_prompt, Arc::clone(&script.reader))
            };
            Ok(Planned {
                prompt: TokenPrompt { tokens: vec![Token(1); n_prompt], cuts: Vec::new() },
                mode,
                sections: vec![section],
                regions: vec![Region { section_idx: 0, end: n_prompt }],
                gain: (mode != LayoutMode::Off)
                    .then_some(Gain { from: 4, to: Some(10).filter(|_| mode == LayoutMode::Observe) }),
                profile: Some("house".to_owned()),
                max_tokens,
                adapters: AdapterSet::NONE,
                rules: Arc::default(),
                reader,
                opening: "assistant\n".to_owned(),
                record: Some(7),
                moved: if mode == LayoutMode::Off { Vec::new() } else { vec![moved] },
                n_gained_bytes: 0,
                live_cause: Cause::Untouched,
                tools: ToolsUse::default(),
                timings: PlanTimings::default(),
            })
        }
        .boxed()
    }

    fn count(&self, request: Request) -> BoxFuture<'_, Result<usize, PlanFailure>> {
        async move { Ok(self.plan(request).await?.prompt.tokens.len()) }.boxed()
    }

    fn remember(&self, spoken: Spoken) {
        self.script.lock().unwrap().remembered.push(spoken);
    }

    fn submit(&self, submissions: Vec<Submission>) -> Result<(), SubmitError> {
        let mut script = self.script.lock().unwrap();
        script.refusal.take().map_or(Ok(()), Err)?;
        for submission in submissions {
            for event in &script.events {
                submission.events.try_send(event.clone()).unwrap();
            }
            self.submitted.try_send(submission).unwrap();
        }
        Ok(())
    }

    fn pin(&self, _: PinWish) -> BoxFuture<'_, Result<(), PinFailure>> {
        async { Ok(()) }.boxed()
    }

    fn unpin(&self, _: String, _: Option<Owner>) -> BoxFuture<'_, Result<bool, PinFailure>> {
        async { Ok(false) }.boxed()
    }

    fn forget(&self, _: Option<Owner>) -> BoxFuture<'_, Result<Forgotten, PinFailure>> {
        async { Ok(Forgotten::default()) }.boxed()
    }

    fn status(&self) -> Status {
        self.script.lock().unwrap().status.clone()
    }

    fn requests(&self, wanted: Wanted) -> BoxFuture<'_, Result<Vec<RequestRow>, ReadError>> {
        async move {
            let Script { rows, .. } = &mut *self.script.lock().unwrap();
            let rows = rows.as_ref().ok_or(ReadError::Off)?.iter();
            Ok(match wanted {
                Wanted::Newest(n_max) => rows.take(n_max).cloned().collect(),
                Wanted::Id(id) => rows.filter(|row| row.id == id).cloned().collect(),
            })
        }
        .boxed()
    }

    fn models(&self) -> Vec<String> {
        vec!["house".to_owned(), "smol/135m".to_owned()]
    }

    fn card(&self) -> &ModelCard {
        &CARD
    }

    fn context(&self) -> usize {
        64
    }

    fn n_vocab(&self) -> usize {
        1_000
    }
}

/// A served fake.
struct Running {
    address: SocketAddr,
    fake: Arc<Fake>,
    planned: mpsc::Receiver<Request>,
    submitted: mpsc::Receiver<Submission>,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<()>,
}

async fn start(script: Script) -> Running {
    start_with(script, config(Listen::Tcp(([127, 0, 0, 1], 0).into()))).await
}

async fn start_with(script: Script, config: config::Server) -> Running {
    let server = Server::bind(&config).await.unwrap();
    let [Listen::Tcp(address)] = server.addresses()[..] else { panic!("one TCP address was asked for") };
    serve(server, address, script)
}

fn serve(server: Server, address: SocketAddr, script: Script) -> Running {
    let (planned_sender, planned) = mpsc::channel(1024);
    let (submitted_sender, submitted) = mpsc::channel(1024);
    let fake = Arc::new(Fake { script: Mutex::new(script), planned: planned_sender, submitted: submitted_sender });
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(server.serve(Arc::clone(&fake) as Arc<dyn House>, async { _ = stopped.await }));
    Running { address, fake, planned, submitted, stop: Some(stop), served }
}

fn config(listen: Listen) -> config::Server {
    config::Server {
        listen: vec![listen],
        max_body: MAX_BODY,
        queue: 4,
        start_wait: Duration::from_secs(120),
        access: config::Access::default(),
    }
}

impl Running {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn get(&self, path: &str) -> Reply {
        self.exchange(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()).await
    }

    async fn post(&self, body: impl AsRef<[u8]>) -> Reply {
        self.exchange(&chat_bytes(body.as_ref(), "Connection: close\r\n")).await
    }

    async fn post_to(&self, path: &str, body: &str) -> Reply {
        let bytes = chat_bytes(body.as_bytes(), "Connection: close\r\n");
        let text = String::from_utf8(bytes).unwrap();
        self.exchange(text.replacen("/v1/chat/completions", path, 1).as_bytes()).await
    }

    /// Sends `bytes` on a connection of its own and reads until the server closes.
    async fn exchange(&self, bytes: &[u8]) -> Reply {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        Reply::parse(&read_to_end(&mut stream).await)
    }

    async fn next_submission(&mut self) -> Submission {
        self.submitted.recv().await.unwrap()
    }

    /// Proves that the server lives.
    async fn assert_answers(&self) {
        *self.fake.script.lock().unwrap() = Script::default();
        let reply = self.post(GOOD).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert!(reply.body.contains("The oven is off."), "{}", reply.body);
    }

    fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }
}

/// A chat request as bytes; `headers`: further header lines.
fn chat_bytes(body: &[u8], headers: &str) -> Vec<u8> {
    let length = body.len();
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

fn streaming(body: &str) -> String {
    body.replacen('{', r#"{"stream":true,"#, 1)
}

async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    bytes
}

/// Reads until `end` was seen, or the other side closes.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).contains(end) {
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await.unwrap() {
            0 => panic!("closed before {end:?}: {}", String::from_utf8_lossy(&bytes)),
            n_read => bytes.extend_from_slice(&buffer[..n_read]),
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// A response, its body without HTTP's chunks.
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Reply {
        let text = std::str::from_utf8(bytes).unwrap();
        let (head, mut rest) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
        let mut body = String::new();
        if head.contains("transfer-encoding: chunked") {
            while let Some((size, after)) = rest.split_once("\r\n") {
                let size = usize::from_str_radix(size, 16).unwrap();
                body.push_str(&after[..size]);
                rest = after[size..].strip_prefix("\r\n").unwrap();
            }
        } else {
            body.push_str(rest);
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply { status, head: head.to_owned(), body }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Head and body with what differs from run to run replaced.
    fn redacted(&self) -> String {
        let id = self.header("x-request-id").unwrap();
        let text = format!("{}\n\n{}", self.head.replace("\r\n", "\n"), self.body).replace(id, "<id>");
        let text = replace_digits(&text, "\"created\":", "<seconds>");
        text.lines()
            .map(|line| if line.starts_with("date: ") { "date: <now>" } else { line })
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// The digits after each `key` become `name`.
fn replace_digits(text: &str, key: &str, name: &str) -> String {
    let mut pieces = text.split(key);
    let first = pieces.next().unwrap().to_owned();
    pieces.fold(first, |text, piece| text + key + name + piece.trim_start_matches(|c: char| c.is_ascii_digit()))
}

fn unix_config(path: &Path) -> config::Server {
    config(Listen::Unix(path.to_owned()))
}
