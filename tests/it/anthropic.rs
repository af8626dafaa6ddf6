//! Anthropic's dialect through a whole daemon over the simulated engine: what a coding agent's requests cost, to the token.
//!
//! Its requests have the form of Claude Code's: a billing header with another `cch` each time as the first block of the system
//! text, marks on the blocks behind it and on the newest message, and results of calls in the user's turns. Tokens are bytes.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

use hob::engine::simulated::Attention;
use hob::prompt::Moment;
use hob::request::LayoutMode;
use serde_json::{Value, json};

use crate::cold::model;
use crate::house::{House, MODEL, Setup};

/// 2026-11-30 20:06:10 UTC.
const START: i64 = 1_796_069_170;
const MAX_TOKENS: usize = 8;
const WHO: &str = "You are an agent for the command line.";
const RULES: &str = "Be brief.\n\nDo what was asked and nothing else.\n\n# Environment\nPlatform: linux\nBranch: main";

fn house(layout: LayoutMode) -> House {
    House::start(Arc::new(model(Attention::Full)), Setup { layout, ..Setup::default() })
}

/// The request number `n` of a session.
fn asking(n: usize, mut messages: Value) -> Value {
    let mark = json!({ "type": "ephemeral" });
    let text = |text: &str, mark: &Value| json!({ "type": "text", "text": text, "cache_control": mark });
    let billing = format!("x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch={n:05x};");
    let last = messages.as_array_mut().unwrap().last_mut().unwrap()["content"].as_array_mut().unwrap();
    last.last_mut().unwrap()["cache_control"] = mark.clone();
    let schema = json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] });
    json!({
        "model": MODEL,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "system": [text(&billing, &Value::Null), text(WHO, &mark), text(RULES, &mark)],
        "tools": [{ "name": "read", "description": "Reads a file.", "input_schema": schema }],
        "metadata": { "user_id": "user_1_session_1" },
        "messages": messages,
    })
}

fn user(content: Value) -> Value {
    json!({ "role": "user", "content": content })
}

fn said(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cost {
    n_prompt: usize,
    n_cached: usize,
    n_generated: usize,
}

impl Cost {
    /// Tokens that are held when the answer is over. The last one of an answer that was cut off was never computed on.
    fn n_held(&self) -> usize {
        self.n_prompt + self.n_generated - usize::from(self.n_generated == MAX_TOKENS)
    }

    fn of(usage: &Value) -> Cost {
        let n = |field: &str| usage[field].as_u64().unwrap_or_else(|| panic!("{field}: {usage}")) as usize;
        let (n_cached, n_written) = (n("cache_read_input_tokens"), n("cache_creation_input_tokens"));
        let n_prompt = n("input_tokens") + n_written + n_cached;
        assert_eq!((n_prompt, n_cached), (usage["hob"]["of"].as_u64().unwrap() as usize, n_cached));
        Cost { n_prompt, n_cached, n_generated: n("output_tokens") }
    }
}

/// What was said, and what it cost.
fn ask(house: &House, body: &Value) -> (String, Cost) {
    let reply = house.call("POST", "/v1/messages", &body.to_string());
    assert_eq!(reply.head.status, 200, "{reply:?}");
    let message = reply.json();
    let text = message["content"][0]["text"].as_str().unwrap_or_default().to_owned();
    (text, Cost::of(&message["usage"]))
}

fn count(house: &House, body: &Value) -> usize {
    let reply = house.call("POST", "/v1/messages/count_tokens", &body.to_string());
    assert_eq!(reply.head.status, 200, "{reply:?}");
    reply.json()["input_tokens"].as_u64().unwrap() as usize
}

/// A question, two steps of its tool loop, and the next question, each with a header of its own and so many seconds behind the
/// one before.
fn session(layout: LayoutMode, is_counted: bool, pause_s: i64) -> Vec<Cost> {
    let now = Arc::new(AtomicI64::new(START));
    let clock = Arc::clone(&now);
    let setup = Setup { layout, ..Setup::default() };
    let house = House::start_at(Arc::new(model(Attention::Full)), setup, move || Moment::utc(clock.load(Relaxed)));
    let next = |body: Value| {
        now.fetch_add(pause_s, Relaxed);
        if is_counted {
            count(&house, &body);
        }
        ask(&house, &body)
    };
    let mut messages = vec![user(json!([said("What is in the notes?")]))];
    let mut costs = Vec::new();
    let (text, cost) = next(asking(1, json!(messages)));
    costs.push(cost);
    let mut said_last = text;
    for (id, result) in [("toolu_1", "Milk, eggs."), ("toolu_2", "Nothing else.")] {
        let call = json!({ "type": "tool_use", "id": id, "name": "read", "input": { "path": "notes" } });
        messages.push(json!({ "role": "assistant", "content": [said(&said_last), call] }));
        messages.push(user(json!([{ "type": "tool_result", "tool_use_id": id, "content": result }])));
        let (text, cost) = next(asking(messages.len(), json!(messages)));
        said_last = text;
        costs.push(cost);
    }
    messages.push(json!({ "role": "assistant", "content": [said(&said_last)] }));
    messages.push(user(json!([said("Add bread.")])));
    costs.push(next(asking(messages.len(), json!(messages))).1);
    house.await_rest();
    house.close();
    costs
}

/// Each request goes on from where the one before ended.
#[test]
fn a_header_made_for_each_request_costs_a_session_only_itself() {
    // A loop of more than a minute is told the time anew, and the header with it.
    for pause_s in [1, 50, 400] {
        let costs = session(LayoutMode::Safe, false, pause_s);
        assert_eq!(costs[0].n_cached, 0);
        for (before, after) in costs.iter().zip(&costs[1..]) {
            assert_eq!(after.n_cached, before.n_held(), "{pause_s} s: {costs:?}");
        }
    }
    // As sent, all have the template's opening in common, and the header up to its last digit.
    let held = "<system\nx-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch=0000".len();
    let as_sent: Vec<usize> = session(LayoutMode::Off, false, 1).iter().map(|cost| cost.n_cached).collect();
    assert_eq!(as_sent, [0, held, held, held]);
}

#[test]
fn counting_gives_the_prompt_as_sent_and_changes_nothing() {
    assert_eq!(session(LayoutMode::Safe, true, 50), session(LayoutMode::Safe, false, 50));
    let body = asking(1, json!([user(json!([said("What is in the notes?")]))]));
    let (off, safe) = (house(LayoutMode::Off), house(LayoutMode::Safe));
    let n_tokens = count(&safe, &body);
    assert_eq!(n_tokens, ask(&off, &body).1.n_prompt);
    assert!(n_tokens < ask(&safe, &body).1.n_prompt, "what moves is announced in front of the question");
    let status = safe.await_rest();
    assert_eq!(count(&safe, &body), n_tokens);
    assert_eq!(safe.status().cells, status.cells, "nothing was computed");
    off.close();
    safe.close();
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let house = house(LayoutMode::Safe);
    let mut body = asking(1, json!([user(json!([said("What is in the notes?")]))]));
    let (text, cold) = ask(&house, &body);
    let warm = Cost { n_cached: cold.n_prompt - 1, ..cold };
    assert_eq!(ask(&house, &body), (text.clone(), warm));
    body["stream"] = true.into();
    let reply = house.call("POST", "/v1/messages", &body.to_string());
    let data = reply.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let streamed: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    let last = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!((streamed, Cost::of(&last["usage"])), (text, warm));
    house.close();
}
