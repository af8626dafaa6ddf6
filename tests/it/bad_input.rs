//! What a whole daemon says to bad requests, and to prompts at the edge of its context: a 4xx before any work, and the next
//! good request is answered.

use std::sync::Arc;

use hob::engine::simulated::{Attention, SimulatedModel};
use hob::request::{Message, Role};
use serde_json::{Value, json};

use crate::cold::{cold, model, plan, planner, wire};
use crate::house::{Answer, House, MAX_BODY, MODEL, Setup};

const CONTEXT: usize = 600;

fn start() -> (House, SimulatedModel) {
    let model = model(Attention::Full);
    (House::start(Arc::new(model.clone()), Setup { context: CONTEXT, ..Setup::default() }), model)
}

fn asking(text: &str, max_tokens: usize) -> Value {
    json!({
        "model": MODEL, "messages": wire(&[Message::text(Role::User, text)]), "temperature": 0, "max_tokens": max_tokens,
    })
}

/// `asking`, with `field` set to `value`.
fn with(field: &str, value: Value) -> Vec<u8> {
    let mut body = asking("is the oven on?", 4);
    body[field] = value;
    body.to_string().into_bytes()
}

/// The answer to `text` is the one of a fresh engine.
fn check_answer(house: &House, model: &SimulatedModel, text: &str, max_tokens: usize) -> Answer {
    let answer = Answer::of(&house.ask(&asking(text, max_tokens)));
    let prompt = plan(&mut planner(model, Vec::new()), MODEL, &[Message::text(Role::User, text)]);
    let (said, finish, n_generated) = cold(Attention::Full, &prompt, max_tokens, CONTEXT);
    assert_eq!((&answer.text, &answer.finish, answer.usage.n_generated), (&said, &finish, n_generated));
    assert_eq!(answer.usage.n_prompt, prompt.len());
    answer
}

#[test]
fn bad_requests_are_refused_before_any_work_and_the_next_good_one_is_answered() {
    let (house, model) = start();
    let message = json!({ "role": "user", "content": "a" });
    let tool = json!({ "type": "function", "function": { "name": "f" } });
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let biases: serde_json::Map<String, Value> = (0..301).map(|i| (i.to_string(), json!(1))).collect();
    let cases: Vec<(&str, Vec<u8>, u16, Option<&str>)> = vec![
        ("nothing", Vec::new(), 400, None),
        ("cut off", b"{\"model\":\"model\",\"messages\":[{".to_vec(), 400, None),
        ("no object", b"[]".to_vec(), 400, None),
        ("invalid UTF-8", b"{\"model\":\"m\xff\xfe\"}".to_vec(), 400, None),
        ("deep JSON", format!("{{\"tools\":{deep}}}").into_bytes(), 400, None),
        ("too large", vec![b' '; MAX_BODY as usize + 1], 413, None),
        ("unknown model", with("model", json!("gpt-9")), 404, Some("model")),
        ("model of a wrong type", with("model", json!(5)), 400, Some("model")),
        ("no messages", with("messages", json!([])), 400, Some("messages")),
        ("messages of a wrong type", with("messages", json!("hello")), 400, Some("messages")),
        ("too many messages", with("messages", json!(vec![message; 2_001])), 400, Some("messages")),
        ("unknown role", with("messages", json!([{ "role": "god", "content": "a" }])), 400, Some("messages[0].role")),
        (
            "an image",
            with("messages", json!([{ "role": "user", "content": [{ "type": "image_url" }] }])),
            400,
            Some("messages[0].content[0].type"),
        ),
        (
            "a reserved character",
            with("messages", json!([{ "role": "user", "content": "\u{100000}" }])),
            400,
            Some("messages[0]"),
        ),
        ("too many tools", with("tools", json!(vec![tool; 257])), 400, Some("tools")),
        (
            "a tool without a name",
            with("tools", json!([{ "type": "function", "function": {} }])),
            400,
            Some("tools[0].function"),
        ),
        ("too many stop texts", with("stop", json!(vec!["a"; 17])), 400, Some("stop")),
        ("an empty stop text", with("stop", json!([""])), 400, Some("stop[0]")),
        (
            "a tool twice",
            with(
                "tools",
                json!([{ "type": "function", "function": { "name": "a" } }, { "type": "function", "function": { "name": "a" } }]),
            ),
            400,
            Some("tools[1].function.name"),
        ),
        (
            "a tool with a name of two words",
            with("tools", json!([{ "type": "function", "function": { "name": "turn on" } }])),
            400,
            Some("tools[0].function.name"),
        ),
        ("a call without tools", with("tool_choice", json!("required")), 400, Some("tool_choice")),
        (
            "a call of no tool",
            with("tool_choice", json!({ "type": "function", "function": { "name": "oven" } })),
            400,
            Some("tool_choice"),
        ),
        (
            "arguments that are no JSON",
            with(
                "messages",
                json!([{ "role": "assistant", "tool_calls": [{ "function": { "name": "a", "arguments": "{on}" } }] }]),
            ),
            400,
            Some("messages[0].tool_calls[0].function.arguments"),
        ),
        ("nine answers", with("n", json!(9)), 400, Some("n")),
        ("too many biases", with("logit_bias", Value::Object(biases)), 400, Some("logit_bias")),
        ("a bias beyond the vocabulary", with("logit_bias", json!({ "259": 1 })), 400, Some("logit_bias")),
        ("no tokens", with("max_tokens", json!(0)), 400, Some("max_tokens")),
        ("a hot answer", with("temperature", json!(9)), 400, Some("temperature")),
        ("a form of two kinds", with("response_format", json!({ "type": "json" })), 400, Some("response_format.type")),
        ("a strange effort", with("reasoning_effort", json!("utmost")), 400, Some("reasoning_effort")),
        ("too many probabilities", with("top_logprobs", json!(21)), 400, Some("top_logprobs")),
    ];
    for (round, (what, body, status, param)) in cases.into_iter().enumerate() {
        let n_computed = model.faults().n_computed();
        let reply = house.send(&body).reply();
        assert_eq!(reply.head.status, status, "{what}: {}", reply.body);
        if status != 200 {
            let error = &reply.json()["error"];
            assert_eq!(
                (error["type"].as_str(), error["param"].as_str()),
                (Some("invalid_request_error"), param),
                "{what}"
            );
            assert!(!error["message"].as_str().unwrap().is_empty(), "{what}");
            assert_eq!(model.faults().n_computed(), n_computed, "{what} was worked on");
        }
        check_answer(&house, &model, &format!("good question {round}"), 6);
    }
    house.await_rest();
    house.close();
}

#[test]
fn a_prompt_that_leaves_no_room_is_refused_with_both_numbers() {
    let (house, model) = start();
    let overhead = plan(&mut planner(&model, Vec::new()), MODEL, &[Message::text(Role::User, "x")]).len() - 1;
    for n_prompt in [CONTEXT, CONTEXT + 1, 50 * CONTEXT] {
        let reply = house.ask(&asking(&"x".repeat(n_prompt - overhead), 1));
        assert_eq!(reply.head.status, 400, "{reply:?}");
        let error = &reply.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded");
        assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(n_prompt), &json!(CONTEXT)));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&n_prompt.to_string()) && message.contains(&CONTEXT.to_string()), "{message}");
    }
    // One token less, and an answer has room.
    let answer = check_answer(&house, &model, &"x".repeat(CONTEXT - 1 - overhead), 1);
    assert_eq!((answer.usage.n_prompt, answer.usage.n_generated), (CONTEXT - 1, 1));
    house.await_rest();
    house.close();
}

#[test]
fn an_answer_longer_than_the_context_ends_with_length() {
    let (house, model) = start();
    let overhead = plan(&mut planner(&model, Vec::new()), MODEL, &[Message::text(Role::User, "x")]).len() - 1;
    let answer = check_answer(&house, &model, &"x".repeat(CONTEXT - 8 - overhead), 100_000);
    assert_eq!((answer.finish.as_str(), answer.usage.n_generated), ("length", 9));
    house.await_rest();
    house.close();
}
