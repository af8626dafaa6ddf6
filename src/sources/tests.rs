//! Real programs, files and servers on the loopback, in order and out of it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc;
use std::time::Instant;

use super::*;

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn entry(name: &str, source: Source) -> Entry {
    Entry { name: name.into(), source, refresh: Duration::from_millis(1), timeout: PATIENCE, n_bytes_max: 64 }
}

fn script(text: &str) -> Source {
    Source::Command(["/bin/sh", "-c", text].map(str::to_owned).to_vec())
}

fn read(source: Source) -> Result<String, String> {
    read_once(&entry("x", source)).map_err(|error| error.to_string())
}

/// Answers each request with the next of `answers`; gives the address and what was asked for.
fn serve(answers: Vec<String>) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (asked, asks) = mpsc::sync_channel(answers.len());
    std::thread::spawn(move || {
        for answer in answers {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(&stream).lines();
            asked.send(lines.next().unwrap().unwrap()).unwrap();
            while !lines.next().unwrap().unwrap().is_empty() {}
            (&stream).write_all(answer.as_bytes()).unwrap();
        }
    });
    (address, asks)
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn url(text: &str) -> Source {
    Source::Url(LoopbackUrl::parse(text).unwrap())
}

#[test]
fn a_program_a_file_and_an_address_give_their_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("states.txt");
    std::fs::write(&file, "\u{feff}door: open\r\nlight: off\n\n").unwrap();
    let (address, asks) = serve(vec![ok("4 °C\n")]);
    assert_eq!(read(script("echo rain; echo noise >&2")).unwrap(), "rain");
    assert_eq!(read(Source::File(file)).unwrap(), "door: open\nlight: off");
    let port = address.rsplit(':').next().unwrap();
    assert_eq!(read(url(&format!("http://localhost:{port}/a?b=1"))).unwrap(), "4 °C");
    assert_eq!(asks.recv().unwrap(), "GET /a?b=1 HTTP/1.1");
}

#[test]
fn arguments_are_passed_as_they_are_and_no_shell_reads_them() {
    let command = ["/bin/echo", "$HOME; `id`", "*"].map(str::to_owned).to_vec();
    assert_eq!(read(Source::Command(command)).unwrap(), "$HOME; `id` *");
}

#[test]
fn what_cannot_be_read_says_why() {
    let redirect =
        "HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let (address, _asks) = serve(vec![redirect.to_owned(), ok(&"x".repeat(65))]);
    let here = || url(&format!("http://{address}/"));
    let check = |source, expected: &str| assert_eq!(read(source).unwrap_err(), expected);
    check(script("exit 3"), "ended with exit status: 3");
    check(script("printf '\\377'"), "is not UTF-8");
    check(script("cat /dev/zero"), "gives more than 64 bytes; raise its `max`, or shorten it");
    check(Source::Command(vec!["/no/such".into()]), "cannot be run: No such file or directory (os error 2)");
    check(Source::File("/no/such".into()), "cannot be read: No such file or directory (os error 2)");
    check(Source::File("/".into()), "is not a file");
    check(here(), "answered with 302");
    check(here(), "gives more than 64 bytes; raise its `max`, or shorten it");
}

#[test]
fn only_addresses_of_this_machine_are_taken() {
    for (text, expected) in [
        ("http://localhost/x", Ok("http://127.0.0.1:80/x")),
        ("http://127.1.2.3:8123", Ok("http://127.1.2.3:8123/")),
        ("http://[::1]:1/?a=b", Ok("http://[::1]:1/?a=b")),
        ("http://192.168.1.4/", Err("must be on this machine")),
        ("http://localhost.example.org/", Err("must be on this machine")),
        ("http://0.0.0.0/", Err("must be on this machine")),
        ("https://127.0.0.1/", Err("must be an address like")),
        ("http://127.0.0.1@example.org/", Err("must be an address like")),
        ("127.0.0.1:8123", Err("must be an address like")),
        ("", Err("must be an address like")),
    ] {
        match (LoopbackUrl::parse(text), expected) {
            (Ok(LoopbackUrl(url)), Ok(expected)) => assert_eq!(url, expected),
            (Err(problem), Err(expected)) => assert!(problem.starts_with(expected), "{text}: {problem}"),
            (parsed, _) => panic!("{text}: {parsed:?}"),
        }
    }
}

#[test]
fn what_takes_too_long_is_killed_with_all_that_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let slow = Entry {
        // Long enough that the shell has written its child's number.
        timeout: Duration::from_secs(2),
        ..entry("slow", script(&format!("sleep 100000 & echo $! > {}; wait", file.display())))
    };
    assert_eq!(read_once(&slow).unwrap_err().to_string(), "was not done within 2s");
    let pid = std::fs::read_to_string(file).unwrap();
    let status = Path::new("/proc").join(pid.trim()).join("stat");
    // Gone, or dead and not yet collected.
    await_that(|| std::fs::read_to_string(&status).map_or(true, |text| text.contains(") Z")));
}

#[test]
fn a_source_that_fails_keeps_its_last_value_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let [weather, door] = ["weather", "door"].map(|name| folder.path().join(name));
    std::fs::write(&weather, "rain").unwrap();
    std::fs::write(&door, "open").unwrap();
    let stuck = entry("stuck", script("sleep 100000"));
    let entries =
        vec![entry("weather", Source::File(weather.clone())), stuck, entry("door", Source::File(door.clone()))];
    let sources = Sources::start(vec![("house".into(), entries)]).unwrap();
    let readings = sources.readings();
    let of = |at: usize| readings.borrow().of("house")[at].clone();
    await_that(|| &*of(0).text == "rain" && &*of(2).text == "open");
    let read_at = of(0).read_at;
    assert!(read_at.is_some() && of(0).failure.is_none());

    std::fs::remove_file(&weather).unwrap();
    await_that(|| of(0).failure.is_some());
    assert_eq!((&*of(0).text, of(0).read_at.is_some()), ("rain", true));
    std::fs::write(&door, "shut").unwrap();
    await_that(|| &*of(2).text == "shut");

    std::fs::write(&weather, "sun").unwrap();
    await_that(|| &*of(0).text == "sun" && of(0).failure.is_none());
    assert_eq!((&*of(1).text, of(1).read_at, of(1).failure), ("", None, None), "the stuck one is still being read");
    assert!(readings.borrow().of("other").is_empty());
    // Does not wait for it either.
    drop(sources);
}

fn await_that(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < PATIENCE, "it never came to that");
        std::thread::yield_now();
    }
}
