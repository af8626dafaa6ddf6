//! What good requests get.

use serde_json::json;

use super::*;
use crate::request::{Client, Dialect, LayoutMode, Owner};

#[tokio::test]
async fn a_whole_answer_is_openais_completion_object() {
    let reply = start(Script::default()).await.post(GOOD).await;
    insta::assert_snapshot!(reply.redacted(), @r#"
    HTTP/1.1 200 OK
    content-type: application/json
    x-hob-cache: reused=9; of=12; restored=0; cause=appended; layout=off
    x-request-id: <id>
    content-length: 579
    connection: close
    date: <now>

    {"id":"chatcmpl-<id>","object":"chat.completion","created":<seconds>,"model":"house","choices":[{"index":0,"message":{"role":"assistant","content":"The oven is off.","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":6,"total_tokens":18,"prompt_tokens_details":{"cached_tokens":9,"cache_write_tokens":3},"completion_tokens_details":{"reasoning_tokens":0},"hob":{"reused":9,"of":12,"restored":0,"cause":"appended","layout":"off","queue_ms":1.3,"ttft_ms":40.0,"prefill_ms":31.0,"decode_ms":120.0}}}
    "#);
}

#[tokio::test]
async fn a_streamed_answer_is_role_text_finish_usage_and_done() {
    let body = streaming(GOOD).replacen('{', r#"{"stream_options":{"include_usage":true},"#, 1);
    let reply = start(Script::default()).await.post(body).await;
    insta::assert_snapshot!(reply.redacted(), @r#"
    HTTP/1.1 200 OK
    content-type: text/event-stream
    cache-control: no-cache
    x-accel-buffering: no
    x-hob-cache: reused=9; of=12; restored=0; cause=appended; layout=off
    x-request-id: <id>
    connection: close
    transfer-encoding: chunked
    date: <now>

    data: {"id":"chatcmpl-<id>","object":"chat.completion.chunk","created":<seconds>,"model":"house","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}

    data: {"id":"chatcmpl-<id>","object":"chat.completion.chunk","created":<seconds>,"model":"house","choices":[{"index":0,"delta":{"content":"The oven "},"logprobs":null,"finish_reason":null}],"usage":null}

    data: {"id":"chatcmpl-<id>","object":"chat.completion.chunk","created":<seconds>,"model":"house","choices":[{"index":0,"delta":{"content":"is off."},"logprobs":null,"finish_reason":null}],"usage":null}

    data: {"id":"chatcmpl-<id>","object":"chat.completion.chunk","created":<seconds>,"model":"house","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}

    data: {"id":"chatcmpl-<id>","object":"chat.completion.chunk","created":<seconds>,"model":"house","choices":[],"usage":{"prompt_tokens":12,"completion_tokens":6,"total_tokens":18,"prompt_tokens_details":{"cached_tokens":9,"cache_write_tokens":3},"completion_tokens_details":{"reasoning_tokens":0},"hob":{"reused":9,"of":12,"restored":0,"cause":"appended","layout":"off","queue_ms":1.3,"ttft_ms":40.0,"prefill_ms":31.0,"decode_ms":120.0}}}

    data: [DONE]
    "#);
}

#[tokio::test]
async fn a_streamed_answer_has_no_usage_unless_asked_for() {
    let reply = start(Script::default()).await.post(streaming(GOOD)).await;
    assert!(!reply.body.contains("usage"), "{}", reply.body);
    assert!(reply.body.ends_with("data: [DONE]\n\n"), "{}", reply.body);
}

#[tokio::test]
async fn an_answer_cut_short_says_length() {
    let script = || Script::sending([Event::Admitted(CACHE), Event::Done(done(Finish::Length))]);
    let whole = start(script()).await.post(GOOD).await;
    assert_eq!(whole.json()["choices"][0]["finish_reason"], "length");
    let streamed = start(script()).await.post(streaming(GOOD)).await;
    assert!(streamed.body.contains(r#""finish_reason":"length""#), "{}", streamed.body);
}

#[tokio::test]
async fn the_scheduler_gets_what_the_client_asked() {
    let mut running = start(Script::default()).await;
    let body = GOOD.replacen('{', r#"{"temperature":0.5,"max_tokens":7,"stop":["\n"],"cache_salt":"kids","#, 1);
    let reply = running.post(body).await;
    let submission = running.next_submission().await;
    assert_eq!(submission.prompt.tokens.len(), 12);
    assert_eq!(submission.sampling.temperature, 0.5);
    assert_eq!(submission.max_tokens, Some(7));
    assert_eq!(submission.stop, ["\n"]);
    let client = Client { name: "127.0.0.1".into(), salt: Some("kids".into()), dialect: Dialect::OpenAi };
    assert_eq!(submission.owner, client.owner());
    assert_ne!(submission.owner, Owner::Public);
    assert_eq!(submission.label.id, reply.header("x-request-id").unwrap());
    assert_eq!(submission.label.client, "127.0.0.1");
    assert_eq!(submission.label.profile.as_deref(), Some("house"));
    assert_eq!(submission.label.dialect, "openai");
    assert_eq!(running.planned.recv().await.unwrap().client, client);
}

#[tokio::test]
async fn the_planner_gets_the_layout_and_the_conversation_that_the_client_names() {
    let mut running = start(Script::default()).await;
    let body = GOOD.replacen('{', r#"{"user":"kitchen 7","#, 1);
    for (headers, body, layout, conversation) in [
        ("", GOOD, None, None),
        ("x-hob-layout: off\r\n", &body, Some(LayoutMode::Off), Some("kitchen 7")),
        ("X-Hob-Layout: optimise\r\n", &GOOD.replacen('{', r#"{"user":"","#, 1), Some(LayoutMode::Optimise), None),
    ] {
        let reply = running.exchange(&chat_bytes(body.as_bytes(), &format!("{headers}Connection: close\r\n"))).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        let request = running.planned.recv().await.unwrap();
        assert_eq!((request.layout, request.conversation.as_deref()), (layout, conversation));
    }
}

#[tokio::test]
async fn the_layout_and_what_it_was_worth_are_told_with_the_reuse() {
    let running = start(Script::default()).await;
    for (layout, expected) in [
        ("off", "reused=9; of=12; restored=0; cause=appended; layout=off"),
        ("observe", "reused=9; of=12; restored=0; cause=appended; layout=observe; moved=1; gain=1"),
        ("safe", "reused=9; of=12; restored=0; cause=appended; layout=safe; moved=1; saved=5"),
    ] {
        let headers = format!("x-hob-layout: {layout}\r\nConnection: close\r\n");
        let reply = running.exchange(&chat_bytes(GOOD.as_bytes(), &headers)).await;
        assert_eq!(reply.header("x-hob-cache"), Some(expected));
        let usage = &reply.json()["usage"]["hob"];
        for pair in expected.split("; ") {
            let (key, value) = pair.split_once('=').unwrap();
            let told = &usage[key];
            assert_eq!(told.as_str().map_or(told.to_string(), str::to_owned), value, "{key}: {usage}");
        }
    }
}

#[tokio::test]
async fn telemetry_gets_the_plan_without_its_text() {
    let mut running = start(Script::default()).await;
    let reply = running.exchange(&chat_bytes(GOOD.as_bytes(), "x-hob-layout: safe\r\nConnection: close\r\n")).await;
    assert_eq!(reply.status, 200);
    let plan = running.next_submission().await.label.plan.expect("each request has a plan");
    insta::assert_snapshot!(serde_json::to_string_pretty(&*plan).unwrap(), @r#"
    {
      "layout": "safe",
      "history": "untouched",
      "sections": [
        {
          "name": "client system",
          "class": "session",
          "n_bytes": 40,
          "cut": null
        }
      ],
      "regions": [
        {
          "section": 0,
          "end": 12
        }
      ],
      "moved": [
        {
          "kind": "clock",
          "n_bytes": 8,
          "hash": "341f3bae7efc",
          "message": 0,
          "byte": 0,
          "to_message": 1
        }
      ],
      "gain": {
        "from": 4,
        "to": null
      },
      "tools": "as_sent"
    }
    "#);
}

#[tokio::test(start_paused = true)]
async fn headers_wait_for_admission_and_tell_the_reuse() {
    let mut running = start(Script::silent()).await;
    let mut stream = running.connect().await;
    stream.write_all(&chat_bytes(streaming(GOOD).as_bytes(), "")).await.unwrap();
    let submission = running.next_submission().await;
    tokio::time::sleep(Duration::from_millis(1_900)).await;
    submission.events.send(Event::Admitted(CACHE)).await.unwrap();
    let head = read_until(&mut stream, "\r\n\r\n").await;
    assert!(head.contains("x-hob-cache: reused=9; of=12; restored=0; cause=appended; layout=off\r\n"), "{head}");
}

#[tokio::test(start_paused = true)]
async fn headers_go_out_after_two_seconds_without_the_reuse() {
    let mut running = start(Script::silent()).await;
    let mut stream = running.connect().await;
    let asked = tokio::time::Instant::now();
    let body = streaming(GOOD).replacen('{', r#"{"stream_options":{"include_usage":true},"#, 1);
    stream.write_all(&chat_bytes(body.as_bytes(), "Connection: close\r\n")).await.unwrap();
    let submission = running.next_submission().await;
    let head = read_until(&mut stream, "\r\n\r\n").await;
    assert_eq!(asked.elapsed().as_secs(), 2);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && !head.contains("x-hob-cache"), "{head}");

    for event in Script::default().events {
        submission.events.send(event).await.unwrap();
    }
    let rest = String::from_utf8(read_to_end(&mut stream).await).unwrap();
    assert!(rest.contains(r#""hob":{"reused":9,"of":12,"restored":0,"cause":"appended""#), "{rest}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_never_silent_for_longer_than_ten_seconds() {
    let mut running = start(Script::silent()).await;
    let mut stream = running.connect().await;
    stream.write_all(&chat_bytes(streaming(GOOD).as_bytes(), "")).await.unwrap();
    let submission = running.next_submission().await;
    // Before admission and after it.
    for event in [None, Some(Event::Admitted(CACHE)), Some(Event::Text("The".into()))] {
        let before = tokio::time::Instant::now();
        if let Some(event) = event {
            submission.events.send(event).await.unwrap();
        }
        read_until(&mut stream, ": keep-alive\n\n").await;
        assert!(before.elapsed() <= Duration::from_millis(12_010), "{:?}", before.elapsed());
    }
}

#[tokio::test]
async fn a_failure_before_the_first_byte_is_a_status() {
    let failures = [vec![Event::Failed("the step failed".into())], vec![Event::Done(done(Finish::Error))]];
    for failure in failures {
        for body in [GOOD.to_owned(), streaming(GOOD)] {
            let running = start(Script::sending(failure.clone())).await;
            let reply = running.post(body).await;
            assert_eq!(reply.status, 500, "{}", reply.body);
            assert_eq!(reply.json()["error"]["type"], "server_error");
            running.assert_answers().await;
        }
    }
}

#[tokio::test]
async fn a_failure_half_way_is_a_status_of_a_whole_answer_and_an_error_event_of_a_streamed_one() {
    let events = [Event::Admitted(CACHE), Event::Text("The".into()), Event::Failed("the step failed".into())];
    let whole = start(Script::sending(events.clone())).await.post(GOOD).await;
    assert_eq!((whole.status, &whole.json()["error"]["message"]), (500, &json!("the step failed")));
    let streamed = start(Script::sending(events)).await.post(streaming(GOOD)).await;
    assert_eq!(streamed.status, 200);
    let error = r#"data: {"error":{"message":"the step failed","type":"server_error","param":null,"code":null}}"#;
    assert!(streamed.body.ends_with(&format!("{error}\n\n")), "{}", streamed.body);
    assert!(streamed.body.contains(r#""content":"The""#), "{}", streamed.body);
}

#[tokio::test]
async fn a_scheduler_that_ends_without_a_word_is_a_503() {
    let mut running = start(Script::silent()).await;
    let mut stream = running.connect().await;
    stream.write_all(&chat_bytes(GOOD.as_bytes(), "Connection: close\r\n")).await.unwrap();
    drop(running.next_submission().await);
    assert_eq!(Reply::parse(&read_to_end(&mut stream).await).status, 503);
}

#[tokio::test]
async fn a_full_queue_is_a_503_that_says_when_to_return() {
    let refusal = Some(SubmitError::Busy { retry_after: Duration::from_millis(2_100) });
    let running = start(Script { refusal, ..Script::default() }).await;
    let reply = running.post(GOOD).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("3")));
    assert_eq!(reply.json()["error"]["code"], "queue_full");
    running.assert_answers().await;
}

#[tokio::test]
async fn a_stopped_scheduler_is_a_503() {
    let running = start(Script { refusal: Some(SubmitError::Stopped), ..Script::default() }).await;
    assert_eq!(running.post(GOOD).await.status, 503);
}
