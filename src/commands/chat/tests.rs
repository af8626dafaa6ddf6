//! The chat with a real daemon over the simulated engine: what it prints, and what stays when it is interrupted.

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::config::Config;
use crate::daemon::{Daemon, DaemonError};
use crate::engine::simulated::{Faults, SimulatedModel};
use crate::http::Server;
use crate::prompt::Profile;
use crate::scheduler::SchedulerHandle;

/// A daemon with the profile `house`, and a chat with it whose input is the test.
struct House {
    url: String,
    faults: Faults,
    scheduler: SchedulerHandle,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), DaemonError>>,
    _folder: tempfile::TempDir,
}

impl House {
    async fn start(context: usize) -> House {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        let text = format!(
            "server.listen = [\"127.0.0.1:0\"]\ntelemetry.path = \"hob.sqlite\"\nmodel.name = \"simulated\"\n\
             model.context = {context}\n[[profile]]\nname = \"house\"\nmax_tokens = 40"
        );
        std::fs::write(&file, text).unwrap();
        let config = Config::load(&file).unwrap();
        let profile = Profile {
            name: "house".to_owned(),
            system: "You are the house.".to_owned(),
            max_tokens: Some(40),
            ..Profile::default()
        };
        let model = SimulatedModel::new();
        let faults = model.faults();
        let server = Server::bind(&config.server).await.unwrap();
        let daemon = Daemon::start(&config, vec![profile], Arc::new(model), server).unwrap();
        let url = url_of(&daemon.addresses()).unwrap();
        let scheduler = daemon.scheduler();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(daemon.serve(async { drop(stopped.await) }));
        House { url, faults, scheduler, stop, served, _folder: folder }
    }

    async fn chat(&self, is_terminal: bool) -> Hand {
        let (answers, notes) = (Paper::default(), Paper::default());
        let (out, err, url) = (answers.clone(), notes.clone(), self.url.clone());
        let open = move || Chat::new(Door::open(&url)?, None, is_terminal, Format::Plain, out, err);
        let chat = tokio::task::spawn_blocking(open).await.unwrap().unwrap();
        let (line, lines) = mpsc::channel(8);
        let (interrupt, interrupts) = mpsc::channel(1);
        let ended = tokio::spawn(chat.run(lines, interrupts));
        Hand { line, interrupt, answers, notes, ended }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.served.await.unwrap().unwrap();
    }
}

/// Who types, and sees what comes.
struct Hand {
    line: mpsc::Sender<String>,
    interrupt: mpsc::Sender<()>,
    answers: Paper,
    notes: Paper,
    ended: JoinHandle<Result<(), ChatError>>,
}

impl Hand {
    async fn types(&self, line: &str) {
        self.line.send(line.to_owned()).await.unwrap();
    }

    /// Ends the input, and waits until the chat has ended.
    async fn leaves(self) -> (Result<(), ChatError>, String, String) {
        drop(self.line);
        let result = self.ended.await.unwrap();
        (result, self.answers.text(), self.notes.text())
    }
}

/// What was printed.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Paper {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// Reused and all prompt tokens of each turn, from the lines that say what turns cost.
fn reuse(notes: &str) -> Vec<(usize, usize)> {
    let costs = notes.lines().filter_map(|line| line.split_once(" prompt tokens reused"));
    costs
        .map(|(numbers, _)| {
            let (reused, of) = numbers.split_once(" of ").unwrap();
            // A prompt may stand in front: the line feed behind it was typed.
            let reused = reused.rsplit(' ').next().unwrap();
            (reused.parse().unwrap(), of.parse().unwrap())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_from_what_was_said() {
    let house = House::start(4096).await;
    let hand = house.chat(false).await;
    for line in ["Is the oven on?", "", "And the lamp?", "/new", "Is the oven on?"] {
        hand.types(line).await;
    }
    let (result, answers, notes) = hand.leaves().await;
    result.unwrap();
    assert_eq!(answers.lines().count(), 3, "{answers}");
    let turns = reuse(&notes);
    let [first, second, third] = turns[..] else { panic!("{notes}") };
    assert!(second.1 > first.1 && second.0 >= first.1 - 1, "the second turn stands on the first: {notes}");
    assert_eq!((third.0, third.1), (first.1 - 1, first.1), "the third is the first one again: {notes}");
    assert!(notes.contains("forgotten") && notes.contains("first token after"), "{notes}");
    assert!(!notes.contains("house>"), "a script has no prompt: {notes}");
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_the_answer_alone_and_then_the_chat() {
    let house = House::start(4096).await;
    let hand = house.chat(true).await;
    let mut watch = house.scheduler.watch();
    // The answer stops in the middle: the engine waits.
    house.faults.gate(1);
    hand.types("Is the oven on?").await;
    watch.wait_for(|status| status.n_running == 1).await.unwrap();
    hand.interrupt.send(()).await.unwrap();
    while !hand.notes.text().contains("cancelled") {
        tokio::task::yield_now().await;
    }
    house.faults.open_gate();
    watch.wait_for(|status| status.n_running == 0).await.unwrap();

    hand.types("Is the oven on?").await;
    while reuse(&hand.notes.text()).is_empty() {
        tokio::task::yield_now().await;
    }
    hand.interrupt.send(()).await.unwrap();
    let (notes, answers) = (hand.notes.clone(), hand.answers.clone());
    hand.ended.await.unwrap().unwrap();
    let notes = notes.text();
    assert!(notes.contains("house>") && notes.ends_with('\n'), "{notes}");
    assert_eq!(answers.text().lines().count(), 1, "{}", answers.text());
    house.stop().await;
}

/// Before the next token, which may be a long prompt away.
#[tokio::test]
async fn a_dropped_answer_closes_its_connection_at_once() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let silent = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        let chunk = "data: {\"choices\":[{\"delta\":{\"content\":\"Well\"}}]}\n\n";
        write!(socket, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{chunk}").unwrap();
        // The request, and then the end of the connection.
        io::copy(&mut socket, &mut io::sink())
    });
    let mut answer = Door::open(&url).unwrap().ask(json!({}));
    let piece = answer.next().await;
    assert!(matches!(&piece, Piece::Text(text) if text == "Well"), "{piece:?}");
    drop(answer);
    silent.join().unwrap().expect("the client closes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_question_is_told_and_forgotten() {
    let house = House::start(768).await;
    let hand = house.chat(true).await;
    hand.types(&"x".repeat(900)).await;
    hand.types("/lamp").await;
    hand.types("/help").await;
    hand.types("Is the oven on?").await;
    hand.types("/quit").await;
    let (result, _, notes) = hand.leaves().await;
    result.unwrap();
    assert!(notes.contains("the context holds 768"), "{notes}");
    assert!(notes.contains("/lamp is no command") && notes.contains("forget what was said"), "{notes}");
    assert_eq!(reuse(&notes).len(), 1, "{notes}");

    let hand = house.chat(false).await;
    hand.types(&"x".repeat(900)).await;
    let (result, ..) = hand.leaves().await;
    assert!(matches!(result, Err(ChatError::Refused(_))), "{result:?}");
    house.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_profile_is_told_with_those_that_there_are() {
    let house = House::start(4096).await;
    let url = format!("{}/v1/", house.url);
    let open = move || {
        let door = Door::open(&url)?;
        Chat::new(door, Some("kitchen".into()), false, Format::Plain, io::sink(), io::sink())
    };
    let error = tokio::task::spawn_blocking(open).await.unwrap().err().unwrap().to_string();
    assert_eq!(error.replace(&house.url, "URL"), "there is no profile \"kitchen\" at URL; there are: house, simulated");
    house.stop().await;
}

#[test]
fn a_daemon_that_is_not_there_is_told_with_how_to_start_it() {
    // Bound and closed again: nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let error = Door::open(&url).unwrap().models().unwrap_err().to_string();
    assert_eq!(error, format!("no daemon answers at {url}: start one with `hob serve`, or name another with --url"));
    assert!(Door::open("127.0.0.1:8088").err().unwrap().to_string().contains("must begin with http://"));
}

#[test]
fn the_first_tcp_address_is_talked_to() {
    let listen = |texts: &[&str]| {
        let address = |text: &&str| match text.parse() {
            Ok(address) => Listen::Tcp(address),
            Err(_) => Listen::Unix(text.into()),
        };
        url_of(&texts.iter().map(address).collect::<Vec<_>>())
    };
    assert_eq!(listen(&["/run/hob.sock", "127.0.0.1:8088", "127.0.0.1:1"]).unwrap(), "http://127.0.0.1:8088");
    assert_eq!(listen(&["0.0.0.0:80"]).unwrap(), "http://127.0.0.1:80");
    assert_eq!(listen(&["[::]:80"]).unwrap(), "http://[::1]:80");
    assert!(matches!(listen(&["/run/hob.sock"]), Err(ChatError::SocketOnly)));
}
