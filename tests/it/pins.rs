//! Pins that clients ask for, over HTTP and by the command, over the simulated engine.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use assert_cmd::Command;
use hob::engine::simulated::{Attention, Faults};
use hob::prompt::Profile;
use serde_json::{Value, json};

use crate::cold::model;
use crate::house::{Answer, House, Lower, MODEL, Setup};

const CONTEXT: usize = 4096;

fn rules(of: &str) -> String {
    format!("You answer for {of}. ").repeat(40)
}

fn start(state: &Path, context: usize) -> (House, Faults) {
    let model = model(Attention::Full);
    let faults = model.faults();
    let profile = Profile { name: "house".to_owned(), system: rules("the house"), ..Profile::default() };
    let setup = Setup {
        context,
        profiles: vec![profile],
        cache: Lower { ram: 1 << 20, disk: 1 << 22 },
        state: Some(state.to_owned()),
        ..Setup::default()
    };
    let house = House::start(Arc::new(model), setup);
    house.await_warm();
    (house, faults)
}

fn chat(system: &str, question: &str, salt: Option<&str>) -> Value {
    let messages = json!([{ "role": "system", "content": system }, { "role": "user", "content": question }]);
    let mut body = json!({ "model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 4 });
    if let Some(salt) = salt {
        body["cache_salt"] = salt.into();
    }
    body
}

fn add(house: &House, name: &str, request: &Value, is_public: bool) -> (u16, Value) {
    let body = json!({ "name": name, "request": request, "public": is_public });
    let reply = house.call("POST", "/hob/v1/pins", &body.to_string());
    (reply.head.status, reply.json())
}

fn n_cached(house: &House, body: &Value) -> usize {
    Answer::of(&house.ask(body)).usage.n_cached
}

fn names(house: &House) -> Vec<String> {
    house.status().pins.into_iter().map(|pin| pin.name).collect()
}

#[test]
fn a_pin_asked_for_is_warm_for_the_first_question_and_after_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let (house, _) = start(state.path(), CONTEXT);
    let (status, pin) = add(&house, "garden", &chat(&rules("the garden"), "This is no part of it.", None), false);
    assert_eq!(
        (status, &pin["name"], &pin["public"], &pin["configured"]),
        (200, &json!("garden"), &json!(false), &json!(false))
    );
    let n_pinned = pin["tokens"].as_u64().unwrap() as usize;
    assert!(n_pinned > 800, "{pin}");
    house.await_warm();
    assert!(n_cached(&house, &chat(&rules("the garden"), "Is it dry?", None)) >= n_pinned);
    let pins = house.get("/hob/v1/pins").json();
    assert_eq!((&pins["pins"][1]["hits"], &pins["pins"][1]["tier"]), (&json!(1), &json!("cells")), "{pins}");
    house.await_rest();
    house.close();

    let file = state.path().join("pins");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("no part of it"), "a conversation is not pinned");

    let (house, faults) = start(state.path(), CONTEXT);
    assert_eq!(faults.n_computed(), 0, "both pins came from their files");
    assert!(n_cached(&house, &chat(&rules("the garden"), "And now?", None)) >= n_pinned);
    assert_eq!(house.call("DELETE", "/hob/v1/pins/garden", "").head.status, 200);
    assert_eq!(names(&house), ["house"]);
    house.await_rest();
    house.close();
    let (house, _) = start(state.path(), CONTEXT);
    assert_eq!(names(&house), ["house"]);
    house.close();
}

#[test]
fn a_private_pin_serves_its_own_salt_alone_and_a_public_one_the_house() {
    let state = tempfile::tempdir().unwrap();
    let (house, _) = start(state.path(), CONTEXT);
    add(&house, "mine", &chat(&rules("me"), "Hm?", Some("a")), false);
    add(&house, "ours", &chat(&rules("us all"), "Hm?", Some("a")), true);
    house.await_warm();
    assert_eq!(n_cached(&house, &chat(&rules("me"), "Well?", Some("b"))) / 100, 0);
    assert!(n_cached(&house, &chat(&rules("me"), "Well?", Some("a"))) > 600);
    assert!(n_cached(&house, &chat(&rules("us all"), "Well?", Some("b"))) > 600);
    house.await_rest();
    house.close();
}

#[test]
fn a_text_that_its_client_used_before_becomes_a_pin_on_disk() {
    let state = tempfile::tempdir().unwrap();
    let (house, _) = start(state.path(), CONTEXT);
    let body = chat(&rules("the garden"), "Is it dry?", None);
    for _ in 0..2 {
        house.ask(&body);
    }
    add(&house, "garden", &body, false);
    house.await_warm();
    house.await_rest();
    house.close();
    let (house, faults) = start(state.path(), CONTEXT);
    assert_eq!((faults.n_computed(), names(&house).len()), (0, 2));
    house.close();
}

#[test]
fn a_pin_without_room_is_refused_with_both_numbers_and_left_out_of_a_smaller_house() {
    let state = tempfile::tempdir().unwrap();
    let (house, _) = start(state.path(), CONTEXT);
    let (status, refused) = add(&house, "large", &chat(&rules("the garden").repeat(5), "Hm?", None), false);
    let error = &refused["error"];
    assert_eq!((status, &error["code"], &error["n_ctx"]), (409, &json!("pins_too_large"), &json!(CONTEXT)));
    let [needed, missing] = ["needed", "missing"].map(|key| error[key].as_u64().unwrap() as usize);
    assert_eq!(needed + 512 - CONTEXT, missing, "{error}");
    assert_eq!(names(&house), ["house"]);
    assert_eq!(add(&house, "garden", &chat(&rules("the garden"), "Hm?", None), false).0, 200);
    house.close();
    let (house, _) = start(state.path(), 1800);
    assert_eq!(names(&house), ["house"], "it starts all the same");
    assert_eq!(house.call("DELETE", "/hob/v1/pins/garden", "").head.status, 200, "and can be told to forget it");
    house.close();
}

#[test]
fn what_cannot_be_pinned_or_removed_says_why() {
    let state = tempfile::tempdir().unwrap();
    let (house, _) = start(state.path(), CONTEXT);
    let good = chat(&rules("the garden"), "Hm?", None);
    let refusals = [
        (add(&house, "house", &good, true), 409, "configured_pin"),
        (add(&house, "a/b", &good, false), 400, ""),
        (add(&house, "x", &json!({ "model": "other", "messages": good["messages"] }), false), 404, "model_not_found"),
    ];
    for ((status, body), expected, code) in refusals {
        assert_eq!((status, body["error"]["code"].as_str().unwrap_or_default()), (expected, code), "{body}");
    }
    assert_eq!(add(&house, "mine", &good, false).0, 200);
    assert_eq!(add(&house, "mine", &good, true).1["error"]["code"], "anothers_pin");
    for (name, status) in [("house", 409), ("nobody", 404)] {
        assert_eq!(house.call("DELETE", &format!("/hob/v1/pins/{name}"), "").head.status, status);
    }
    house.close();
}

#[test]
fn the_command_adds_shows_and_removes_pins_of_the_running_daemon() {
    let state = tempfile::tempdir().unwrap();
    let (house, _) = start(state.path(), CONTEXT);
    let config = state.path().join("asked.toml");
    std::fs::write(&config, format!("server.listen = [\"{}\"]", house.address())).unwrap();
    let body = state.path().join("body.json");
    std::fs::write(&body, chat(&rules("the garden"), "Hm?", None).to_string()).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hob"));
        command.args(arguments).arg("--config").arg(&config).env("STATE_DIRECTORY", state.path());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (code, out, err) = run(&["pin", "add", "garden", body.to_str().unwrap(), "--public"]);
    assert_eq!(code, 0, "{out}{err}");
    house.await_warm();
    let (code, out, _) = run(&["pins"]);
    assert!(code == 0 && out.contains("garden  public, ") && out.contains("house   profile, "), "{out}");
    let json: Value = serde_json::from_str(&run(&["pins", "--json"]).1).unwrap();
    assert_eq!(json["pins"][1]["name"], "garden");
    assert_eq!(run(&["pin", "rm", "garden"]).0, 0);
    let (code, _, err) = run(&["pin", "rm", "house"]);
    assert!(code == 1 && err.contains("changed in the configuration"), "{err}");
    house.close();
    let (code, _, err) = run(&["pins"]);
    assert!(code == 1 && err.contains("no daemon answers"), "{err}");
}
