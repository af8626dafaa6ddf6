//! Defines `House`: a whole daemon in this process, on a port of its own, with a state folder of its own.
//!
//! An *exchange* is a request that was sent and whose answer may be read, in part or whole; dropping it hangs up, as a client
//! does. Nothing here knows what a right answer is.

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hob::config::{self, Config, Gpu, GpuLayers, Listen, ProfileFiles};
use hob::daemon::Daemon;
use hob::engine::{KvType, Model, Threads};
use hob::http::Server;
use hob::prompt::{Moment, Profile};
use hob::request::{LayoutMode, Scale};
use hob::scheduler::{SchedulerHandle, Status};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;

/// What the model itself is called, beside the profiles.
pub(crate) const MODEL: &str = "model";
pub(crate) const MAX_BODY: u64 = 1 << 20;

/// Much longer than anything here takes, 5,000 tokens on the real engine and busy cores included; a test that waits so long
/// has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) struct Setup {
    pub(crate) model_name: &'static str,
    pub(crate) context: usize,
    pub(crate) parallel: usize,
    pub(crate) queue: usize,
    pub(crate) profiles: Vec<Profile>,
    pub(crate) layout: LayoutMode,
    pub(crate) cache: Lower,
    pub(crate) kv_type: KvType,
    pub(crate) speculate: bool,
    /// What K/V on disk is told apart by; no engine here reads it.
    pub(crate) weights: &'static str,
    /// Name of each adapter, and what its file is told apart by.
    pub(crate) adapters: Vec<(&'static str, &'static str)>,
    /// What profiles say of the house.
    pub(crate) live: Vec<ProfileFiles>,
    /// Outlives the daemon; `None`: one of its own.
    pub(crate) state: Option<PathBuf>,
}

/// The tiers below the cells.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lower {
    pub(crate) ram: u64,
    pub(crate) disk: u64,
}

impl Lower {
    fn configuration(self, folder: &std::path::Path) -> config::Cache {
        config::Cache { folder: folder.join("kv"), ram: self.ram, disk: self.disk, learned_pins: 0.25, keep_days: 7 }
    }
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            model_name: MODEL,
            context: 4096,
            parallel: 4,
            queue: 64,
            profiles: Vec::new(),
            layout: LayoutMode::Off,
            cache: Lower::default(),
            kv_type: KvType::F16,
            speculate: true,
            weights: "weights",
            adapters: Vec::new(),
            live: Vec::new(),
            state: None,
        }
    }
}

pub(crate) struct House {
    address: SocketAddr,
    scheduler: SchedulerHandle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    folder: TempDir,
}

impl House {
    pub(crate) fn start<M: Model>(model: Arc<M>, setup: Setup) -> House {
        House::start_at(model, setup, Moment::now)
    }

    /// Like `start`, with this clock on the wall.
    pub(crate) fn start_at<M: Model>(
        model: Arc<M>,
        setup: Setup,
        clock: impl Fn() -> Moment + Send + 'static,
    ) -> House {
        let folder = tempfile::tempdir().unwrap();
        let config = configuration(&setup, setup.state.clone().unwrap_or_else(|| folder.path().to_owned()));
        std::fs::write(&config.model.path, setup.weights).unwrap();
        for (adapter, (_, file)) in config.model.adapters.iter().zip(&setup.adapters) {
            std::fs::write(&adapter.path, file).unwrap();
        }
        let (stop, stopped) = oneshot::channel();
        let (started, address_and_door) = mpsc::sync_channel(1);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async move {
                let server = Server::bind(&config.server).await.unwrap();
                let daemon = Daemon::start_at(&config, setup.profiles, model, server, clock).unwrap();
                let [Listen::Tcp(address)] = daemon.addresses()[..] else { panic!("it listens on one port") };
                started.send((address, daemon.scheduler())).unwrap();
                daemon.serve(async { drop(stopped.await) }).await.unwrap();
            });
        });
        let (address, scheduler) = address_and_door.recv().expect("the daemon starts");
        House { address, scheduler, stop: Some(stop), thread: Some(thread), folder }
    }

    pub(crate) fn status(&self) -> Status {
        self.scheduler.status()
    }

    /// The status as soon as it is as `what` wants it.
    pub(crate) fn await_status(&self, what: impl Fn(&Status) -> bool) -> Status {
        let begun = Instant::now();
        loop {
            let status = self.scheduler.status();
            if what(&status) {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it never came to that: {status:?}");
            std::thread::yield_now();
        }
    }

    /// Nothing runs and nothing is left behind by what ran.
    pub(crate) fn await_rest(&self) -> Status {
        let is_at_rest = |status: &Status| {
            let cells = status.cells;
            (status.n_running, status.n_waiting, status.n_tokens_ahead) == (0, 0, 0)
                && (cells.held, cells.reserved, status.n_ids_running) == (0, 0, 0)
        };
        let status = self.await_status(is_at_rest);
        let cells = status.cells;
        assert_eq!(cells.free + cells.evictable + cells.pinned, cells.total, "{cells:?}");
        status
    }

    /// Waits until all pins are warm.
    pub(crate) fn await_warm(&self) {
        self.await_status(|status| status.pins.iter().all(|pin| pin.is_warm));
    }

    /// Stops the daemon as SIGTERM would; panics if a part of it had ended before.
    pub(crate) fn close(mut self) {
        assert!(self.scheduler.watch().has_changed().is_ok(), "the scheduler has ended by itself");
        self.end().expect("the daemon stops without a panic");
    }

    fn end(&mut self) -> std::thread::Result<()> {
        drop(self.stop.take());
        self.thread.take().map_or(Ok(()), JoinHandle::join)
    }

    /// Sends a chat request and reads nothing.
    pub(crate) fn send(&self, body: impl AsRef<[u8]>) -> Exchange {
        self.send_to("/v1/chat/completions", body)
    }

    /// Sends JSON to a route and reads nothing.
    pub(crate) fn send_to(&self, path: &str, body: impl AsRef<[u8]>) -> Exchange {
        let body = body.as_ref();
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        // One that refuses early may close before it has read everything; what it says is read all the same.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        Exchange { reader: BufReader::new(stream), is_chunked: false, is_over: false, pending: String::new() }
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.call("GET", path, "")
    }

    /// Any method on any route.
    pub(crate) fn call(&self, method: &str, path: &str, body: &str) -> Reply {
        self.call_with(method, path, "", body)
    }

    /// With one more header, `name: value`.
    pub(crate) fn call_with(&self, method: &str, path: &str, header: &str, body: &str) -> Reply {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (host, n_bytes) = (self.address, body.len());
        let end = if header.is_empty() { "\r\n" } else { "\r\n\r\n" };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {n_bytes}\r\n{header}{end}"
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        Exchange { reader: BufReader::new(stream), is_chunked: false, is_over: false, pending: String::new() }.reply()
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Telemetry's database, with the log that SQLite keeps beside it.
    pub(crate) fn database_files(&self) -> Vec<PathBuf> {
        let files = ["hob.sqlite", "hob.sqlite-wal"].map(|name| self.folder.path().join(name));
        files.into_iter().filter(|file| file.exists()).collect()
    }

    pub(crate) fn ask(&self, body: &Value) -> Reply {
        self.send(body.to_string()).reply()
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // After a failed test, so that its message is the last word.
        let _ = self.end();
    }
}

fn adapter(name: &str, folder: &std::path::Path) -> config::Adapter {
    let path = folder.join(format!("{name}.gguf"));
    config::Adapter { name: name.to_owned(), path, scale: Scale::ONE, is_default: false }
}

fn configuration(setup: &Setup, folder: PathBuf) -> Config {
    Config {
        file: folder.join("config.toml"),
        server: config::Server {
            listen: vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))],
            max_body: MAX_BODY,
            queue: setup.queue,
            start_wait: Duration::from_secs(120),
            access: config::Access::default(),
        },
        model: config::Model {
            path: folder.join("model.gguf"),
            name: setup.model_name.to_owned(),
            context: setup.context,
            parallel: setup.parallel,
            gpu: Gpu::Off,
            gpu_layers: GpuLayers::All,
            kv_type: setup.kv_type,
            threads: Threads::same(std::thread::available_parallelism().map_or(1, |n| n.get() - 1).max(1)),
            speculate: setup.speculate,
            chat_template: None,
            adapters: setup.adapters.iter().map(|(name, _)| adapter(name, &folder)).collect(),
        },
        cache: setup.cache.configuration(&folder),
        layout: config::Layout { mode: setup.layout },
        telemetry: config::Telemetry { path: folder.join("hob.sqlite"), keep_days: 1, flush: Duration::from_secs(60) },
        profiles: setup.live.clone(),
        state_folder: folder.clone(),
        folder,
    }
}

/// See the module's head.
pub(crate) struct Exchange {
    reader: BufReader<TcpStream>,
    is_chunked: bool,
    is_over: bool,
    /// Read and not given out yet.
    pending: String,
}

#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) head: Head,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Exchange {
    /// Waits for the answer's head.
    pub(crate) fn head(&mut self) -> Head {
        let mut lines = Vec::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            lines.push(line);
        }
        let mut lines = lines.into_iter();
        let status = lines.next().expect("an answer has a status line");
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(": ").expect("a header has a colon");
            (name.to_ascii_lowercase(), value.to_owned())
        });
        let head = Head { status: status[9..12].parse().unwrap(), headers: headers.collect() };
        self.is_chunked = head.header("transfer-encoding") == Some("chunked");
        head
    }

    /// The whole answer.
    pub(crate) fn reply(mut self) -> Reply {
        let head = self.head();
        Reply { head, body: self.body() }
    }

    /// All that is left of the body, behind the head.
    pub(crate) fn body(mut self) -> String {
        let mut body = std::mem::take(&mut self.pending);
        while let Some(piece) = self.piece() {
            body += &piece;
        }
        body
    }

    /// The next server-sent event, without comments; `None` at the end.
    pub(crate) fn event(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.pending.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.pending = rest;
                match event.strip_prefix("data: ") {
                    Some(data) => return Some(data.to_owned()),
                    None => continue,
                }
            }
            let piece = self.piece()?;
            self.pending += &piece;
        }
    }

    /// The next part of the body as the server sent it.
    fn piece(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        let mut bytes = Vec::new();
        if self.is_chunked {
            let size = usize::from_str_radix(&self.line(), 16).expect("a chunk begins with its size");
            self.is_over = size == 0;
            bytes.resize(size, 0);
            self.reader.read_exact(&mut bytes).unwrap();
            assert_eq!(self.line(), "");
        } else {
            self.reader.read_to_end(&mut bytes).unwrap();
        }
        (!bytes.is_empty()).then(|| String::from_utf8(bytes).expect("hob speaks UTF-8"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

/// What was answered, streamed or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) finish: String,
    pub(crate) usage: Usage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Usage {
    pub(crate) n_prompt: usize,
    pub(crate) n_cached: usize,
    pub(crate) n_generated: usize,
}

impl Usage {
    pub(crate) fn of(usage: &Value) -> Usage {
        let number = |pointer: &str| {
            let number = usage.pointer(pointer).and_then(Value::as_u64);
            number.unwrap_or_else(|| panic!("{pointer}: {usage}")) as usize
        };
        Usage {
            n_prompt: number("/prompt_tokens"),
            n_cached: number("/prompt_tokens_details/cached_tokens"),
            n_generated: number("/completion_tokens"),
        }
    }
}

impl Answer {
    /// Of a whole answer.
    pub(crate) fn of(reply: &Reply) -> Answer {
        let body = reply.json();
        let choice = &body["choices"][0];
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{body}")).to_owned();
        // Calls stand behind the text, as models spell them.
        let calls = choice["message"]["tool_calls"].as_array().into_iter().flatten().map(|call| {
            let function = &call["function"];
            format!(
                "<tool_call>\n{{\"name\": {}, \"arguments\": {}}}\n</tool_call>",
                function["name"],
                text(&function["arguments"])
            )
        });
        let content = choice["message"]["content"].as_str().unwrap_or_default().to_owned();
        Answer {
            text: calls.fold(content, |said, call| said + &call),
            finish: text(&choice["finish_reason"]),
            usage: Usage::of(&body["usage"]),
        }
    }

    /// Reads a stream behind its head to the end; it must have been asked for usage. `Err`: it was broken off with an error.
    pub(crate) fn read(exchange: &mut Exchange) -> Result<Answer, Value> {
        let (mut text, mut finish, mut usage) = (String::new(), None, None);
        loop {
            let event = exchange.event().expect("a stream ends with [DONE] or an error");
            if event == "[DONE]" {
                break;
            }
            let chunk: Value = serde_json::from_str(&event).unwrap();
            if chunk.get("error").is_some() {
                return Err(chunk);
            }
            if chunk["usage"].is_object() {
                usage = Some(Usage::of(&chunk["usage"]));
            }
            let choice = &chunk["choices"][0];
            text += choice["delta"]["content"].as_str().unwrap_or_default();
            finish = finish.or(choice["finish_reason"].as_str().map(str::to_owned));
        }
        assert_eq!(exchange.event(), None, "[DONE] is the last word");
        let (finish, usage) = (finish.expect("a stream tells its finish"), usage.expect("usage was asked for"));
        Ok(Answer { text, finish, usage })
    }
}
