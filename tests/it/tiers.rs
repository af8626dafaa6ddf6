//! Whole daemons over the simulated engine that stop and start again on one state folder: what lies on disk is used if it is
//! what was written, by this model, under these settings; else it is computed, and its file goes.

mod trouble;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use hob::engine::KvType;
use hob::engine::simulated::{Attention, ByteVocab, ChatMl, Dated, Faults, SimulatedModel};
use hob::prompt::{Moment, Profile};
use hob::request::{LayoutMode, Message, MissCause, Role};
use serde_json::json;

use crate::cold::{cold, model, plan, planner, wire};
use crate::house::{Answer, House, Lower, Setup};

const CONTEXT: usize = 2400;

fn profiles() -> Vec<Profile> {
    let system = "Answer in one sentence, and say so when you do not know. ".repeat(12);
    vec![Profile { name: "house".to_owned(), system, ..Profile::default() }]
}

/// A daemon on `state`; the handle tells what it computes.
fn start(state: &Path) -> (House, Faults) {
    start_as(state, KvType::F16, "weights")
}

fn start_as(state: &Path, kv_type: KvType, weights: &'static str) -> (House, Faults) {
    let model = model(Attention::Full);
    let faults = model.faults();
    let cache = Lower { ram: 1 << 20, disk: 1 << 22 };
    let setup = Setup {
        context: CONTEXT,
        profiles: profiles(),
        cache,
        kv_type,
        weights,
        state: Some(state.to_owned()),
        ..Setup::default()
    };
    let house = House::start(Arc::new(model), setup);
    house.await_warm();
    (house, faults)
}

/// A conversation; each turn's answer must be the cold one.
#[derive(Default)]
struct Talk {
    messages: Vec<Message>,
}

struct Told {
    n_prompt: usize,
    n_cached: usize,
    cache: String,
}

impl Talk {
    fn ask(&mut self, house: &House, question: &str) -> Told {
        self.messages.push(Message::text(Role::User, question));
        let body = json!({ "model": "house", "messages": wire(&self.messages), "temperature": 0, "max_tokens": 24 });
        let reply = house.ask(&body);
        let cache = reply.head.header("x-hob-cache").expect("it was admitted").to_owned();
        let answer = Answer::of(&reply);
        let prompt = plan(&mut planner(&model(Attention::Full), profiles()), "house", &self.messages);
        assert_eq!(answer.text, cold(Attention::Full, &prompt, 24, CONTEXT).0, "{cache}");
        self.messages.push(Message::text(Role::Assistant, answer.text));
        Told { n_prompt: answer.usage.n_prompt, n_cached: answer.usage.n_cached, cache }
    }
}

fn files(state: &Path) -> Vec<PathBuf> {
    let entries = state.join("kv").read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|ending| ending == "kv")).collect();
    files.sort();
    files
}

/// A state folder as a house leaves it after two turns of a conversation.
fn lived_in() -> (tempfile::TempDir, Talk) {
    let state = tempfile::tempdir().unwrap();
    let (house, _) = start(state.path());
    let mut talk = Talk::default();
    talk.ask(&house, &"What did we plan for Friday, and who comes? ".repeat(6));
    talk.ask(&house, "And on Saturday?");
    house.close();
    assert!(files(state.path()).len() >= 2, "{:?}", files(state.path()));
    (state, talk)
}

#[test]
fn after_a_restart_pin_and_conversation_are_there_without_being_computed() {
    let (state, mut talk) = lived_in();
    let (house, faults) = start(state.path());
    assert_eq!(faults.n_computed(), 0, "the pin came from its file");
    let told = talk.ask(&house, "Thanks!");
    // The last turn, fewer tokens than are worth a file, and the new one.
    assert!(told.n_prompt - told.n_cached <= 110, "{}", told.cache);
    assert!(told.cache.contains("cause=appended"), "{}", told.cache);
    let other = Talk::default().ask(&house, "Who are you?");
    assert!(100 * other.n_cached >= 95 * (other.n_prompt - 20), "{}", other.cache);
    house.await_rest();
    house.close();
}

#[test]
fn truncated_empty_and_random_files_are_a_named_miss_and_go() {
    type Spoil = fn(&Path);
    let spoils: [(&str, Spoil); 3] = [
        ("half", |path| {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }),
        ("empty", |path| std::fs::write(path, "").unwrap()),
        ("random", |path| {
            let n_bytes = path.metadata().unwrap().len();
            let mut rng = fastrand::Rng::with_seed(n_bytes);
            std::fs::write(path, (0..n_bytes).map(|_| rng.u8(..)).collect::<Vec<u8>>()).unwrap();
        }),
    ];
    for (name, spoil) in spoils {
        let (state, mut talk) = lived_in();
        let spoiled = files(state.path());
        spoiled.iter().for_each(|path| spoil(path));
        let (house, faults) = start(state.path());
        assert!(faults.n_computed() > 0, "{name}: the pin was computed");
        house.await_status(|status| status.pins[0].file_fault == Some(MissCause::RestoreFailed));
        assert_eq!(house.get("/hob/v1/pins").json()["pins"][0]["file_fault"], "restore_failed");
        for question in ["Thanks!", "One more?", "And now?", "So?", "Well?"] {
            talk.ask(&house, question);
        }
        house.await_rest();
        house.close();
        for path in spoiled {
            // What was computed anew may lie there again, whole.
            assert!(path.metadata().map_or(true, |metadata| metadata.len() > 0), "{name}: {path:?} is still there");
        }
        let (house, faults) = start(state.path());
        assert_eq!(faults.n_computed(), 0, "{name}: and whole files are there now");
        assert_eq!(house.status().pins[0].file_fault, None);
        house.close();
    }
}

/// Acceptance case 15.
#[test]
fn what_another_model_or_another_kv_type_computed_is_a_miss_that_says_so_and_goes() {
    for (kv_type, weights, cause) in [(KvType::Q8_0, "weights", "kv_type"), (KvType::F16, "others", "model")] {
        let (state, mut talk) = lived_in();
        let before = files(state.path());
        let (house, faults) = start_as(state.path(), kv_type, weights);
        assert!(faults.n_computed() > 0, "{cause}: the pin was computed");
        assert_eq!(house.status().pins[0].file_fault.map(MissCause::name), Some(cause));
        let told = talk.ask(&house, "Thanks!");
        assert!(told.cache.contains(&format!("cause={cause};")), "{}", told.cache);
        let n_pin = house.status().pins[0].n_tokens;
        assert!((n_pin..n_pin + 20).contains(&told.n_cached), "{n_pin}: {}", told.cache);
        // What was computed now is no miss any more.
        assert!(talk.ask(&house, "Bye!").cache.contains("cause=appended"));
        house.await_rest();
        house.close();
        let (house, faults) = start_as(state.path(), kv_type, weights);
        assert_eq!(faults.n_computed(), 0, "{cause}: files are there again, of {before:?}");
        house.close();
    }
}

#[test]
fn a_file_that_was_changed_behind_its_header_is_a_named_miss() {
    let (state, mut talk) = lived_in();
    for path in files(state.path()) {
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.len() - 100;
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    let (house, faults) = start(state.path());
    assert!(faults.n_computed() > 0, "the pin was computed");
    assert_eq!(house.status().pins[0].file_fault, Some(MissCause::RestoreFailed));
    let told = talk.ask(&house, "Thanks!");
    assert!(told.cache.contains("cause=restore_failed"), "{}", told.cache);
    house.await_rest();
    house.close();
}

#[test]
fn files_deleted_under_the_daemon_are_computed() {
    let (state, mut talk) = lived_in();
    let (house, _) = start(state.path());
    for path in files(state.path()) {
        std::fs::remove_file(path).unwrap();
    }
    let told = talk.ask(&house, "Thanks!");
    assert!(told.n_cached > 0 && told.cache.contains("cause=restore_failed"), "{}", told.cache);
    house.await_rest();
    house.close();
}

/// A template that prints the date, in `optimise`.
#[test]
fn a_restart_on_another_day_finds_its_pins_warm_and_renews_them_at_midnight() {
    const DAY_S: i64 = 24 * 60 * 60;
    let state = tempfile::tempdir().unwrap();
    let clock = Arc::new(AtomicI64::new(20_787 * DAY_S + 72_000));
    let start = || {
        let template = Dated(ChatMl { takes_tools: true });
        let model = SimulatedModel::with(Arc::new(ByteVocab::new()), Arc::new(template));
        let faults = model.faults();
        let setup = Setup {
            context: CONTEXT,
            profiles: profiles(),
            layout: LayoutMode::Optimise,
            cache: Lower { ram: 1 << 20, disk: 1 << 22 },
            state: Some(state.path().to_owned()),
            ..Setup::default()
        };
        let wall = clock.clone();
        let house = House::start_at(Arc::new(model), setup, move || Moment::utc(wall.load(Ordering::SeqCst)));
        house.await_warm();
        (house, faults)
    };
    let ask = |house: &House| {
        let body = json!({ "model": "house", "messages": [{ "role": "user", "content": "Hm?" }], "max_tokens": 1 });
        Answer::of(&house.ask(&body)).usage
    };
    let (house, _) = start();
    house.close();

    clock.fetch_add(3 * DAY_S, Ordering::SeqCst);
    let (house, faults) = start();
    assert_eq!(faults.n_computed(), 0, "the pin came from its file");
    let n_pin = house.status().pins[0].n_tokens;
    assert!(ask(&house).n_cached >= n_pin);

    clock.fetch_add(DAY_S, Ordering::SeqCst);
    let n_before = faults.n_computed();
    ask(&house);
    // What begins with the day is computed anew.
    house.await_status(|status| status.pins[0].is_warm && faults.n_computed() > n_before + n_pin - 20);
    assert!(ask(&house).n_cached >= n_pin);
    house.await_rest();
    house.close();
    let (house, faults) = start();
    assert_eq!(faults.n_computed(), 0, "the new one has its file");
    house.close();
}
