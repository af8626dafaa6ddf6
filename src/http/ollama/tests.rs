//! What the parser makes of the bodies that Ollama's clients send, Home Assistant's first.

use serde_json::{Value, json};

use super::request::{Asked, Question, Route, parse};
use crate::request::{Message, Request, Role, Shape};

fn asked(body: &Value) -> Asked {
    parse(body.to_string().as_bytes(), "ha", Route::Chat).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn request(body: &Value) -> Request {
    match asked(body).question {
        Question::Answer(request) => *request,
        load @ Question::Load { .. } => panic!("{body}: {load:?}"),
    }
}

/// A question with `fields` beside it; those given win.
fn with(fields: Value) -> Value {
    let mut body = json!({ "model": "house", "messages": [{ "role": "user", "content": "hi" }] });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn refusal(fields: Value, route: Route) -> String {
    let body = with(fields).to_string();
    parse(body.as_bytes(), "ha", route).err().unwrap_or_else(|| panic!("{body} was taken")).to_string()
}

#[test]
fn num_ctx_as_a_float_is_taken_and_changes_nothing() {
    let plain = request(&with(json!({})));
    for n_ctx in [json!(8192.0), json!(8192), json!(1e9), json!(0)] {
        let body = with(json!({ "options": { "num_ctx": n_ctx } }));
        assert_eq!(asked(&body).n_ctx, n_ctx.as_f64());
        let request = request(&body);
        assert_eq!((request.max_tokens, request.sampling), (plain.max_tokens, plain.sampling.clone()));
    }
}

#[test]
fn keep_alive_is_taken_in_every_form_and_unloads_nothing() {
    for keep_alive in [json!(-1.0), json!("-1.0s"), json!("30.0m"), json!(0), json!("5m"), json!(300), Value::Null] {
        assert_eq!(request(&with(json!({ "keep_alive": keep_alive }))).messages.len(), 1, "{keep_alive}");
    }
}

#[test]
fn think_false_is_taken_and_null_is_as_if_it_were_not_there() {
    let is_on = |think: Value| request(&with(json!({ "think": think }))).wanted.thinking.is_on;
    assert_eq!([is_on(json!(false)), is_on(json!(true)), is_on(Value::Null)], [Some(false), Some(true), None]);
    let thinking = request(&with(json!({ "think": "low" }))).wanted.thinking;
    assert_eq!((thinking.is_on, thinking.effort.as_deref()), (Some(true), Some("low")));
}

#[test]
fn a_format_is_a_schema_also_beside_no_tools() {
    let shape = |format: Value| request(&with(json!({ "format": format, "tools": [] }))).wanted.shape;
    let schema = json!({ "type": "object", "properties": { "on": { "type": "boolean" } } });
    assert_eq!(shape(schema.clone()), Shape::Schema(schema.to_string()));
    assert_eq!([shape(json!("json")), shape(json!("")), shape(Value::Null)], [Shape::Json, Shape::Free, Shape::Free]);
    assert!(refusal(json!({ "format": "xml" }), Route::Chat).starts_with("format: "));
}

/// A history with two calls whose results have neither id nor name, as Home Assistant sends it: no `content` beside calls.
fn history() -> Value {
    json!([
        { "role": "user", "content": "lights on, please, and is it warm?" },
        { "role": "assistant", "thinking": "two calls", "tool_calls": [
            { "function": { "name": "turn_on", "arguments": { "name": "Kitchen", "any": {} } } },
            { "function": { "name": "live", "arguments": {} } },
        ] },
        { "role": "tool", "content": "on" },
        { "role": "tool", "content": "21 degrees" },
        { "role": "assistant", "content": "Yes." },
        { "role": "user", "content": "and the garden?" },
        { "role": "assistant", "tool_calls": [{ "function": { "name": "live", "arguments": {} } }] },
        { "role": "tool", "content": "cold" },
    ])
}

#[test]
fn results_without_id_or_name_belong_to_calls_by_their_order() {
    let Request { messages, .. } = request(&with(json!({ "messages": history() })));
    let result = |index: usize| {
        let Message { role, name, tool_call_id, .. } = &messages[index];
        assert_eq!(*role, Role::Tool);
        (name.as_deref().unwrap(), tool_call_id.as_deref().unwrap())
    };
    assert_eq!(
        [result(2), result(3), result(7)],
        [("turn_on", "call00001"), ("live", "call00002"), ("live", "call00003")]
    );
    let ids =
        |index: usize| messages[index].tool_calls.iter().map(|call| call.id.as_deref().unwrap()).collect::<Vec<_>>();
    assert_eq!((ids(1), ids(6)), (vec!["call00001", "call00002"], vec!["call00003"]));
    assert_eq!(messages[1].tool_calls[0].arguments, r#"{"name":"Kitchen","any":{}}"#);
    assert_eq!((messages[1].content.as_str(), messages[1].reasoning.as_deref()), ("", Some("two calls")));
    // The next turn's history has the same ids in front.
    let mut longer = history();
    longer.as_array_mut().unwrap().push(json!({ "role": "assistant", "content": "Cold." }));
    let next = request(&with(json!({ "messages": longer })));
    assert_eq!(next.messages[..messages.len()], messages);
}

#[test]
fn results_that_name_their_call_belong_to_it() {
    let mut messages = history();
    messages[2]["tool_name"] = "live".into();
    messages[3]["tool_name"] = "turn_on".into();
    let named = request(&with(json!({ "messages": messages }))).messages;
    assert_eq!(named[2].tool_call_id.as_deref(), Some("call00002"));
    assert_eq!(named[3].tool_call_id.as_deref(), Some("call00001"));
    // One that a client cut the call off of stands alone.
    let orphan = request(&with(
        json!({ "messages": [{ "role": "tool", "content": "on" }, { "role": "user", "content": "?" }] }),
    ));
    assert_eq!((orphan.messages[0].role, orphan.messages[0].tool_call_id.as_deref()), (Role::Tool, None));
}

#[test]
fn options_are_those_of_every_other_client() {
    let options = json!({
        "temperature": 0, "top_k": 20.0, "top_p": 0.5, "min_p": 0.1, "repeat_penalty": 1.2, "repeat_last_n": 64.0, "seed": 7.0,
        "stop": "END", "num_predict": 30.0, "num_gpu": 99, "use_mmap": true, "mirostat": 0,
    });
    let request = request(&with(json!({ "options": options })));
    let sampling = &request.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p), (0.0, 20, 0.5, 0.1));
    assert_eq!((sampling.penalties.repeat, sampling.penalties.last_n, sampling.seed), (1.2, Some(64), Some(7)));
    assert_eq!((request.stop, request.max_tokens), (vec!["END".to_owned()], Some(30)));
    for n_predict in [-1, -2, 0] {
        assert_eq!(self::request(&with(json!({ "options": { "num_predict": n_predict } }))).max_tokens, None);
    }
    for (options, place) in [
        (json!({ "temperature": 9 }), "options.temperature: "),
        (json!({ "top_k": "many" }), "options.top_k: "),
        (json!({ "stop": 5 }), "options.stop[0]: "),
        (json!({ "num_predict": 0.5 }), "options.num_predict: "),
    ] {
        let refused = refusal(json!({ "options": options }), Route::Chat);
        assert!(refused.starts_with(place), "{options}: {refused}");
    }
}

#[test]
fn nothing_asked_is_a_model_to_load() {
    let load = |fields: Value, route| {
        let body = with(fields).to_string();
        match parse(body.as_bytes(), "ha", route).unwrap().question {
            Question::Load { reason, .. } => reason,
            Question::Answer(request) => panic!("{request:?}"),
        }
    };
    assert_eq!(load(json!({ "messages": [] }), Route::Chat), "load");
    assert_eq!(load(json!({ "messages": [], "keep_alive": 0.0 }), Route::Chat), "unload");
    assert_eq!(load(json!({ "prompt": "" }), Route::Generate), "load");
}

#[test]
fn a_prompt_to_generate_from_is_one_question() {
    let body = json!({ "model": "house", "system": "Be brief.", "prompt": "Why?", "context": [1, 2] }).to_string();
    let Question::Answer(request) = parse(body.as_bytes(), "ha", Route::Generate).unwrap().question else { panic!() };
    let expected = [Message::text(Role::System, "Be brief."), Message::text(Role::User, "Why?")];
    assert_eq!(request.messages, expected);
    for (field, value) in [
        ("raw", json!(true)),
        ("suffix", json!("end")),
        ("template", json!("{{ .Prompt }}")),
        ("images", json!(["aa"])),
    ] {
        let refused = refusal(json!({ "prompt": "Why?", field: value }), Route::Generate);
        assert!(refused.starts_with(&format!("{field}: ")), "{refused}");
    }
}

#[test]
fn what_cannot_be_read_is_refused_with_its_place() {
    let refused = |fields: Value, place: &str| {
        let refused = refusal(fields, Route::Chat);
        assert!(refused.starts_with(place), "{refused}");
    };
    let message = |message: Value| json!({ "messages": [message] });
    refused(json!({ "model": "" }), "model: ");
    refused(message(json!({ "role": "robot", "content": "" })), "messages[0].role: ");
    refused(message(json!({ "role": "user", "content": "", "images": ["aa"] })), "messages[0].images: ");
    refused(message(json!({ "role": "user", "content": [] })), "messages[0].content: ");
    let call = |function: Value| message(json!({ "role": "assistant", "tool_calls": [{ "function": function }] }));
    refused(call(json!({ "name": "" })), "messages[0].tool_calls[0].function.name: ");
    refused(call(json!({ "name": "a", "arguments": "{}" })), "messages[0].tool_calls[0].function.arguments: ");
    refused(json!({ "think": 3 }), "think: ");
}
