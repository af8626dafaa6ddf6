//! Answers that think and call tools, with probabilities, and several choices at once.

use serde_json::{Value, json};

use super::*;
use crate::prompt::{AnswerParts, EngineError};
use crate::request::{Candidate, TokenLogprob, ToolCall};

/// Reads `<t>thinking</t>content<c>name {arguments}</c>…`.
#[derive(Debug)]
struct Tags;

impl AnswerReader for Tags {
    fn read(&self, text: &str, is_whole: bool) -> Result<AnswerParts, EngineError> {
        let mut parts = AnswerParts::default();
        let mut rest = text;
        if let Some(thinking) = rest.strip_prefix("<t>") {
            match thinking.split_once("</t>") {
                Some((reasoning, behind)) => (parts.reasoning, rest) = (reasoning.to_owned(), behind),
                None if is_whole => return Err(EngineError::Template("the thinking does not end".into())),
                None => (parts.reasoning, rest) = (until_tag(thinking).to_owned(), ""),
            }
        }
        let mut pieces = rest.split("<c>");
        let content = pieces.next().unwrap_or_default();
        parts.content = if is_whole || rest.contains("<c>") { content } else { until_tag(content) }.to_owned();
        for piece in pieces {
            let (call, is_closed) = piece.split_once("</c>").map_or((piece, false), |(call, behind)| {
                parts.content += if is_whole { behind } else { until_tag(behind) };
                (call, true)
            });
            if is_whole && !is_closed {
                return Err(EngineError::Template("a call does not end".into()));
            }
            let Some((name, arguments)) = call.split_once(' ') else { continue };
            let arguments = if is_closed { arguments } else { until_tag(arguments) };
            parts.calls.push(ToolCall { id: None, name: name.to_owned(), arguments: arguments.to_owned() });
        }
        Ok(parts)
    }
}

/// What is there before something that may be a tag.
fn until_tag(text: &str) -> &str {
    text.split('<').next().unwrap_or_default()
}

/// Says `pieces`, then ends.
pub(super) fn saying(pieces: &[&str], finish: Finish) -> Script {
    let texts = pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| Event::Text((*piece).to_owned()));
    let ends = Event::Done(done(finish));
    let events = [Event::Admitted(CACHE)].into_iter().chain(texts).chain([ends]).collect();
    Script { reader: Arc::new(Tags), events, ..Script::default() }
}

/// The JSON of each chunk.
fn chunks(reply: &Reply) -> Vec<Value> {
    let data = reply.body.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// A streamed answer put together as Home Assistant and OpenAI's client do it, with what they rely on.
fn gathered(reply: &Reply) -> Value {
    let (mut content, mut reasoning, mut calls, mut finish) =
        (String::new(), String::new(), Vec::<Value>::new(), Value::Null);
    for (index, chunk) in chunks(reply).iter().enumerate() {
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        assert_eq!(delta.get("role").is_some(), index == 0, "{}", reply.body);
        if let Some(piece) = delta["content"].as_str() {
            assert!(calls.is_empty(), "text stands behind a call: {}", reply.body);
            content += piece;
        }
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        if let Some(pieces) = delta["tool_calls"].as_array() {
            let [piece] = &pieces[..] else { panic!("one call in a chunk: {}", reply.body) };
            let arguments = piece["function"]["arguments"].as_str().unwrap();
            assert!(!arguments.is_empty(), "{}", reply.body);
            if let Some(id) = piece["id"].as_str() {
                assert_eq!(piece["index"], calls.len());
                assert!(id.starts_with("call_"), "{id}");
                calls.push(json!({ "name": piece["function"]["name"], "arguments": arguments }));
            } else {
                let last = calls.last_mut().expect("a call begins with its id and name");
                last["arguments"] = (last["arguments"].as_str().unwrap().to_owned() + arguments).into();
            }
        }
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
    }
    json!({ "content": content, "reasoning": reasoning, "calls": calls, "finish": finish })
}

/// A whole answer in the same form.
fn told(reply: &Reply) -> Value {
    let choice = &reply.json()["choices"][0];
    let message = &choice["message"];
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    let calls: Vec<Value> = calls
        .iter()
        .map(|call| json!({ "name": call["function"]["name"], "arguments": call["function"]["arguments"] }))
        .collect();
    let text = |field: &str| message[field].as_str().unwrap_or_default().to_owned();
    json!({
        "content": text("content"), "reasoning": text("reasoning_content"), "calls": calls,
        "finish": choice["finish_reason"],
    })
}

const ANSWER: &str = r#"<t>hm ü</t>On it.<c>light.on {"room":"Küche"}</c><c>time </c>"#;

#[tokio::test]
async fn a_whole_answer_has_its_thinking_and_its_calls() {
    let reply = start(saying(&[ANSWER], Finish::Stop)).await.post(GOOD).await;
    let message = reply.json()["choices"][0]["message"].clone();
    let ids: Vec<&str> = message["tool_calls"].as_array().unwrap().iter().map(|c| c["id"].as_str().unwrap()).collect();
    assert_ne!(ids[0], ids[1]);
    let shown = message.to_string().replace(ids[0], "<one>").replace(ids[1], "<two>");
    insta::assert_snapshot!(shown, @r#"{"role":"assistant","content":"On it.","reasoning_content":"hm ü","tool_calls":[{"id":"<one>","type":"function","function":{"name":"light.on","arguments":"{\"room\":\"Küche\"}"}},{"id":"<two>","type":"function","function":{"name":"time","arguments":"{}"}}],"refusal":null}"#);
    assert_eq!(reply.json()["choices"][0]["finish_reason"], "tool_calls");

    let calls_alone = start(saying(&[r#"<c>light {"a":1}</c>"#], Finish::Stop)).await.post(GOOD).await;
    assert_eq!(calls_alone.json()["choices"][0]["message"]["content"], Value::Null);
}

#[tokio::test]
async fn a_streamed_answer_says_the_same_in_every_split_of_its_text() {
    let running = start(Script::default()).await;
    let expected = json!({
        "content": "On it.", "reasoning": "hm ü", "finish": "tool_calls",
        "calls": [{ "name": "light.on", "arguments": "{\"room\":\"Küche\"}" }, { "name": "time", "arguments": "{}" }],
    });
    let letters: Vec<String> = ANSWER.chars().map(String::from).collect();
    let splits = ANSWER.char_indices().map(|(at, _)| vec![&ANSWER[..at], &ANSWER[at..]]);
    for pieces in splits.chain([letters.iter().map(String::as_str).collect()]) {
        *running.fake.script.lock().unwrap() = saying(&pieces, Finish::Stop);
        let reply = running.post(streaming(GOOD)).await;
        assert_eq!(gathered(&reply), expected, "{pieces:?}");
    }
    *running.fake.script.lock().unwrap() = saying(&[ANSWER], Finish::Stop);
    assert_eq!(told(&running.post(GOOD).await), expected);
}

#[tokio::test]
async fn a_call_is_streamed_name_first_then_its_arguments_piece_by_piece() {
    let pieces = [r#"<c>light {"ro"#, r#"om":1}"#, "</c>"];
    let reply = start(saying(&pieces, Finish::Stop)).await.post(streaming(GOOD)).await;
    let all = chunks(&reply);
    let id = all[1]["choices"][0]["delta"]["tool_calls"][0]["id"].as_str().unwrap();
    let deltas: Vec<String> =
        all.iter().map(|chunk| chunk["choices"][0]["delta"].to_string().replace(id, "<id>")).collect();
    insta::assert_snapshot!(deltas.join("\n"), @r#"
    {"role":"assistant","content":""}
    {"tool_calls":[{"index":0,"id":"<id>","type":"function","function":{"name":"light","arguments":"{\"ro"}}]}
    {"tool_calls":[{"index":0,"function":{"arguments":"om\":1}"}}]}
    {}
    "#);
}

#[tokio::test]
async fn text_behind_a_call_is_not_streamed() {
    let pieces = [r#"On <c>light {"a":1}</c>"#, " it"];
    let script = || saying(&pieces, Finish::Stop);
    let streamed = gathered(&start(script()).await.post(streaming(GOOD)).await);
    assert_eq!((&streamed["content"], &streamed["finish"]), (&json!("On "), &json!("tool_calls")));
    let whole = told(&start(script()).await.post(GOOD).await);
    assert_eq!(whole["content"], "On  it");
}

#[tokio::test]
async fn an_answer_that_cannot_be_parted_is_text_and_nothing_of_it_is_lost() {
    for (pieces, content) in [
        (["On it.", "<t>hm"].as_slice(), "On it.<t>hm"),
        (&["<t>hm", " so"], "<t>hm so"),
        (&["On it.", "<c>"], "On it.<c>"),
        (&["<c>", "light"], "<c>light"),
    ] {
        let script = || saying(pieces, Finish::Stop);
        let whole = told(&start(script()).await.post(GOOD).await);
        let streamed = gathered(&start(script()).await.post(streaming(GOOD)).await);
        assert_eq!((&whole["content"], &whole["finish"]), (&json!(content), &json!("stop")));
        assert_eq!((&streamed["content"], &streamed["finish"]), (&json!(content), &json!("stop")));
    }
}

#[tokio::test]
async fn a_call_that_is_cut_off_is_told_as_far_as_it_came() {
    let script = || saying(&[r#"On it.<c>light {"a":"#], Finish::Length);
    let expected = json!({
        "content": "On it.", "reasoning": "", "calls": [{ "name": "light", "arguments": "{\"a\":" }], "finish": "length",
    });
    assert_eq!(told(&start(script()).await.post(GOOD).await), expected);
    assert_eq!(gathered(&start(script()).await.post(streaming(GOOD)).await), expected);
    let thinking = told(&start(saying(&["<t>hm"], Finish::Length)).await.post(GOOD).await);
    assert_eq!((&thinking["reasoning"], &thinking["content"]), (&json!("hm"), &json!("")));
}

#[tokio::test]
async fn a_call_that_a_stop_text_cut_through_is_no_call() {
    let script = || saying(&[r#"<c>light {"a":"#], Finish::Stop);
    let whole = told(&start(script()).await.post(GOOD).await);
    assert_eq!((&whole["content"], &whole["finish"]), (&json!(r#"<c>light {"a":"#), &json!("stop")));
    let streamed = gathered(&start(script()).await.post(streaming(GOOD)).await);
    assert_eq!(streamed["finish"], "stop");
}

#[tokio::test]
async fn the_planner_hears_what_was_told_in_which_tokens() {
    for body in [GOOD.to_owned(), streaming(GOOD)] {
        let running = start(saying(&[ANSWER], Finish::Stop)).await;
        running.post(body).await;
        let remembered = running.fake.script.lock().unwrap().remembered.clone();
        let [spoken] = &remembered[..] else { panic!("{remembered:?}") };
        assert_eq!((spoken.text.as_str(), spoken.record), ("On it.", Some(7)));
        assert_eq!(spoken.tokens, done(Finish::Stop).generated);
        let calls: Vec<(&str, &str)> =
            spoken.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
        assert_eq!(calls, [("light.on", r#"{"room":"Küche"}"#), ("time", "{}")]);
    }
}

fn logprob(bytes: &[u8], logprob: f32) -> TokenLogprob {
    let candidate = |bytes: &[u8], logprob| Candidate { bytes: bytes.to_vec(), logprob };
    TokenLogprob {
        token: candidate(bytes, logprob),
        top: vec![candidate(bytes, logprob), candidate(b"no", f32::NEG_INFINITY)],
    }
}

#[tokio::test]
async fn probabilities_are_told_with_the_text_that_they_are_of() {
    let events = [
        Event::Admitted(CACHE),
        Event::Logprobs(vec![logprob("ü".as_bytes(), -0.5), logprob(&[0xc3], -1.0)]),
        Event::Text("ü".into()),
        Event::Logprobs(vec![logprob(&[0xa4], -2.0)]),
        Event::Text("ä".into()),
        Event::Logprobs(vec![logprob(b"", -3.0)]),
        Event::Done(done(Finish::Stop)),
    ];
    let ask = |body: &str| body.replacen('{', r#"{"logprobs":true,"top_logprobs":2,"#, 1);
    let mut running = start(Script::sending(events.clone())).await;
    let whole = running.post(ask(GOOD)).await.json()["choices"][0]["logprobs"].clone();
    assert_eq!(running.next_submission().await.n_logprobs, Some(2));
    insta::assert_snapshot!(whole["content"][0], @r#"{"token":"ü","bytes":[195,188],"logprob":-0.5,"top_logprobs":[{"token":"ü","bytes":[195,188],"logprob":-0.5},{"token":"no","bytes":[110,111],"logprob":-9999.0}]}"#);
    assert_eq!(whole["content"][1]["token"], "\u{fffd}");
    assert_eq!(whole["refusal"], Value::Null);

    let reply = start(Script::sending(events.clone())).await.post(streaming(&ask(GOOD))).await;
    let counts: Vec<usize> = chunks(&reply)
        .iter()
        .map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().map_or(0, Vec::len))
        .collect();
    // The role, two texts, the end.
    assert_eq!(counts, [0, 2, 1, 1]);
    let unasked = start(Script::sending(events)).await.post(GOOD).await;
    assert_eq!(unasked.json()["choices"][0]["logprobs"], Value::Null);
}

fn two(body: &str) -> String {
    body.replacen('{', r#"{"n":2,"seed":4294967295,"#, 1)
}

#[tokio::test]
async fn each_choice_has_its_index_and_usage_counts_the_prompt_once() {
    let mut running = start(Script::default()).await;
    let reply = running.post(two(GOOD)).await;
    let body = reply.json();
    let choices: Vec<(Value, Value)> = body["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| (choice["index"].clone(), choice["message"]["content"].clone()))
        .collect();
    assert_eq!(choices, [0, 1].map(|index| (json!(index), json!("The oven is off."))));
    let usage = &body["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(12), &json!(12)));
    assert_eq!(usage["total_tokens"], 24);

    let (first, second) = (running.next_submission().await, running.next_submission().await);
    assert_eq!((first.sampling.seed, second.sampling.seed), (Some(u32::MAX), Some(0)));
    assert_eq!(first.prompt, second.prompt);
    let id = reply.header("x-request-id").unwrap();
    assert_eq!((first.label.id.as_str(), second.label.id), (id, format!("{id}.1")));
    assert!(first.label.plan.is_some() && second.label.plan.is_none());
    let remembered = running.fake.script.lock().unwrap().remembered.clone();
    assert_eq!(remembered.iter().filter_map(|spoken| spoken.record).collect::<Vec<_>>(), [7]);
    assert_eq!(remembered.len(), 2);
}

#[tokio::test]
async fn streamed_choices_come_side_by_side() {
    let body = two(&streaming(GOOD)).replacen('{', r#"{"stream_options":{"include_usage":true},"#, 1);
    let reply = start(Script::default()).await.post(body).await;
    assert!(reply.body.ends_with("data: [DONE]\n\n"), "{}", reply.body);
    let mut all = chunks(&reply);
    let usage = all.pop().unwrap();
    assert_eq!((&usage["usage"]["completion_tokens"], &usage["choices"]), (&json!(12), &json!([])));
    for index in 0..2 {
        let of: Vec<&Value> =
            all.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == index).collect();
        assert_eq!(of[0]["delta"]["role"], "assistant");
        let text: String = of.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(text, "The oven is off.");
        let finishes: Vec<bool> = of.iter().map(|choice| choice["finish_reason"] == "stop").collect();
        assert_eq!(finishes, [false, false, false, true]);
    }
    // Neither waits for the other's end.
    let order: Vec<&Value> = all.iter().map(|chunk| &chunk["choices"][0]["index"]).collect();
    let first_of_second = order.iter().position(|index| **index == 1);
    let last_of_first = order.iter().rposition(|index| **index == 0);
    assert!(first_of_second < last_of_first, "{order:?}");
}

#[tokio::test]
async fn a_client_gone_drops_all_its_choices() {
    let mut running = start(Script::silent()).await;
    let mut stream = running.connect().await;
    stream.write_all(&chat_bytes(two(GOOD).as_bytes(), "")).await.unwrap();
    let (first, second) = (running.next_submission().await, running.next_submission().await);
    drop(stream);
    first.events.closed().await;
    second.events.closed().await;
}

#[tokio::test]
async fn a_choice_that_fails_fails_the_answer() {
    let mut running = start(Script::silent()).await;
    let mut stream = running.connect().await;
    stream.write_all(&chat_bytes(two(GOOD).as_bytes(), "Connection: close\r\n")).await.unwrap();
    let (first, second) = (running.next_submission().await, running.next_submission().await);
    for event in Script::default().events {
        first.events.send(event).await.unwrap();
    }
    second.events.send(Event::Failed("the step failed".into())).await.unwrap();
    assert_eq!(Reply::parse(&read_to_end(&mut stream).await).status, 500);
}
