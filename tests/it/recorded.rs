//! What Home Assistant sent (`fixtures/home-assistant/`), byte for byte, on the routes that it sent it to.
//!
//! A *day* is one recording. Where the recording shows what the assistant answered, the simulated model is made to say just that,
//! so that hob stands where the recorded server stood: what comes back over each dialect's wire, read by the rules of Home
//! Assistant's own clients, must be what Home Assistant then put into its history.

use std::sync::Arc;

use hob::engine::Model;
use hob::engine::llama::{LoadedModel, Weights};
use hob::engine::simulated::{ChatMl, SimulatedModel};
use serde_json::{Value, json};

use crate::home_assistant::{NAME, Recording};
use crate::house::{House, Reply, Setup, Usage};
use crate::models;

/// All conversations of a day fit in.
const CONTEXT: usize = 131_072;
/// What is said where the recording ends.
const LAST_WORDS: &str = "All right.";

/// A recorded request.
pub(crate) struct Recorded {
    pub(crate) label: String,
    path: String,
    pub(crate) body: Value,
}

/// A recording's requests in their order.
pub(crate) fn day(recording: Recording) -> Vec<Recorded> {
    let day = match recording {
        Recording::LlamaCpp => include_str!("fixtures/home-assistant/llama_cpp.jsonl"),
        Recording::Ollama => include_str!("fixtures/home-assistant/ollama.jsonl"),
    };
    day.lines().map(recorded).collect()
}

fn recorded(line: &str) -> Recorded {
    let mut line: Value = serde_json::from_str(line).unwrap();
    let text = |field: &str| line[field].as_str().unwrap().to_owned();
    Recorded { label: text("label"), path: text("path"), body: line["body"].take() }
}

impl Recorded {
    fn messages(&self) -> &[Value] {
        self.body["messages"].as_array().expect("a chat has messages")
    }

    fn goes_on_from(&self, earlier: &Recorded) -> bool {
        self.messages().len() > earlier.messages().len() && self.messages().starts_with(earlier.messages())
    }

    /// What the assistant answered, as a later request of the day has it in its history.
    fn answer<'a>(&self, day: &'a [Recorded]) -> Option<&'a Value> {
        let next = day.iter().find(|later| later.goes_on_from(self))?;
        Some(&next.messages()[self.messages().len()])
    }

    /// With an answer of one token, in one piece.
    pub(crate) fn shortened(mut self) -> Recorded {
        self.body["stream"] = false.into();
        match self.path.as_str() {
            "/api/chat" => self.body["options"]["num_predict"] = 1.into(),
            _ => self.body["max_tokens"] = 1.into(),
        }
        self
    }

    /// Home Assistant asks for no usage, and so is not told how many tokens were generated.
    fn counted(&self) -> Recorded {
        let mut body = self.body.clone();
        if self.path != "/api/chat" && body["stream"] == true {
            body["stream_options"] = json!({ "include_usage": true });
        }
        Recorded { label: self.label.clone(), path: self.path.clone(), body }
    }

    pub(crate) fn ask(&self, house: &House) -> Told {
        let reply = house.send_to(&self.path, self.body.to_string()).reply();
        assert_eq!(reply.head.status, 200, "{}: {reply:?}", self.label);
        let is_streamed = self.body["stream"] == true;
        match (self.path.as_str(), is_streamed) {
            ("/api/chat", true) => told_by_lines(&reply),
            ("/api/chat", false) => told_by_ollama(&reply.json()),
            (_, true) => told_by_chunks(&reply),
            (_, false) => told_by_openai(&reply.json()),
        }
    }
}

/// What a client understood.
#[derive(Debug)]
pub(crate) struct Told {
    content: String,
    /// Names and arguments.
    calls: Vec<(String, Value)>,
    /// In the dialect's word.
    reason: String,
    pub(crate) usage: Usage,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn told_by_ollama(body: &Value) -> Told {
    let message = &body["message"];
    assert_eq!((&body["model"], &body["done"], &message["role"]), (&json!(NAME), &json!(true), &json!("assistant")));
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    Told {
        content: text(&message["content"]),
        calls: calls.map(ollama_call).collect(),
        reason: text(&body["done_reason"]),
        usage: ollama_usage(body),
    }
}

fn ollama_call(call: &Value) -> (String, Value) {
    let function = &call["function"];
    assert!(function["arguments"].is_object(), "{call}");
    (text(&function["name"]), function["arguments"].clone())
}

fn ollama_usage(line: &Value) -> Usage {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{line}")) as usize;
    Usage {
        n_prompt: number(&line["prompt_eval_count"]),
        n_cached: number(&line["hob"]["reused"]),
        n_generated: number(&line["eval_count"]),
    }
}

/// Each line says more of the content, or calls; only the last one is `done`, and says nothing more.
fn told_by_lines(reply: &Reply) -> Told {
    assert_eq!(reply.head.header("content-type"), Some("application/x-ndjson"));
    let lines: Vec<Value> = reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, before) = lines.split_last().expect("there is a last line");
    let (mut content, mut calls) = (String::new(), Vec::new());
    for line in before {
        assert_eq!((&line["done"], &line["message"]["role"]), (&json!(false), &json!("assistant")), "{line}");
        assert!(line["message"]["thinking"].is_null(), "it was told not to think: {line}");
        content += line["message"]["content"].as_str().expect("each line has content");
        calls.extend(line["message"]["tool_calls"].as_array().into_iter().flatten().map(ollama_call));
    }
    let told = told_by_ollama(last);
    assert!(told.content.is_empty() && told.calls.is_empty(), "{last}");
    Told { content, calls, ..told }
}

fn told_by_openai(body: &Value) -> Told {
    let choice = &body["choices"][0];
    assert_eq!((&body["model"], &choice["message"]["role"]), (&json!(NAME), &json!("assistant")));
    let calls = choice["message"]["tool_calls"].as_array().into_iter().flatten();
    let call = |call: &Value| (text(&call["function"]["name"]), arguments(&text(&call["function"]["arguments"])));
    Told {
        content: text(&choice["message"]["content"]),
        calls: calls.map(call).collect(),
        reason: text(&choice["finish_reason"]),
        usage: Usage::of(&body["usage"]),
    }
}

fn arguments(text: &str) -> Value {
    let arguments: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    assert!(arguments.is_object(), "{text}");
    arguments
}

/// The first chunk has the role; each further one some text, or a piece of one call; no text after a call.
fn told_by_chunks(reply: &Reply) -> Told {
    assert_eq!(reply.head.header("content-type"), Some("text/event-stream"));
    let events = reply.body.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let (mut content, mut calls) = (String::new(), Vec::<(String, String)>::new());
    let (mut reason, mut n_chunks, mut usage, mut is_over) = (None, 0, None, false);
    for event in events {
        assert!(!is_over, "[DONE] is the last word: {event}");
        if event == "[DONE]" {
            is_over = true;
            continue;
        }
        let chunk: Value = serde_json::from_str(event).unwrap();
        if chunk["usage"].is_object() {
            usage = Some(Usage::of(&chunk["usage"]));
        }
        let Some(choice) = chunk["choices"].get(0) else { continue };
        let delta = &choice["delta"];
        assert_eq!(delta["role"] == "assistant", n_chunks == 0, "{chunk}");
        n_chunks += 1;
        assert!(delta["reasoning_content"].is_null() || reason.is_none(), "{chunk}");
        let said = delta["content"].as_str().unwrap_or_default();
        assert!(said.is_empty() || calls.is_empty(), "no text after a call: {chunk}");
        content += said;
        let pieces = delta["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        assert!(pieces.len() <= 1, "one call a chunk: {chunk}");
        for piece in pieces {
            let index = piece["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert!(piece["id"].as_str().is_some_and(|id| !id.is_empty()), "{chunk}");
                calls.push((text(&piece["function"]["name"]), String::new()));
            }
            assert_eq!(index + 1, calls.len(), "one call after the other: {chunk}");
            calls[index].1 += piece["function"]["arguments"].as_str().unwrap_or_default();
        }
        reason = reason.or(choice["finish_reason"].as_str().map(str::to_owned));
    }
    assert!(is_over);
    Told {
        content,
        calls: calls.into_iter().map(|(name, written)| (name, arguments(&written))).collect(),
        reason: reason.expect("a stream tells its finish"),
        usage: usage.expect("usage was asked for"),
    }
}

/// A recorded message in the words of a model whose template has no place for tools.
fn spelled(answer: &Value) -> String {
    let calls = answer["tool_calls"].as_array().into_iter().flatten().map(|call| {
        let function = &call["function"];
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            object => object.to_string(),
        };
        format!("<tool_call>\n{{\"name\": {}, \"arguments\": {arguments}}}\n</tool_call>", function["name"])
    });
    let calls: Vec<String> = calls.collect();
    text(&answer["content"]) + &calls.join("\n")
}

/// Names and arguments of a recorded message's calls.
fn recorded_calls(answer: &Value) -> Vec<(String, Value)> {
    let calls = answer["tool_calls"].as_array().into_iter().flatten();
    let call = |call: &Value| {
        let function = &call["function"];
        let arguments = match &function["arguments"] {
            Value::String(text) => arguments(text),
            object => object.clone(),
        };
        (text(&function["name"]), arguments)
    };
    calls.map(call).collect()
}

#[test]
fn home_assistant_reads_what_the_recorded_server_said() {
    for recording in [Recording::LlamaCpp, Recording::Ollama] {
        let day = day(recording);
        let vocab = LoadedModel::load(&models::smollm2(), Weights::None, None, |_| {}).unwrap().vocab();
        let model = Arc::new(SimulatedModel::with(vocab, Arc::new(ChatMl { takes_tools: true })));
        let faults = model.faults();
        let house = House::start(model, Setup { model_name: NAME, context: CONTEXT, ..Setup::default() });
        let (mut n_calls, mut n_echoed) = (0, 0);
        let mut told: Vec<Told> = Vec::new();
        for request in &day {
            let answer = request.answer(&day);
            if request.body["format"].is_null() {
                faults.say_next(answer.map_or(LAST_WORDS.to_owned(), spelled));
            }
            let heard = request.counted().ask(&house);
            if request.label.starts_with("setup:") {
                assert_eq!(heard.reason, "length", "three tokens were asked for: {heard:?}");
            } else if let Some(answer) = answer {
                assert_eq!(heard.calls, recorded_calls(answer), "{}", request.label);
                assert_eq!(heard.content, text(&answer["content"]), "{}", request.label);
                n_calls += heard.calls.len();
            } else if request.body["format"].is_null() {
                assert_eq!((heard.content.as_str(), heard.calls.len()), (LAST_WORDS, 0), "{}", request.label);
            } else {
                arguments(&heard.content);
            }
            // What was generated is computed, too, and comes back in the history with the tokens that it was generated in; but
            // for the last one, which ended the answer.
            let before = day[..told.len()].iter().zip(&told).rev().find(|(earlier, _)| request.goes_on_from(earlier));
            if let Some((_, before)) = before {
                let n_before = before.usage.n_prompt + before.usage.n_generated;
                assert!(heard.usage.n_cached >= n_before - 1, "{}: {heard:?} after {before:?}", request.label);
                n_echoed += 1;
            }
            told.push(heard);
        }
        assert!(n_calls >= 14 && n_echoed >= 20, "{n_calls} calls, {n_echoed} requests that go on");
        house.await_rest();
        house.close();
    }
}

/// The first chat requests of a day, answered with one token each: prompt tokens, and those reused.
pub(crate) fn counts<M: Model>(model: Arc<M>, context: usize, recording: Recording, n: usize) -> Vec<(usize, usize)> {
    let house = House::start(model, Setup { model_name: NAME, context, ..Setup::default() });
    let chats = day(recording).into_iter().filter(|request| !request.label.starts_with("setup:")).take(n);
    let usages = chats.map(|request| request.shortened().ask(&house).usage);
    let counts = usages.map(|usage| (usage.n_prompt, usage.n_cached)).collect();
    house.await_rest();
    house.close();
    counts
}
