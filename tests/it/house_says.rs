//! Profiles in a whole daemon over the simulated engine: what the house says of itself by a program, a file and an address,
//! and what an edited document costs. Tokens are bytes.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hob::config::ProfileFiles;
use hob::engine::simulated::Attention;
use hob::prompt::{Document, Profile};
use hob::sources::{Entry, LoopbackUrl, Source};
use serde_json::{Value, json};

use crate::cold::model;
use crate::house::{Answer, House, PATIENCE, Setup};

const POLICY: &str = "You are the voice of this house and answer briefly.";

fn profile(name: &str, documents: &[(&str, &str)]) -> Profile {
    let document = |&(title, text): &(&str, &str)| Document { title: title.to_owned(), text: text.to_owned() };
    Profile {
        name: name.to_owned(),
        system: format!("{POLICY} You are {name}."),
        documents: documents.iter().map(document).collect(),
        max_tokens: Some(8),
        ..Profile::default()
    }
}

fn files(name: &str, live: Vec<Entry>) -> ProfileFiles {
    ProfileFiles { name: name.to_owned(), live, ..ProfileFiles::default() }
}

fn entry(name: &str, source: Source) -> Entry {
    // Read all the time, so that no test waits.
    Entry { name: name.to_owned(), source, refresh: Duration::from_millis(5), timeout: PATIENCE, n_bytes_max: 4096 }
}

/// Answers every request with what stands in the file at `path`.
fn serve(path: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/states", listener.local_addr().unwrap());
    let path = path.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { break };
            let body = std::fs::read_to_string(&path).unwrap_or_default();
            for line in BufReader::new(&stream).lines() {
                if line.is_ok_and(|line| line.is_empty()) {
                    break;
                }
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            // A reader that went away has what it wanted.
            let _ = (&stream).write_all((head + &body).as_bytes());
        }
    });
    url
}

fn ask(house: &House, model: &str, turns: &[(&str, &str)]) -> Answer {
    let messages: Vec<Value> = turns.iter().map(|(role, text)| json!({ "role": role, "content": text })).collect();
    let reply = house.ask(&json!({ "model": model, "messages": messages, "temperature": 0, "max_tokens": 8 }));
    assert_eq!(reply.head.status, 200, "{reply:?}");
    Answer::of(&reply)
}

#[test]
fn a_program_a_file_and_an_address_stand_before_the_question_and_a_conversation_only_grows() {
    let folder = tempfile::tempdir().unwrap();
    let [file, served] = ["door", "served"].map(|name| folder.path().join(name));
    std::fs::write(&file, "open\n").unwrap();
    std::fs::write(&served, "light: off\nheating: on\n").unwrap();
    let live = vec![
        entry("weather", Source::Command(vec!["/bin/echo".into(), "rain".into()])),
        entry("door", Source::File(file.clone())),
        entry("states", Source::Url(LoopbackUrl::parse(&serve(&served)).unwrap())),
        entry("broken", Source::File(folder.path().join("missing"))),
    ];
    let setup = Setup {
        profiles: vec![profile("house", &[]), profile("kids_", &[])],
        live: vec![files("house", live)],
        ..Setup::default()
    };
    let house = House::start(Arc::new(model(Attention::Full)), setup);
    house.await_warm();
    // The other profile's name is as long, and nothing stands before its questions.
    let n_bare = ask(&house, "kids_", &[("user", "Anything new?")]).usage.n_prompt;
    let marker = "[As of Monday 2026-11-30 20:06 UTC:]\n".len();
    let block = "weather: rain\ndoor: open\nstates:\nlight: off\nheating: on\n\n".len();
    let n_more = |house: &House| ask(house, "house", &[("user", "Anything new?")]).usage.n_prompt - n_bare;
    // Weekdays and zones differ in length; the values do not.
    let begun = Instant::now();
    while !(block + marker - 20..block + marker + 20).contains(&n_more(&house)) {
        assert!(begun.elapsed() < PATIENCE, "{}", n_more(&house));
    }

    let first = ask(&house, "house", &[("user", "Is it warm?")]);
    std::fs::write(&file, "shut\n").unwrap();
    let turns = [("user", "Is it warm?"), ("assistant", first.text.as_str()), ("user", "And now?")];
    let begun = Instant::now();
    let second = loop {
        let second = ask(&house, "house", &turns);
        let first_turn = first.usage.n_prompt + first.usage.n_generated;
        // Everything that was sent before is reused, its block included; the new one holds the door alone.
        assert!(second.usage.n_cached + 1 >= first_turn, "{second:?} after {first:?}");
        if second.usage.n_prompt - first_turn > "door: shut".len() + marker {
            break second;
        }
        assert!(begun.elapsed() < PATIENCE, "{second:?}");
    };
    let n_turn = second.usage.n_prompt - first.usage.n_prompt - first.usage.n_generated;
    assert!(n_turn < block + marker, "what did not change is not said again: {second:?}");

    let ready = house.get("/ready");
    assert_eq!(ready.head.status, 200);
    let failing = &ready.json()["live"];
    assert_eq!((&failing[0]["profile"], &failing[0]["name"]), (&json!("house"), &json!("broken")), "{failing}");
    assert_eq!(failing.as_array().unwrap().len(), 1);
    house.close();
}

/// Tokens computed to warm two profiles that differ in their calendar alone, in the same daemon and with the state in `folder`.
fn warm(folder: &Path, calendars: [&str; 2]) -> usize {
    let handbook = "The key is under the mat. ".repeat(100);
    let profile_with = |name: &str, calendar| Profile {
        name: name.to_owned(),
        ..profile("house", &[("calendar", calendar), ("handbook", &handbook)])
    };
    let [first, second] = calendars;
    let profiles = vec![profile_with("first", first), profile_with("second", second)];
    let model = model(Attention::Full);
    let faults = model.faults();
    let setup = Setup { profiles, context: 16_384, state: Some(folder.to_owned()), ..Setup::default() };
    let house = House::start(Arc::new(model), setup);
    house.await_warm();
    house.close();
    faults.n_computed()
}

#[test]
fn a_document_that_was_edited_once_stands_last_and_its_next_edit_costs_only_itself() {
    let [monday, tuesday, friday] = ["Monday", "Tuesday", "Friday"].map(|day| format!("Paper bin: {day}."));
    // As configured, the calendar stands first: an edit costs the handbook, too.
    let [fresh, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let n_one = warm(folder.path(), [&monday, &monday]);
    let n_configured = warm(fresh.path(), [&tuesday, &friday]) - n_one;
    assert!(n_configured > 2600, "{n_configured}");
    // The start that finds the edit puts it behind, and the next edit finds the handbook in front of it.
    let n_second = warm(folder.path(), [&tuesday, &tuesday]);
    let n_ordered = warm(folder.path(), [&tuesday, &friday]) - n_second;
    assert!(n_ordered < 100, "{n_ordered}");
}
