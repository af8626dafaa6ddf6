//! Anthropic's routes over real sockets: blocks that add up, numbers that add up, errors in Anthropic's words.

use serde_json::{Value, json};

use super::speaking::saying;
use super::*;

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// A question with `fields` beside it.
fn ask(fields: Value) -> String {
    let messages = json!([{ "role": "user", "content": "is the oven on?" }]);
    let mut body = json!({ "model": "house", "max_tokens": 6, "messages": messages });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body.to_string()
}

/// The data of each event, whose name is that of its data.
fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let events = reply.body.split_terminator("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        data
    });
    events.collect()
}

/// A streamed answer put together as the official client does it, with what it relies on.
fn gathered(reply: &Reply) -> Value {
    let events = events(reply);
    let (first, rest) = events.split_first().unwrap();
    assert_eq!(first["type"], "message_start");
    let mut message = first["message"].clone();
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    let (mut open, mut input) = (None, String::new());
    let (mut n_blocks, mut is_over) = (0, false);
    for event in rest {
        assert!(!is_over, "{event} behind the end");
        let index = event["index"].as_u64();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((open, index), (None, Some(n_blocks)), "{}", reply.body);
                (open, input) = (index, String::new());
                n_blocks += 1;
                message["content"].as_array_mut().unwrap().push(event["content_block"].clone());
            }
            "content_block_delta" => {
                assert_eq!((open.is_some(), index), (true, open), "{}", reply.body);
                let (block, delta) = (message["content"].as_array_mut().unwrap().last_mut().unwrap(), &event["delta"]);
                let (field, piece) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", &delta["text"]),
                    "thinking_delta" => ("thinking", &delta["thinking"]),
                    "signature_delta" => ("signature", &delta["signature"]),
                    "input_json_delta" => {
                        input += delta["partial_json"].as_str().unwrap();
                        continue;
                    }
                    other => panic!("{other}"),
                };
                block[field] = (block[field].as_str().unwrap().to_owned() + piece.as_str().unwrap()).into();
            }
            "content_block_stop" => {
                assert_eq!((open.take(), index), (index, index), "{}", reply.body);
                let block = message["content"].as_array_mut().unwrap().last_mut().unwrap();
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&input).unwrap_or(Value::Null);
                }
            }
            "message_delta" => {
                assert_eq!(open, None);
                for field in ["stop_reason", "stop_sequence"] {
                    message[field] = event["delta"][field].clone();
                }
                for (field, value) in event["usage"].as_object().unwrap() {
                    message["usage"][field] = value.clone();
                }
            }
            "message_stop" => is_over = true,
            other => panic!("{other}"),
        }
    }
    assert!(is_over, "{}", reply.body);
    message
}

/// What of a message is the same each time.
fn told(mut message: Value) -> Value {
    assert!(message["id"].as_str().unwrap().starts_with("msg_"), "{message}");
    assert_eq!(
        (&message["type"], &message["role"], &message["model"]),
        (&json!("message"), &json!("assistant"), &json!("house"))
    );
    for block in message["content"].as_array_mut().unwrap() {
        if block["type"] == "tool_use" {
            assert!(block["id"].as_str().is_some_and(|id| !id.is_empty()), "{block}");
            block.as_object_mut().unwrap().remove("id");
        }
    }
    json!({ "content": message["content"], "reason": message["stop_reason"], "sequence": message["stop_sequence"] })
}

#[tokio::test]
async fn an_answer_is_the_same_whole_and_event_by_event() {
    let text = |text: &str| json!({ "type": "text", "text": text });
    let thinking = |thinking: &str| json!({ "type": "thinking", "thinking": thinking, "signature": "hob" });
    let call = |name: &str, input: Value| json!({ "type": "tool_use", "name": name, "input": input });
    let calling = ["<t>hm", "m</t>Let me", " see.", "<c>turn_on {\"name\"", ":\"Oven\"}</c>", "<c>live {}</c>"];
    let calls = [call("turn_on", json!({ "name": "Oven" })), call("live", json!({}))];
    for (pieces, finish, content, reason) in [
        (&["The oven ", "is off."][..], Finish::Stop, vec![text("The oven is off.")], "end_turn"),
        (&["The oven"], Finish::Length, vec![text("The oven")], "max_tokens"),
        (&[], Finish::Stop, vec![], "end_turn"),
        (&calling, Finish::Stop, [thinking("hmm"), text("Let me see.")].into_iter().chain(calls).collect(), "tool_use"),
    ] {
        let expected = json!({ "content": content, "reason": reason, "sequence": null });
        let running = start(saying(pieces, finish)).await;
        let reply = running.post_to(MESSAGES, &ask(json!({ "stream": true }))).await;
        let streamed = gathered(&reply);
        assert_eq!(told(streamed.clone()), expected, "{pieces:?}");
        let reply = running.post_to(MESSAGES, &ask(json!({}))).await;
        let whole = reply.json();
        assert_eq!(told(whole.clone()), expected, "{pieces:?}");
        assert_eq!(reply.header("x-hob-cache"), Some("reused=9; of=12; restored=0; cause=appended; layout=off"));
        assert_eq!(reply.header("request-id"), reply.header("x-request-id"));
        for usage in [&streamed["usage"], &whole["usage"]] {
            let numbers = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"];
            assert_eq!(numbers.map(|field| usage[field].as_u64().unwrap()), [1, 2, 9, 6]);
            assert_eq!((&usage["hob"]["reused"], &usage["hob"]["prefill_ms"]), (&json!(9), &json!(31.0)));
        }
    }
}

#[tokio::test]
async fn a_call_that_was_cut_off_is_left_out_of_a_whole_answer_and_closed_in_a_streamed_one() {
    let running = start(saying(&["<c>live {}</c><c>turn_on {\"na"], Finish::Length)).await;
    let whole = running.post_to(MESSAGES, &ask(json!({}))).await.json();
    assert_eq!((whole["content"].as_array().unwrap().len(), &whole["stop_reason"]), (1, &json!("max_tokens")));
    let streamed = gathered(&running.post_to(MESSAGES, &ask(json!({ "stream": true }))).await);
    assert_eq!((&streamed["content"][1]["input"], &streamed["stop_reason"]), (&Value::Null, &json!("max_tokens")));
}

#[tokio::test]
async fn thinking_that_is_not_to_be_shown_keeps_its_place() {
    let running = start(saying(&["<t>hmm</t>", "No."], Finish::Stop)).await;
    let hidden = json!({ "type": "thinking", "thinking": "", "signature": "hob" });
    for stream in [false, true] {
        let thinking = json!({ "type": "adaptive", "display": "omitted" });
        let reply = running.post_to(MESSAGES, &ask(json!({ "stream": stream, "thinking": thinking }))).await;
        let message = if stream { gathered(&reply) } else { reply.json() };
        assert_eq!(message["content"], json!([hidden, { "type": "text", "text": "No." }]));
        assert!(!reply.body.contains("hmm"));
    }
}

#[tokio::test]
async fn what_ended_an_answer_is_named() {
    let stopped = Done { stop: Some("END".into()), ..done(Finish::Stop) };
    for (done, max_tokens, expected) in [
        (stopped, 6, json!(["stop_sequence", "END"])),
        (done(Finish::Length), 6, json!(["max_tokens", null])),
        // Six tokens came of seven that could have: the context was full.
        (done(Finish::Length), 7, json!(["model_context_window_exceeded", null])),
    ] {
        let events = [Event::Admitted(CACHE), Event::Text("Off.".into()), Event::Done(done)];
        let running = start(Script::sending(events)).await;
        for stream in [false, true] {
            let reply = running.post_to(MESSAGES, &ask(json!({ "max_tokens": max_tokens, "stream": stream }))).await;
            let message = if stream { gathered(&reply) } else { reply.json() };
            assert_eq!(json!([message["stop_reason"], message["stop_sequence"]]), expected);
        }
    }
}

#[tokio::test]
async fn what_the_cache_did_is_said_at_the_start_of_a_stream() {
    let running = start(Script::default()).await;
    let reply = running.post_to("/v1/messages?beta=true", &ask(json!({ "stream": true }))).await;
    let usage = json!({
        "input_tokens": 1, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 9, "output_tokens": 0,
    });
    assert_eq!(events(&reply)[0]["message"]["usage"], usage);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_waits_pings() {
    let mut running = start(Script::silent()).await;
    let mut stream = running.connect().await;
    let body = ask(json!({ "stream": true }));
    let head = format!("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    let submission = running.next_submission().await;
    let waited = read_until(&mut stream, "event: ping\ndata: {\"type\":\"ping\"}\n\n").await;
    assert!(waited.contains(r#""usage":{"input_tokens":0,"output_tokens":0}"#), "{waited}");
    for event in Script::default().events {
        submission.events.send(event).await.unwrap();
    }
    let rest = read_until(&mut stream, "event: message_stop").await;
    assert!(rest.contains(r#""cache_read_input_tokens":9"#), "{rest}");
}

#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_error_event() {
    let events = [Event::Admitted(CACHE), Event::Text("The oven ".into()), Event::Failed("the step failed".into())];
    let running = start(Script::sending(events)).await;
    let reply = running.post_to(MESSAGES, &ask(json!({ "stream": true }))).await;
    assert_eq!(reply.status, 200);
    let last = self::events(&reply).pop().unwrap();
    assert_eq!(last["error"], json!({ "type": "api_error", "message": "the step failed" }));
    assert_eq!(last["request_id"].as_str(), reply.header("request-id"));
}

#[tokio::test]
async fn errors_are_in_anthropics_words() {
    let refused = |reply: Reply, status: u16, kind: &str, message: &str| {
        let body = reply.json();
        assert_eq!((reply.status, &body["type"]), (status, &json!("error")), "{body}");
        assert_eq!(body["error"], json!({ "type": kind, "message": message }));
        assert_eq!(body["request_id"].as_str(), reply.header("request-id"));
    };
    let running = start(Script { n_prompt: 70, ..Script::default() }).await;
    let too_long = running.post_to(MESSAGES, &ask(json!({}))).await;
    refused(too_long, 400, "invalid_request_error", "prompt is too long: 70 tokens > 63 maximum");
    let unknown = running.post_to(MESSAGES, &ask(json!({ "model": "claude" }))).await;
    let message = "model `claude` is not here; there are: house, smol";
    refused(unknown, 404, "not_found_error", message);
    let unread = running.post_to(COUNT, &ask(json!({ "messages": [] }))).await;
    refused(unread, 400, "invalid_request_error", "messages: has 0 entries: must have 1 to 2000");
    let large = running.post_to(MESSAGES, &ask(json!({ "system": "x".repeat(MAX_BODY as usize) }))).await;
    let message = "the body is larger than 100000 bytes, which is server.max_body";
    refused(large, 413, "request_too_large", message);

    let refusal = Some(SubmitError::Busy { retry_after: Duration::from_secs(2) });
    let busy = start(Script { refusal, ..Script::default() }).await;
    let reply = busy.post_to(MESSAGES, &ask(json!({}))).await;
    assert_eq!(reply.header("retry-after"), Some("2"));
    refused(reply, 503, "overloaded_error", "the queue is full");
    busy.assert_answers().await;
}

#[tokio::test]
async fn tokens_are_counted_and_nothing_is_submitted() {
    let mut running = start(Script { n_prompt: 70, ..Script::default() }).await;
    let body = json!({ "model": "house", "messages": [{ "role": "user", "content": "hi" }] }).to_string();
    let reply = running.post_to(COUNT, &body).await;
    // Also where it would not fit.
    assert_eq!((reply.status, reply.body.as_str()), (200, r#"{"input_tokens":70}"#));
    assert!(running.submitted.try_recv().is_err());
}

#[tokio::test]
async fn a_key_is_taken_under_both_its_names() {
    let key = "hob-agent";
    let client = config::ClientEntry::plain("agent".into(), config::KeyHash::of(key));
    let access = config::Access { clients: vec![client], ..config::Access::default() };
    let config = config::Server { access, ..config(Listen::Tcp(([127, 0, 0, 1], 0).into())) };
    let running = start_with(Script::default(), config).await;
    let body = ask(json!({}));
    for (header, status) in [
        ("x-api-key: hob-agent\r\n", 200),
        ("Authorization: Bearer hob-agent\r\n", 200),
        ("x-api-key: \r\nAuthorization: Bearer hob-agent\r\n", 200),
        ("x-api-key: sk-ant\r\n", 401),
        ("", 401),
    ] {
        let length = body.len();
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        let reply = running.exchange((head + &body).as_bytes()).await;
        assert_eq!(reply.status, status, "{header}: {}", reply.body);
        if status == 401 {
            assert_eq!(reply.json()["error"]["type"], "authentication_error");
        }
    }
}
