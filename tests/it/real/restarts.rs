//! Whole daemons over the demo model that stop and start again on one state folder: acceptance cases 1, 2, 13 and 15, and what is
//! said afterwards is what a daemon says that was never stopped.

use std::path::{Path, PathBuf};

use hob::engine::KvType;
use hob::prompt::Profile;
use serde_json::{Value, json};

use super::house::smollm2;
use super::process::{Process, configure, kv_files};
use crate::house::{House, Lower, Setup};

const QUESTION: &str = "When is the paper bin collected?";

fn profiles() -> Vec<Profile> {
    let room = |n: usize| format!("Room {n} is {} degrees warm and its lamp is off. ", (n * 7 + 3) % 31);
    let system = (0..20).map(room).collect();
    vec![Profile { name: "house".to_owned(), system, ..Profile::default() }]
}

fn start(state: &Path, kv_type: KvType, profiles: Vec<Profile>) -> House {
    let setup = Setup {
        model_name: "smol",
        context: 1024,
        profiles,
        cache: Lower { ram: 64 << 20, disk: 256 << 20 },
        kv_type,
        state: Some(state.to_owned()),
        ..Setup::default()
    };
    let house = House::start(smollm2().clone(), setup);
    house.await_warm();
    house
}

struct Told {
    text: String,
    n_prompt: u64,
    n_cached: u64,
    cache: String,
}

fn ask(house: &House, model: &str, messages: &[Value]) -> Told {
    let reply = house.ask(&json!({"model": model, "messages": messages, "temperature": 0, "max_tokens": 16}));
    let cache = reply.head.header("x-hob-cache").expect("it was admitted").to_owned();
    let answer = reply.json();
    let usage = &answer["usage"];
    Told {
        text: answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned(),
        n_prompt: usage["prompt_tokens"].as_u64().unwrap(),
        n_cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
        cache,
    }
}

fn user(text: impl Into<String>) -> Value {
    json!({"role": "user", "content": text.into()})
}

fn files(state: &Path) -> Vec<PathBuf> {
    let entries = state.join("kv").read_dir().unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "kv")).collect()
}

/// Cases 1 and 13: the pin comes from its file, or is computed where its file is damaged, and no answer shows which.
#[test]
fn a_restart_is_seen_in_no_answer_whether_the_file_of_the_pin_is_whole_or_not() {
    let state = tempfile::tempdir().unwrap();
    let house = start(state.path(), KvType::F16, profiles());
    let n_pin = house.status().pins[0].n_tokens as u64;
    let first = ask(&house, "house", &[user(QUESTION)]);
    house.close();
    for is_damaged in [false, true] {
        let written = files(state.path());
        assert!(!written.is_empty());
        for path in written.iter().filter(|_| is_damaged) {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }
        let house = start(state.path(), KvType::F16, profiles());
        // Nothing was computed before the first question exactly if all came from disk.
        assert_eq!(house.status().prefill_tokens_per_second > 0, is_damaged);
        let told = ask(&house, "house", &[user(QUESTION)]);
        assert_eq!((&told.text, told.n_prompt, told.n_cached), (&first.text, first.n_prompt, first.n_cached));
        assert!(told.n_cached >= n_pin && told.n_prompt - told.n_cached < 40, "{}", told.cache);
        house.await_rest();
        house.close();
    }
}

/// Case 2, with the binary itself: a warm pin is on disk, and SIGKILL takes nothing of it.
#[test]
fn a_household_is_there_after_sigkill() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("house.md"), &profiles()[0].system).unwrap();
    configure(folder.path(), "context = 1024\n[[profile]]\nname = \"house\"\nsystem = \"house.md\"");
    let ask = |process: &Process| {
        let messages = [user(QUESTION)];
        process.ask(json!({ "model": "house", "messages": messages, "temperature": 0, "max_tokens": 16 }))
    };
    let process = Process::start(folder.path());
    let n_pin = process.await_warm();
    let before = ask(&process);
    // A file can be seen only when it is whole and synced.
    process.await_that(|_| (!kv_files(folder.path()).is_empty()).then_some(()));
    process.kill();

    let process = Process::start(folder.path());
    assert_eq!(process.await_warm(), n_pin);
    let speed = &process.get("/hob/v1/cache")["prefill_tokens_per_second"];
    assert_eq!(speed, 0, "nothing was computed before the first question");
    let after = ask(&process);
    assert_eq!((after.text, after.usage), (before.text, before.usage));
    let (n_cached, n_prompt) = (after.usage.n_cached, after.usage.n_prompt);
    assert!(n_cached >= n_pin && n_prompt - n_cached < 40, "{n_cached} of {n_prompt}, the pin has {n_pin}");
    process.stop();
}

/// Cases 13 and 15, of a client's own prompt, which nobody computes before it is asked for.
#[test]
fn a_conversation_whose_files_are_of_no_use_is_computed_and_the_cause_says_why() {
    for (kv_type, cause) in [(KvType::F16, "restore_failed"), (KvType::Q8_0, "kv_type")] {
        let state = tempfile::tempdir().unwrap();
        let house = start(state.path(), KvType::F16, Vec::new());
        let mut messages = vec![user("What did we plan for Friday, and who comes? ".repeat(8))];
        for question in ["And on Saturday?", "And on Sunday?"] {
            let told = ask(&house, "smol", &messages);
            messages.push(json!({"role": "assistant", "content": told.text}));
            messages.push(user(question));
        }
        house.close();
        let written = files(state.path());
        assert!(!written.is_empty(), "it came back once, so it is worth a file");
        for path in written.iter().filter(|_| kv_type == KvType::F16) {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        }
        let fresh = tempfile::tempdir().unwrap();
        let house = start(fresh.path(), kv_type, Vec::new());
        let expected = ask(&house, "smol", &messages);
        assert!(expected.cache.contains("cause=cold;"), "{}", expected.cache);
        house.close();
        let house = start(state.path(), kv_type, Vec::new());
        let told = ask(&house, "smol", &messages);
        assert_eq!(told.n_cached, 0, "{}", told.cache);
        assert!(told.cache.contains(&format!("cause={cause};")), "{}", told.cache);
        assert_eq!((told.text, told.n_prompt), (expected.text, expected.n_prompt));
        assert!(written.iter().all(|path| !path.exists()), "files of no use are gone");
        house.await_rest();
        house.close();
    }
}
