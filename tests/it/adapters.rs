//! Whole daemons with LoRA adapters, over the simulated engine, whose contents depend on the set in force: whose pins they are, what
//! a request may name, and what of them is of use after a restart.

use std::path::Path;
use std::sync::Arc;

use hob::engine::simulated::{Attention, Faults};
use hob::prompt::Profile;
use hob::request::{AdapterSet, Message, MissCause, Role, Scale};
use serde_json::{Value, json};

use crate::cold::{cold_under, model, plan, planner, wire};
use crate::house::{Answer, House, Lower, Reply, Setup};

const CONTEXT: usize = 4_800;

fn butler() -> AdapterSet {
    AdapterSet::NONE.with(0, Scale::ONE)
}

/// Two assistants of the same words, the second under an adapter.
fn profiles() -> Vec<Profile> {
    let system = "Answer in one sentence, and say so when you do not know. ".repeat(12);
    let profile = |name: &str, adapters| Profile {
        name: name.to_owned(),
        system: system.clone(),
        adapters,
        ..Profile::default()
    };
    vec![profile("house", None), profile("butler", Some(butler()))]
}

fn start(state: &Path, adapters: &[(&'static str, &'static str)]) -> (House, Faults) {
    let model = model(Attention::Full).adapters(adapters.len());
    let faults = model.faults();
    let setup = Setup {
        context: CONTEXT,
        profiles: profiles(),
        cache: Lower { ram: 1 << 20, disk: 1 << 22 },
        adapters: adapters.to_vec(),
        state: Some(state.to_owned()),
        ..Setup::default()
    };
    let house = House::start(Arc::new(model), setup);
    house.await_warm();
    (house, faults)
}

const ADAPTERS: [(&str, &str); 2] = [("butler", "one file"), ("pirate", "another")];

fn ask(house: &House, model: &str, lora: &Value, messages: &[Message]) -> Reply {
    let body = json!({ "model": model, "messages": wire(messages), "temperature": 0, "max_tokens": 24, "lora": lora });
    house.ask(&body)
}

/// Asks; the answer must be the cold one under `adapters`. How much was cached, and what the header says.
fn checked(
    house: &House,
    model_name: &str,
    lora: Value,
    adapters: AdapterSet,
    messages: &mut Vec<Message>,
) -> (usize, String) {
    let reply = ask(house, model_name, &lora, messages);
    let cache = reply.head.header("x-hob-cache").expect("it was admitted").to_owned();
    let answer = Answer::of(&reply);
    let prompt = plan(&mut planner(&model(Attention::Full), profiles()), model_name, messages);
    assert_eq!(answer.text, cold_under(adapters, Attention::Full, &prompt, 24, CONTEXT).0, "{adapters:?}: {cache}");
    messages.push(Message::text(Role::Assistant, answer.text));
    (answer.usage.n_cached, cache)
}

fn question(text: &str) -> Vec<Message> {
    vec![Message::text(Role::User, text)]
}

#[test]
fn a_profile_is_kept_warm_under_its_own_adapters_and_serves_who_names_the_same() {
    let state = tempfile::tempdir().unwrap();
    let (house, _) = start(state.path(), &ADAPTERS);
    let status = house.status();
    let n_pin = status.pins[0].n_tokens;
    assert_eq!((status.pins[1].n_tokens, status.cells.pinned), (n_pin, 2 * n_pin), "equal tokens, held for each set");
    let half = AdapterSet::NONE.with(0, Scale::new(0.5).unwrap());
    let both = butler().with(1, Scale::ONE);
    for (number, (name, lora, adapters, n_cached)) in [
        ("house", Value::Null, AdapterSet::NONE, n_pin),
        ("butler", Value::Null, butler(), n_pin),
        ("house", json!([{ "id": 0, "scale": 1.0 }]), butler(), n_pin),
        ("butler", json!([]), AdapterSet::NONE, n_pin),
        ("butler", json!([{ "name": "butler", "scale": 0.5 }]), half, 0),
        ("butler", json!([{ "id": 1 }, { "id": 0 }]), both, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let (cached, cache) =
            checked(&house, name, lora.clone(), adapters, &mut question(&format!("{number} lamps, where?")));
        // Behind a pin the template opens the turn, which is alike in all of them.
        assert!((n_cached..n_cached + 10).contains(&cached), "{name}, {lora}: {cache}");
        assert_eq!(cache.contains("cause=adapter;"), n_cached == 0, "{name}, {lora}: {cache}");
    }
    assert_eq!(house.get("/hob/v1/cache").json()["adapter_switches"], house.await_rest().n_adapter_switches);
    house.close();
}

#[test]
fn a_conversation_that_changes_its_adapters_computes_its_history_anew_and_finds_the_old_one_when_it_comes_back() {
    let state = tempfile::tempdir().unwrap();
    let (house, _) = start(state.path(), &ADAPTERS);
    let mut messages = question("Which lamps are on, and which doors are open?");
    checked(&house, "house", Value::Null, AdapterSet::NONE, &mut messages);
    let bare = messages.clone();
    messages.push(Message::text(Role::User, "And now?"));
    let n_pin = house.status().pins[0].n_tokens;
    let (n_cached, cache) = checked(&house, "house", json!([{ "id": 0 }]), butler(), &mut messages);
    assert!(n_cached == n_pin && cache.contains("cause=adapter;"), "{cache}");
    messages = bare;
    messages.push(Message::text(Role::User, "And then?"));
    let (n_cached, cache) = checked(&house, "house", Value::Null, AdapterSet::NONE, &mut messages);
    assert!(n_cached > n_pin && cache.contains("cause=appended;"), "{cache}");
    house.await_rest();
    house.close();
}

#[test]
fn what_a_request_names_that_is_not_here_is_a_400_with_its_place() {
    let state = tempfile::tempdir().unwrap();
    let (house, faults) = start(state.path(), &ADAPTERS);
    let n_computed = faults.n_computed();
    let known = "there are: 0 (butler), 1 (pirate)";
    for (lora, message) in [
        (json!([{ "id": 2 }]), format!("lora[0]: an adapter 2 is not here; {known}")),
        (json!([{ "id": 1 }, { "name": "cook" }]), format!("lora[1]: an adapter \"cook\" is not here; {known}")),
        (json!([{ "id": 0, "scale": 1e30 }]), format!("lora[0].scale: {}: must be -10 to 10", 1e30)),
    ] {
        let reply = ask(&house, "house", &lora, &question("Hm?"));
        assert_eq!((reply.head.status, &reply.json()["error"]["message"]), (400, &json!(message)));
    }
    let pin = json!({ "name": "mine", "request": { "model": "house", "lora": [{ "id": 0 }],
        "messages": [{ "role": "system", "content": "Be kind." }, { "role": "user", "content": "Hm?" }] } });
    let reply = house.call("POST", "/hob/v1/pins", &pin.to_string());
    assert_eq!(reply.head.status, 400);
    assert!(reply.json()["error"]["message"].as_str().unwrap().starts_with("request.lora: "), "{}", reply.json());
    assert_eq!(faults.n_computed(), n_computed);
    house.close();
}

#[test]
fn after_a_restart_each_set_finds_its_own_and_another_file_in_an_adapters_place_is_a_named_miss() {
    let state = tempfile::tempdir().unwrap();
    let (house, _) = start(state.path(), &ADAPTERS);
    let long = "What did we plan for Friday, and who comes? ".repeat(6);
    let (mut bare, mut under) = (question(&long), question(&long));
    for (name, adapters, messages) in [("house", AdapterSet::NONE, &mut bare), ("butler", butler(), &mut under)] {
        checked(&house, name, Value::Null, adapters, messages);
        messages.push(Message::text(Role::User, "And on Saturday?"));
        checked(&house, name, Value::Null, adapters, messages);
    }
    house.await_rest();
    house.close();

    let (house, faults) = start(state.path(), &ADAPTERS);
    assert_eq!(faults.n_computed(), 0, "both pins came from their files");
    for (name, adapters, messages) in [("house", AdapterSet::NONE, &mut bare), ("butler", butler(), &mut under)] {
        messages.push(Message::text(Role::User, "Thanks!"));
        let (n_cached, cache) = checked(&house, name, Value::Null, adapters, messages);
        let is_restored = n_cached > house.status().pins[0].n_tokens && !cache.contains("restored=0");
        assert!(is_restored && cache.contains("cause=appended;"), "{name}: {cache}");
    }
    house.await_rest();
    house.close();

    // The second adapter has no part in any of it.
    let others = [("butler", "trained anew"), ADAPTERS[1]];
    let (house, faults) = start(state.path(), &others);
    let n_pin = house.status().pins[0].n_tokens;
    assert_eq!(faults.n_computed(), n_pin, "the adapter's pin was computed, the other was not");
    let fault = |name: &str| house.status().pins.iter().find(|pin| pin.name == name).unwrap().file_fault;
    assert_eq!((fault("house"), fault("butler")), (None, Some(MissCause::Adapter)));
    for (name, adapters, messages, is_held) in
        [("house", AdapterSet::NONE, &mut bare, true), ("butler", butler(), &mut under, false)]
    {
        messages.push(Message::text(Role::User, "One more?"));
        let (n_cached, cache) = checked(&house, name, Value::Null, adapters, messages);
        assert_eq!((n_cached > n_pin, cache.contains("cause=adapter;")), (is_held, !is_held), "{name}: {cache}");
    }
    house.await_rest();
    house.close();
}
