//! What a whole daemon over the simulated engine tells of its requests, and that it keeps no text of them.
//!
//! Tokens are bytes. What is true at any time is used instead of the time itself: a line with an id made for one request.

use std::sync::Arc;

use hob::engine::simulated::SimulatedModel;
use hob::request::LayoutMode;
use serde_json::{Value, json};

use crate::house::{House, MODEL, Setup};

/// Stands in each text that is sent, and in nothing that hob writes.
const MARKER: &str = "xyzzy";

fn asking(n: usize, question: &str) -> Value {
    let rules = format!("The {MARKER} lamp is in the hall. Answer briefly.").repeat(4);
    let system = format!("request id: 0f8fad5b-d9cb-469f-a165-{n:012}\n{rules}\n\n## {MARKER}\n- lamp {MARKER}: {n}");
    let tool = json!({ "type": "function", "function": { "name": "light", "description": MARKER } });
    json!({
        "model": MODEL, "max_tokens": 4, "temperature": 0, "tools": [tool],
        "messages": [{ "role": "system", "content": system }, { "role": "user", "content": format!("{question} {MARKER}?") }],
    })
}

/// Asks five times, so that what changes is known in the end; the ids and what `x-hob-cache` said, newest first.
fn ask(house: &House) -> Vec<(String, String)> {
    let mut told: Vec<(String, String)> = (1..=5)
        .map(|n| {
            let reply =
                house.ask(&asking(n, ["Is the oven on", "And the light", "And now", "Since when", "Why"][n - 1]));
            assert_eq!(reply.head.status, 200, "{reply:?}");
            let header = |name| reply.head.header(name).expect("each answer has it").to_owned();
            (header("x-request-id"), header("x-hob-cache"))
        })
        .collect();
    // A client has its answer a moment before telemetry has its record.
    house.await_rest();
    told.reverse();
    told
}

fn number(header: &str, key: &str) -> u64 {
    let value = header.split("; ").find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("{key}: {header}")).parse().unwrap()
}

#[test]
fn each_request_is_found_by_the_id_that_its_answer_carried() {
    for layout in [LayoutMode::Off, LayoutMode::Observe, LayoutMode::Safe] {
        let house = House::start(Arc::new(SimulatedModel::new()), Setup { layout, ..Setup::default() });
        let told = ask(&house);
        let list = house.get("/hob/v1/requests").json();
        let ids: Vec<&str> = list["requests"].as_array().unwrap().iter().map(|a| a["id"].as_str().unwrap()).collect();
        assert_eq!(ids, told.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>());
        for (index, (id, header)) in told.iter().enumerate() {
            let account = house.get(&format!("/hob/v1/requests/{id}")).json();
            assert_eq!(account, list["requests"][index]);
            assert_eq!(account["tokens"]["reused"], number(header, "reused"), "{header} {account}");
            let plan = &account["plan"];
            assert_eq!(plan["layout"], layout.name());
            let tokens: u64 = plan["sections"].as_array().unwrap().iter().map(|s| s["tokens"].as_u64().unwrap()).sum();
            assert_eq!(tokens, number(header, "of"), "sections are the whole prompt: {account}");
            match layout {
                LayoutMode::Off => assert!(plan["moved"].as_array().unwrap().is_empty()),
                LayoutMode::Observe => assert_eq!(plan["gain_tokens"], number(header, "gain")),
                _ => assert_eq!(plan["saved_tokens"], number(header, "saved")),
            }
        }
        let unknown = house.get("/hob/v1/requests/0");
        assert_eq!(unknown.head.status, 404, "{unknown:?}");
        house.close();
    }
}

#[test]
fn observe_offers_what_safe_then_saves() {
    let newest = |layout| {
        let house = House::start(Arc::new(SimulatedModel::new()), Setup { layout, ..Setup::default() });
        let told = ask(&house);
        let account = house.get(&format!("/hob/v1/requests/{}", told[0].0)).json();
        house.close();
        (told[0].1.clone(), account)
    };
    let (off, off_account) = newest(LayoutMode::Off);
    let (observed, observed_account) = newest(LayoutMode::Observe);
    let (safe, safe_account) = newest(LayoutMode::Safe);
    assert_eq!(number(&off, "reused"), number(&observed, "reused"), "observe changes nothing");
    // The list's item is prose to nobody, and two changes of it are known: `safe` moves it, too.
    assert_eq!(observed_account["remedy"]["line"], "layout.mode = \"safe\"", "{observed_account}");
    assert_eq!(off_account["remedy"]["line"], "layout.mode = \"observe\"", "{off_account}");
    assert_eq!(off_account["first_computed"]["section"], "client system");
    assert!(off_account["lost"]["tokens"].as_u64().unwrap() > 200, "{off_account}");
    let (offered, saved) = (number(&observed, "gain"), number(&safe, "saved"));
    assert!(offered > 100 && saved > 100, "{observed} {safe}");
    // The id stands behind the template's own first tokens.
    let n_before = 1 + "system\n".len() as u64;
    assert_eq!(saved, number(&safe, "reused") - n_before, "{safe}");
    assert!(offered > saved / 2 && offered <= saved, "at the least: {observed} {safe}");
    assert_eq!(safe_account["remedy"], Value::Null, "{safe_account}");
}

#[test]
fn no_text_of_a_prompt_is_in_the_database() {
    for layout in [LayoutMode::Off, LayoutMode::Observe, LayoutMode::Optimise] {
        let house = House::start(Arc::new(SimulatedModel::new()), Setup { layout, ..Setup::default() });
        ask(&house);
        // Makes it write.
        let told = house.get("/hob/v1/requests");
        assert!(!told.body.contains(MARKER), "{}", told.body);
        let mut n_bytes = 0;
        for file in house.database_files() {
            let bytes = std::fs::read(&file).unwrap();
            n_bytes += bytes.len();
            let holds = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
            for text in [MARKER, "Is the oven", "0f8fad5b", "in the hall", "description"] {
                assert!(!holds(text), "{text:?} is in {}", file.display());
            }
        }
        assert!(n_bytes > 10_000, "the database has been found");
        house.close();
    }
}
