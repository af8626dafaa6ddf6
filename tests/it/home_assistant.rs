//! Replays what Home Assistant really sent (`fixtures/home-assistant/`) and counts every token that had to be computed.
//!
//! A *replay* sends the 34 chat requests of a recording in their order to one daemon whose engine is simulated under a real
//! model's vocabulary and template, with `max_tokens` 1: counts are exact, answers are of no interest. What Ollama's dialect
//! carried is sent in OpenAI's form.

use std::path::Path;
use std::sync::Arc;

use hob::engine::Model;
use hob::engine::llama::{LoadedModel, Weights};
use hob::engine::simulated::SimulatedModel;
use hob::request::LayoutMode;
use serde_json::{Value, json};

use crate::house::{Answer, House, Setup, Usage};
use crate::models;

/// As Home Assistant was configured.
pub(crate) const NAME: &str = "qwen3:4b-instruct";
/// Two conversations of this household fit in, three do not: 15.9 % of the prompt tokens are computed, 18.8 % where the least recently used goes first.
pub(crate) const CONTEXT: usize = 16_384;
/// All of them fit in, and no prefix is computed twice: 13.6 %.
const LARGE_CONTEXT: usize = 131_072;
/// Chat requests of each recording.
const N_REQUESTS: usize = 34;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Recording {
    LlamaCpp,
    Ollama,
}

/// The bodies of a recording's chat requests, ready to be sent: without the two of the set-up and the AI task.
pub(crate) fn bodies(recording: Recording) -> Vec<Value> {
    labelled_bodies(recording).into_iter().map(|(body, _)| body).collect()
}

/// The same, each with its label: what was said, in which conversation, from where.
pub(crate) fn labelled_bodies(recording: Recording) -> Vec<(Value, String)> {
    let text = match recording {
        Recording::LlamaCpp => include_str!("fixtures/home-assistant/llama_cpp.jsonl"),
        Recording::Ollama => include_str!("fixtures/home-assistant/ollama.jsonl"),
    };
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let chats = lines.filter(|line| {
        let label = line["label"].as_str().unwrap();
        !label.starts_with("setup:") && label != "ai_task"
    });
    let bodies: Vec<(Value, String)> = chats
        .map(|mut line| {
            let mut body = line["body"].take();
            if recording == Recording::Ollama {
                body = as_openai(body);
            }
            body["max_tokens"] = 1.into();
            body["temperature"] = 0.into();
            body["stream"] = false.into();
            (body, line["label"].as_str().unwrap().to_owned())
        })
        .collect();
    assert_eq!(bodies.len(), N_REQUESTS);
    bodies
}

/// Ollama's body in OpenAI's form: arguments as JSON text, keys in the client's order; what only Ollama knows left out.
fn as_openai(mut body: Value) -> Value {
    let mut messages = body["messages"].take();
    for message in messages.as_array_mut().unwrap() {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            call["type"] = "function".into();
            let arguments = &mut call["function"]["arguments"];
            *arguments = arguments.to_string().into();
        }
    }
    json!({ "model": body["model"], "messages": messages, "tools": body["tools"] })
}

/// Sends `bodies` one after the other, laid out as the client sent them.
pub(crate) fn replay<M: Model>(model: Arc<M>, context: usize, bodies: &[Value]) -> Vec<Usage> {
    replay_laid(model, context, bodies, LayoutMode::Off)
}

/// Like `replay`, in the layout mode `layout`.
fn replay_laid<M: Model>(model: Arc<M>, context: usize, bodies: &[Value], layout: LayoutMode) -> Vec<Usage> {
    let house = House::start(model, Setup { model_name: NAME, context, layout, ..Setup::default() });
    let usages = bodies.iter().map(|body| {
        let reply = house.ask(body);
        assert_eq!(reply.head.status, 200, "{reply:?}");
        Answer::of(&reply).usage
    });
    let usages = usages.collect();
    house.await_rest();
    house.close();
    usages
}

/// The simulated engine under the vocabulary and the template of the model at `path`.
pub(crate) fn simulated(path: &Path) -> Arc<SimulatedModel> {
    let model = LoadedModel::load(path, Weights::None, None, |_| {}).unwrap();
    Arc::new(SimulatedModel::with(model.vocab(), model.template()))
}

/// Prompt tokens of all requests together, and those that were computed.
fn totals(usages: &[Usage]) -> (usize, usize) {
    let n_prompt = usages.iter().map(|usage| usage.n_prompt).sum();
    let n_computed = usages.iter().map(|usage| usage.n_prompt - usage.n_cached).sum();
    (n_prompt, n_computed)
}

fn check(model: &Path, recording: Recording, context: usize, expected: (usize, usize)) {
    let usages = replay(simulated(model), context, &bodies(recording));
    for (index, usage) in usages.iter().enumerate() {
        eprintln!("{index:2} {:5} of {:5} computed", usage.n_prompt - usage.n_cached, usage.n_prompt);
    }
    let (n_prompt, n_computed) = totals(&usages);
    let percent = 100.0 * n_computed as f64 / n_prompt as f64;
    eprintln!("{recording:?}, {context} cells: {n_computed} of {n_prompt} tokens computed, {percent:.1} %");
    assert_eq!((n_prompt, n_computed), expected);
}

#[test]
fn a_day_of_its_llama_cpp_integration_computes_so_many_tokens() {
    check(&models::smollm2(), Recording::LlamaCpp, CONTEXT, (211_130, 33_595));
}

#[test]
fn a_day_of_its_ollama_integration_computes_so_many_tokens() {
    check(&models::smollm2(), Recording::Ollama, CONTEXT, (196_806, 31_239));
}

#[test]
fn with_room_for_all_a_day_computes_so_many_tokens() {
    check(&models::smollm2(), Recording::LlamaCpp, LARGE_CONTEXT, (211_130, 28_645));
    check(&models::smollm2(), Recording::Ollama, LARGE_CONTEXT, (196_806, 26_841));
}

/// Of each request that goes on with an earlier one: what a tool answered, or the next thing that was said.
#[test]
fn what_goes_on_from_an_earlier_request_computes_its_new_text_alone() {
    for recording in [Recording::LlamaCpp, Recording::Ollama] {
        let bodies = bodies(recording);
        let usages = replay(simulated(&models::smollm2()), LARGE_CONTEXT, &bodies);
        let messages: Vec<&[Value]> =
            bodies.iter().map(|body| &body["messages"].as_array().expect("a chat has messages")[..]).collect();
        let (mut n_turns, mut n_results) = (0, 0);
        for (index, own) in messages.iter().enumerate() {
            let goes_on_from = |&earlier: &usize| {
                messages[earlier].len() < own.len() && own.starts_with(messages[earlier]) && own.len() > 2
            };
            let Some(earlier) = (0..index).rev().find(goes_on_from) else { continue };
            n_turns += 1;
            n_results += usize::from(own.last().is_some_and(|message| message["role"] == "tool"));
            // The last token that opened the answer may be another one where the answer follows it as text.
            let n_before = usages[earlier].n_prompt - 1;
            assert!(usages[index].n_cached >= n_before, "{recording:?}, {index}: {:?} of {n_before}", usages[index]);
        }
        eprintln!("{recording:?}: {n_turns} requests go on from an earlier one, {n_results} with a result");
        assert!(n_turns >= 20 && n_results >= 10);
    }
}

/// From nothing: what changes must be learnt from the day itself.
#[test]
fn a_day_laid_out_computes_fewer_tokens_than_as_sent() {
    for recording in [Recording::LlamaCpp, Recording::Ollama] {
        let per_mille = |layout| {
            let usages = replay_laid(simulated(&models::smollm2()), LARGE_CONTEXT, &bodies(recording), layout);
            let (n_prompt, n_computed) = totals(&usages);
            let per_mille = 1000 * n_computed / n_prompt;
            eprintln!("{recording:?}, {layout:?}: {n_computed} of {n_prompt} tokens computed, {per_mille} per mille");
            per_mille
        };
        // Counts by the daemon's own clock, whose words have not always as many tokens; `figures` has them exact.
        assert_eq!(per_mille(LayoutMode::Observe), per_mille(LayoutMode::Off));
        assert!(per_mille(LayoutMode::Safe) <= 118);
        assert!(per_mille(LayoutMode::Optimise) <= 118);
    }
}

/// Where what is taken to be held was evicted, a layout that counts on it may cost.
#[test]
fn with_room_for_two_conversations_a_day_laid_out_computes_fewer_tokens_than_as_sent() {
    for recording in [Recording::LlamaCpp, Recording::Ollama] {
        let n_computed = |layout| {
            let usages = replay_laid(simulated(&models::smollm2()), CONTEXT, &bodies(recording), layout);
            let (n_prompt, n_computed) = totals(&usages);
            let percent = 100.0 * n_computed as f64 / n_prompt as f64;
            eprintln!("{recording:?}, {layout:?}, {CONTEXT}: {n_computed} of {n_prompt} computed, {percent:.2} %");
            n_computed
        };
        let as_sent = n_computed(LayoutMode::Off);
        assert!(n_computed(LayoutMode::Safe) < as_sent);
        assert!(n_computed(LayoutMode::Optimise) < as_sent);
    }
}

/// Qwen's template has a place for tools.
#[test]
fn models_with_tools_in_the_template_compute_so_many_tokens() {
    let Some(qwen) = models::qwen() else { return };
    check(&qwen, Recording::LlamaCpp, CONTEXT, (218_982, 34_052));
    check(&qwen, Recording::Ollama, CONTEXT, (203_262, 31_424));
    check(&qwen, Recording::LlamaCpp, LARGE_CONTEXT, (218_982, 28_724));
}
