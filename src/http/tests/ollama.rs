//! Ollama's routes over real sockets: lines that add up, calls as objects, models by their names.

use serde_json::{Value, json};

use super::speaking::saying;
use super::*;

const ASK: &str = r#"{"model":"house","messages":[{"role":"user","content":"is the oven on?"}]}"#;

async fn post(running: &Running, path: &str, body: &str) -> Reply {
    running.post_to(path, body).await
}

/// The lines of a streamed answer put together, as Ollama's own clients do it.
fn gathered(reply: &Reply) -> Value {
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
    let lines: Vec<Value> = reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (mut content, mut thinking, mut calls) = (String::new(), String::new(), Vec::new());
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(line["done"], index + 1 == lines.len(), "{}", reply.body);
        let message = &line["message"];
        assert_eq!(message["role"], "assistant");
        content += message["content"].as_str().unwrap();
        thinking += message["thinking"].as_str().unwrap_or_default();
        calls.extend(message["tool_calls"].as_array().cloned().unwrap_or_default());
    }
    told(content, thinking, calls, lines.last().unwrap())
}

/// A whole answer in the same form.
fn whole(reply: &Reply) -> Value {
    let body = reply.json();
    let message = &body["message"];
    let text = |field: &str| message[field].as_str().unwrap_or_default().to_owned();
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    told(text("content"), text("thinking"), calls, &body)
}

fn told(content: String, thinking: String, calls: Vec<Value>, last: &Value) -> Value {
    let calls = calls.iter().enumerate().map(|(index, call)| {
        assert_eq!(call["function"]["index"], index);
        assert!(call["id"].as_str().is_some_and(|id| !id.is_empty()));
        json!([call["function"]["name"], call["function"]["arguments"]])
    });
    json!({
        "content": content, "thinking": thinking, "calls": calls.collect::<Vec<_>>(), "reason": last["done_reason"],
        "n": [last["prompt_eval_count"], last["eval_count"]],
    })
}

#[tokio::test]
async fn an_answer_is_the_same_whole_and_line_by_line() {
    let calling = ["<t>hm", "m</t>", "<c>turn_on {\"name\"", ":\"Oven\"}</c>", "<c>live {}</c>"];
    let called = json!([["turn_on", { "name": "Oven" }], ["live", {}]]);
    let cut_off = ["<c>live {}</c><c>turn_on {\"na"];
    for (pieces, finish, expected) in [
        (&["The oven ", "is off."][..], Finish::Stop, json!({ "content": "The oven is off.", "reason": "stop" })),
        (&["The oven"], Finish::Length, json!({ "content": "The oven", "reason": "length" })),
        (&calling, Finish::Stop, json!({ "thinking": "hmm", "calls": called, "reason": "stop" })),
        (&cut_off, Finish::Length, json!({ "calls": [["live", {}]], "reason": "length" })),
    ] {
        let mut all = json!({ "content": "", "thinking": "", "calls": [], "n": [12, 6] });
        all.as_object_mut().unwrap().extend(expected.as_object().unwrap().clone());
        let running = start(saying(pieces, finish)).await;
        assert_eq!(gathered(&post(&running, "/api/chat", ASK).await), all, "{pieces:?}");
        let reply = post(&running, "/api/chat", &ASK.replacen('{', "{\"stream\":false,", 1)).await;
        assert_eq!(whole(&reply), all, "{pieces:?}");
        assert_eq!(reply.header("x-hob-cache"), Some("reused=9; of=12; restored=0; cause=appended; layout=off"));
        assert_eq!(
            (&reply.json()["hob"]["reused"], reply.json()["prompt_eval_duration"].as_u64()),
            (&json!(9), Some(31_000_000))
        );
    }
}

#[tokio::test]
async fn generate_answers_one_prompt() {
    let running = start(Script::default()).await;
    let reply = post(&running, "/api/generate", r#"{"model":"house:latest","prompt":"Is it on?"}"#).await;
    let text: String = reply
        .body
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["response"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, "The oven is off.");
    let reply = post(&running, "/api/generate", r#"{"model":"house"}"#).await.json();
    assert_eq!((&reply["response"], &reply["done_reason"], &reply["done"]), (&json!(""), &json!("load"), &json!(true)));
}

#[tokio::test]
async fn models_have_the_names_that_are_configured() {
    let running = start(Script::default()).await;
    for path in ["/api/tags", "/api/ps"] {
        let models = running.get(path).await.json()["models"].clone();
        let names: Vec<&str> =
            models.as_array().unwrap().iter().map(|model| model["model"].as_str().unwrap()).collect();
        assert_eq!(names, ["house", "smol/135m"], "{path}");
        assert_eq!((&models[0]["name"], &models[0]["size"]), (&json!("house"), &json!(100_000_000)));
        assert_eq!(models[0]["modified_at"], "2026-11-30T12:00:00Z");
        assert_ne!(models[0]["digest"], models[1]["digest"]);
    }
    assert!(running.get("/api/version").await.json()["version"].as_str().unwrap().starts_with("0."));
    let shown = post(&running, "/api/show", r#"{"model":"house:latest"}"#).await.json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
    assert_eq!(shown["model_info"]["llama.context_length"], 64);
    assert_eq!(shown["details"]["family"], "llama");
}

#[tokio::test]
async fn a_model_that_is_not_here_is_refused_at_once_in_ollamas_words() {
    let running = start(Script::default()).await;
    let body = r#"{"model":"llama9","messages":[{"role":"user","content":"hi"}]}"#;
    for path in ["/api/pull", "/api/show", "/api/embed", "/api/chat"] {
        let reply = post(&running, path, body).await;
        assert_eq!(reply.status, 404, "{path}");
        let error = reply.json()["error"].as_str().unwrap_or_else(|| panic!("{path}: {}", reply.body)).to_owned();
        assert!(error.contains("model 'llama9' not found") && error.contains("house"), "{path}: {error}");
    }
    assert_eq!(post(&running, "/api/pull", r#"{"name":"house"}"#).await.body, "{\"status\":\"success\"}\n");
    let embeds = post(&running, "/api/embed", r#"{"model":"house","input":"a"}"#).await;
    assert_eq!(embeds.status, 400);
    assert_eq!(post(&running, "/api/chat", "{").await.status, 400);
    let nowhere = running.get("/api/nowhere").await;
    assert_eq!((nowhere.status, nowhere.json()["error"].is_string()), (404, true));
    running.assert_answers().await;
}

#[tokio::test]
async fn models_are_listed_while_an_answer_is_computed() {
    let mut running = start(Script::silent()).await;
    let mut stream = running.connect().await;
    let head = format!("POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{ASK}", ASK.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    let submission = running.next_submission().await;
    submission.events.send(Event::Admitted(CACHE)).await.unwrap();
    assert_eq!(running.get("/api/tags").await.status, 200);
    submission.events.send(Event::Done(done(Finish::Stop))).await.unwrap();
    assert!(read_until(&mut stream, "done_reason").await.contains("application/x-ndjson"));
}

#[tokio::test]
async fn a_stream_that_breaks_says_so_in_its_last_line() {
    let events = [Event::Admitted(CACHE), Event::Text("The oven ".into()), Event::Failed("the model stopped".into())];
    let running = start(Script::sending(events)).await;
    let reply = post(&running, "/api/chat", ASK).await;
    let last: Value = serde_json::from_str(reply.body.lines().last().unwrap()).unwrap();
    assert_eq!(last, json!({ "error": "the model stopped" }));
}
