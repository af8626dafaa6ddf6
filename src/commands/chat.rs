//! `hob chat`: a terminal chat with the running daemon.
//!
//! A *turn* is one question and its answer, streamed as it comes. Answers go to stdout; everything else, such as what
//! each turn cost, to stderr, so that a script gets answers alone. The history is kept in memory and sent with each
//! question: what it costs to send it again is what hob saves.

mod answer;

use std::io::{self, BufRead, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::answer::{Cost, Door, Piece};
use super::format::Format;
use crate::config::Listen;

#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error("no daemon answers at {url}: start one with `hob serve`, or name another with --url")]
    NotThere { url: String },
    #[error("{url} cannot be reached: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("the daemon listens on a Unix socket alone, which `hob chat` cannot use: name its address with --url")]
    SocketOnly,
    #[error("there is no profile {name:?} at {url}; there are: {known}")]
    UnknownProfile { name: String, url: String, known: String },
    #[error("{url} does not answer like hob: {reason}")]
    Strange { url: String, reason: String },
    #[error("{0}")]
    Refused(String),
    #[error("the answer broke off: {0}")]
    Broken(String),
    #[error("the terminal")]
    Terminal(#[from] io::Error),
}

/// The address to talk to among those that the daemon listens on.
pub fn url_of(addresses: &[Listen]) -> Result<String, ChatError> {
    let tcp = addresses.iter().find_map(|address| match address {
        Listen::Tcp(address) => Some(*address),
        Listen::Unix(_) => None,
    });
    let address = tcp.ok_or(ChatError::SocketOnly)?;
    // Who listens everywhere is also here.
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    Ok(format!("http://{}", SocketAddr::new(ip, address.port())))
}

/// Talks with `profile`, else with the daemon's first one, until the input ends.
/// `bearer`: the `Authorization` to send along.
pub fn chat(url: &str, bearer: String, profile: Option<String>) -> Result<(), ChatError> {
    let door = Door::open(url)?.with_bearer(bearer);
    let is_terminal = io::stdin().is_terminal();
    let format = Format::of(false, &io::stderr());
    let chat = Chat::new(door, profile, is_terminal, format, io::stdout(), io::stderr())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = signal(SignalKind::interrupt())?;
        let (interrupted, interrupts) = mpsc::channel(1);
        tokio::spawn(async move { while signals.recv().await.is_some() && interrupted.send(()).await.is_ok() {} });
        chat.run(typed_lines(), interrupts).await
    })
}

/// Lines of stdin. Its thread is left behind at the end: nothing else ends a read from a terminal.
fn typed_lines() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

const HELP: &str = "\
/new   forget what was said and begin again
/help  this
/quit  leave; so do Ctrl-D and Ctrl-C
While an answer comes, Ctrl-C ends that answer alone.";

struct Chat<O, E> {
    door: Door,
    model: String,
    history: Vec<Value>,
    is_terminal: bool,
    format: Format,
    /// Answers.
    out: O,
    /// Everything else.
    notes: E,
}

/// What a typed line asks for.
enum Typed<'a> {
    Nothing,
    Question(&'a str),
    New,
    Help,
    Quit,
    Unknown(&'a str),
}

impl Typed<'_> {
    fn of(line: &str) -> Typed<'_> {
        match line.trim() {
            "" => Typed::Nothing,
            "/new" => Typed::New,
            "/help" => Typed::Help,
            "/quit" => Typed::Quit,
            // A path or a date may begin with one, too; a single word is a mistyped command.
            other if other.starts_with('/') && !other.contains(char::is_whitespace) => Typed::Unknown(other),
            other => Typed::Question(other),
        }
    }
}

impl<O: Write, E: Write> Chat<O, E> {
    fn new(
        door: Door,
        profile: Option<String>,
        is_terminal: bool,
        format: Format,
        out: O,
        notes: E,
    ) -> Result<Chat<O, E>, ChatError> {
        let known = door.models()?;
        let model = match profile {
            Some(name) if known.contains(&name) => name,
            Some(name) => {
                return Err(ChatError::UnknownProfile { name, url: door.url().to_owned(), known: known.join(", ") });
            }
            // Profiles come first, in the configuration's order, then the model itself.
            None => known.first().cloned().ok_or_else(|| door.strange("it has no model"))?,
        };
        let mut chat = Chat { door, model, history: Vec::new(), is_terminal, format, out, notes };
        if is_terminal {
            chat.greet(known.iter().any(|name| name == super::DEMO_MODEL))?;
        }
        Ok(chat)
    }

    fn greet(&mut self, is_demo: bool) -> io::Result<()> {
        let model = self.format.bold(&self.model);
        writeln!(self.notes, "{model} at {}. /help says what else can be typed.", self.door.url())?;
        if is_demo {
            let warning = "The demo model is tiny: its speed is real, its answers are not to be trusted.\n\
                           Another one: MODEL=/path/to/model.gguf make run";
            writeln!(self.notes, "{}", self.format.dim(warning))?;
        }
        Ok(())
    }

    /// Takes `lines` as turns until they end, or an interrupt comes while nothing is answered.
    async fn run(
        mut self,
        mut lines: mpsc::Receiver<String>,
        mut interrupts: mpsc::Receiver<()>,
    ) -> Result<(), ChatError> {
        loop {
            self.prompt()?;
            let line = tokio::select! {
                line = lines.recv() => line,
                Some(()) = interrupts.recv() => None,
            };
            let Some(line) = line else {
                // Behind the ^C or ^D that the terminal shows.
                if self.is_terminal {
                    writeln!(self.notes)?;
                }
                return Ok(());
            };
            match Typed::of(&line) {
                Typed::Nothing => {}
                Typed::Question(text) => match self.turn(text, &mut interrupts).await {
                    // A person reads it and goes on; a script has to learn it.
                    Err(error @ (ChatError::Refused(_) | ChatError::Broken(_))) if self.is_terminal => {
                        writeln!(self.notes, "{}", self.format.red(error))?;
                    }
                    other => other?,
                },
                Typed::New => {
                    self.history.clear();
                    writeln!(self.notes, "{}", self.format.dim("forgotten"))?;
                }
                Typed::Help => writeln!(self.notes, "{HELP}")?,
                Typed::Quit => return Ok(()),
                Typed::Unknown(command) => writeln!(self.notes, "{command} is no command; /help names them")?,
            }
        }
    }

    fn prompt(&mut self) -> io::Result<()> {
        if self.is_terminal {
            write!(self.notes, "{} ", self.format.bold(format_args!("{}>", self.model)))?;
            self.notes.flush()?;
        }
        Ok(())
    }

    /// One question. What was said of an answer that was interrupted stays in the history, as both have seen it.
    async fn turn(&mut self, question: &str, interrupts: &mut mpsc::Receiver<()>) -> Result<(), ChatError> {
        self.history.push(json!({ "role": "user", "content": question }));
        let mut said = String::new();
        let result = self.answer(&mut said, interrupts).await;
        if said.is_empty() && !matches!(result, Ok(Some(_))) {
            self.history.pop();
        } else {
            writeln!(self.out)?;
            self.history.push(json!({ "role": "assistant", "content": said }));
        }
        let line = match result? {
            Some(cost) => cost.to_string(),
            None => "cancelled".to_owned(),
        };
        writeln!(self.notes, "{}", self.format.dim(line))?;
        Ok(())
    }

    /// Prints the answer to the history as it comes; `None`: it was interrupted.
    async fn answer(
        &mut self,
        said: &mut String,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<Option<Cost>, ChatError> {
        let body = json!({
            "model": self.model,
            "messages": self.history,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        let mut answer = self.door.ask(body);
        loop {
            let piece = tokio::select! {
                piece = answer.next() => piece,
                // Dropping the answer closes its connection.
                Some(()) = interrupts.recv() => return Ok(None),
            };
            match piece {
                Piece::Text(text) => {
                    self.out.write_all(text.as_bytes())?;
                    self.out.flush()?;
                    said.push_str(&text);
                }
                Piece::Done(cost) => return Ok(Some(cost)),
                Piece::Failed(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests;
