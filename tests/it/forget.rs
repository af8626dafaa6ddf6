//! What is forgotten on demand, and what a job in the background leaves: whole daemons over the simulated engine.

use std::path::Path;
use std::sync::Arc;

use assert_cmd::Command;
use hob::engine::simulated::Attention;
use hob::prompt::Profile;
use hob::request::LayoutMode;
use serde_json::{Value, json};

use crate::cold::model;
use crate::house::{Answer, House, Lower, MODEL, Reply, Setup};

fn start(state: &Path) -> House {
    let system = "Answer in one sentence, and say so when you do not know. ".repeat(12);
    let profile = Profile { name: "house".to_owned(), system, ..Profile::default() };
    let setup = Setup {
        profiles: vec![profile],
        cache: Lower { ram: 1 << 20, disk: 1 << 22 },
        state: Some(state.to_owned()),
        layout: LayoutMode::Safe,
        ..Setup::default()
    };
    let house = House::start(Arc::new(model(Attention::Full)), setup);
    house.await_warm();
    house
}

fn question(model: &str, text: &str, salt: &str) -> Value {
    let messages = json!([{ "role": "user", "content": text.repeat(20) }]);
    json!({ "model": model, "messages": messages, "temperature": 0, "max_tokens": 4, "cache_salt": salt })
}

fn n_files(state: &Path) -> usize {
    let files = state.join("kv").read_dir().unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|ending| ending == "kv")).count()
}

/// A house in which one client talked twice under a salt and has a pin, beside a public one.
fn lived_in(state: &Path) -> House {
    let house = start(state);
    let system = |of: &str| {
        let messages = json!([{ "role": "system", "content": format!("You are for {of}. ").repeat(20) },
            { "role": "user", "content": "Hm?" }]);
        json!({ "model": MODEL, "messages": messages })
    };
    for (name, is_public) in [("mine", false), ("ours", true)] {
        let body = json!({ "name": name, "public": is_public, "request": system(name) });
        assert_eq!(house.call("POST", "/hob/v1/pins", &body.to_string()).head.status, 200);
    }
    house.await_warm();
    for _ in 0..2 {
        house.ask(&question("house", "Who rang the bell? ", "a"));
    }
    house.await_status(|status| status.lower.n_segments >= 4);
    house
}

fn names(house: &House) -> Vec<String> {
    house.status().pins.into_iter().map(|pin| pin.name).collect()
}

fn n_cached(reply: &Reply) -> usize {
    Answer::of(reply).usage.n_cached
}

#[test]
fn a_client_is_forgotten_with_all_its_salts_and_pins_and_nobody_else() {
    let state = tempfile::tempdir().unwrap();
    let house = lived_in(state.path());
    let asked = question("house", "Who rang the bell? ", "a");
    let n_warm = n_cached(&house.ask(&asked));
    let forget = |client: &str| {
        house.await_rest();
        house.call("POST", "/hob/v1/forget", &json!({ "client": client }).to_string()).json()
    };
    let nothing = forget("192.168.0.7");
    assert_eq!((&nothing["cells"], &nothing["segments"], &nothing["pins"]), (&json!(0), &json!(0), &json!(0)));
    assert_eq!(n_cached(&house.ask(&asked)), n_warm);

    let gone = forget("127.0.0.1");
    assert!(gone["cells"].as_u64() > Some(200) && gone["segments"].as_u64() >= Some(1), "{gone}");
    assert_eq!(gone["pins"], 1);
    assert_eq!(names(&house), ["house", "ours"]);
    let cold = n_cached(&house.ask(&asked));
    assert!(n_warm - cold > 300 && cold > 600, "the house's own stays: {cold} of {n_warm}");
    forget("all");
    assert_eq!(names(&house), ["house", "ours"]);
    house.await_rest();
    house.close();
    let text = std::fs::read_to_string(state.path().join("pins")).unwrap();
    assert!(text.contains("for ours") && !text.contains("for mine"));
    let house = start(state.path());
    assert!(n_cached(&house.ask(&asked)) <= cold, "no file is left");
    house.close();
}

#[test]
fn without_a_daemon_the_files_are_forgotten() {
    let state = tempfile::tempdir().unwrap();
    let house = lived_in(state.path());
    house.await_rest();
    house.close();
    let n_before = n_files(state.path());
    let config = state.path().join("asked.toml");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let folder = state.path().join("kv");
    let text = format!("[server]\nlisten = [\"127.0.0.1:{port}\"]\n[cache]\ndir = {folder:?}");
    std::fs::write(&config, text).unwrap();
    let forget = |client: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hob"));
        command.args(["forget", client, "--config"]).arg(&config).env("STATE_DIRECTORY", state.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(forget("192.168.0.7"), "192.168.0.7: no daemon runs; removed 0 files\n");
    assert_eq!(n_files(state.path()), n_before);
    forget("all");
    assert!(n_files(state.path()) < n_before);
    let house = start(state.path());
    assert_eq!(names(&house), ["house", "ours"]);
    house.close();
}

#[test]
fn a_job_in_the_background_pushes_no_conversation_out() {
    let setup = Setup { context: 2400, cache: Lower { ram: 1 << 20, disk: 0 }, ..Setup::default() };
    let house = House::start(Arc::new(model(Attention::Full)), setup);
    let talk = question(MODEL, "Who rang the bell, and when was it? ", "a");
    let n_prompt = Answer::of(&house.ask(&talk)).usage.n_prompt;
    house.await_status(|status| status.lower.n_segments == 1);
    for i in 0..6 {
        let job = question(MODEL, &format!("Title {i} of what was said so far: "), "a").to_string();
        let reply = house.call_with("POST", "/v1/chat/completions", "x-hob-priority: background", &job);
        assert_eq!(reply.head.status, 200, "{reply:?}");
        house.await_rest();
    }
    assert_eq!(house.status().lower.n_segments, 1, "what it leaves is not saved");
    let reply = house.ask(&talk);
    let cache = reply.head.header("x-hob-cache").unwrap();
    assert!(cache.contains(&format!("reused={}; of={n_prompt}; restored=0", n_prompt - 1)), "{cache}");
    let wrong = house.call_with("POST", "/v1/chat/completions", "x-hob-priority: high", &talk.to_string());
    assert_eq!((wrong.head.status, &wrong.json()["error"]["param"]), (400, &json!("x-hob-priority")));
    house.close();
}
