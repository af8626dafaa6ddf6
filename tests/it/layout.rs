//! Layout modes in a whole daemon over the simulated engine: what a client's changing lines cost, counted by the cells.
//!
//! Tokens are bytes. What is true at any time is used instead of the time itself: a line with an id made for one request.

use std::sync::Arc;

use hob::engine::simulated::Attention;
use hob::request::LayoutMode;
use serde_json::{Value, json};

use crate::cold::model;
use crate::house::{Answer, House, MODEL, Setup, Usage};

const RULES: &str = "You are the voice of this house and answer briefly.\n\nUse the tools that you are given.";

fn asking(n: usize, turns: &[(&str, &str)]) -> Value {
    let system = format!("request id: 0f8fad5b-d9cb-469f-a165-{n:012}\n{RULES}");
    let turns = turns.iter().map(|(role, text)| json!({ "role": role, "content": text }));
    let messages: Vec<Value> = [json!({ "role": "system", "content": system })].into_iter().chain(turns).collect();
    json!({ "model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0 })
}

/// A question, another one, and the first one's conversation going on.
fn talk(layout: LayoutMode) -> Vec<Usage> {
    let house = House::start(Arc::new(model(Attention::Full)), Setup { layout, ..Setup::default() });
    let ask = |body: &Value| {
        let reply = house.ask(body);
        assert_eq!(reply.head.status, 200, "{reply:?}");
        Answer::of(&reply)
    };
    let first = ask(&asking(1, &[("user", "Is the oven on?")]));
    let other = ask(&asking(2, &[("user", "And the light?")]));
    let turns = [("user", "Is the oven on?"), ("assistant", first.text.as_str()), ("user", "Since when?")];
    let next = ask(&asking(3, &turns));
    house.await_rest();
    house.close();
    vec![first.usage, other.usage, next.usage]
}

#[test]
fn content_in_parts_is_the_same_prompt_and_stays_one_run_of_bytes() {
    for layout in [LayoutMode::Safe, LayoutMode::Optimise] {
        let house = House::start(Arc::new(model(Attention::Full)), Setup { layout, ..Setup::default() });
        let whole = asking(1, &[("user", "Is the oven on?\nI smell gas.")]);
        let mut in_parts = whole.clone();
        for message in in_parts["messages"].as_array_mut().unwrap() {
            let lines = message["content"].as_str().unwrap().split('\n');
            message["content"] = lines.map(|line| json!({ "type": "text", "text": line })).collect();
        }
        let usages = [&whole, &in_parts].map(|body| Answer::of(&house.ask(body)).usage);
        // All but the last token of an equal prompt is held.
        assert_eq!((usages[1].n_prompt, usages[1].n_cached), (usages[0].n_prompt, usages[0].n_prompt - 1));
        house.close();
    }
}

#[test]
fn what_a_client_marked_for_its_own_cache_is_sent_as_it_is() {
    let talk = |mark: Value| {
        let house =
            House::start(Arc::new(model(Attention::Full)), Setup { layout: LayoutMode::Safe, ..Setup::default() });
        let usages = [1, 2].map(|n| {
            let mut body = asking(n, &[("user", "Is the oven on?")]);
            // In front of it stands what makes this line the client's own: a rule.
            let text = format!("{RULES}\n{}", body["messages"][0]["content"].as_str().unwrap());
            body["messages"][0]["content"] = json!([{ "type": "text", "text": text, "cache_control": mark }]);
            Answer::of(&house.ask(&body)).usage
        });
        house.close();
        usages[1].n_cached
    };
    let (free, marked) = (talk(Value::Null), talk(json!({ "type": "ephemeral" })));
    assert!(free > 2 * RULES.len() && marked < 2 * RULES.len(), "{free} {marked}");
}

#[test]
fn a_line_made_for_one_request_costs_only_itself_once_it_may_move() {
    let n_common = |usages: &[Usage]| -> Vec<usize> { usages.iter().map(|usage| usage.n_cached).collect() };
    let (off, safe) = (talk(LayoutMode::Off), talk(LayoutMode::Safe));
    // As sent, all that is shared is the template's beginning and the id's.
    let id = "request id: 0f8fad5b-d9cb-469f-a165-";
    assert!(n_common(&off)[1..].iter().all(|&n_cached| n_cached < id.len() + 30), "{off:?}");
    let n_cached = n_common(&safe);
    assert!(n_cached[1] > RULES.len(), "{safe:?}");
    // The whole first turn, its answer included.
    assert!(n_cached[2] >= safe[0].n_prompt + safe[0].n_generated - 1, "{safe:?}");
}

/// Acceptance case 5.
#[test]
fn a_billing_header_made_for_each_request_costs_only_itself() {
    let house = House::start(Arc::new(model(Attention::Full)), Setup { layout: LayoutMode::Safe, ..Setup::default() });
    let ask = |nonce: &str| {
        let header = format!("x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch={nonce};");
        let system = json!([{ "type": "text", "text": header }, { "type": "text", "text": RULES }]);
        let messages = json!([{ "role": "system", "content": system }, { "role": "user", "content": "Fix it." }]);
        let body = json!({ "model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0 });
        let reply = house.ask(&body);
        assert_eq!(reply.head.status, 200, "{reply:?}");
        Answer::of(&reply).usage
    };
    assert_eq!(ask("aaaaa").n_cached, 0);
    let usage = ask("bbbbb");
    assert!(usage.n_cached >= RULES.len() && usage.n_cached < usage.n_prompt, "{usage:?}");
    house.await_rest();
    house.close();
}
