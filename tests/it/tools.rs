//! Tools in mode `optimise` through a whole daemon: what a set in another order and a set with more tools cost.

use std::sync::Arc;

use hob::engine::Model;
use hob::engine::simulated::SimulatedModel;
use hob::request::LayoutMode;
use serde_json::{Value, json};

#[cfg(feature = "llama")]
use crate::home_assistant::{self, Recording};
use crate::house::{Answer, House, MODEL, Setup, Usage};
#[cfg(feature = "llama")]
use crate::models;

/// Room for all that a test asks: nothing is evicted.
const CONTEXT: usize = 131_072;

/// Asks `bodies` one after the other.
fn ask<M: Model>(model: Arc<M>, model_name: &'static str, layout: LayoutMode, bodies: &[Value]) -> Vec<Usage> {
    let house = House::start(model, Setup { model_name, context: CONTEXT, layout, ..Setup::default() });
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

#[test]
fn a_set_in_another_order_is_reused_like_the_same_one() {
    let tools: Vec<Value> = ["light", "blind", "clock", "lock", "oven"]
        .map(|name| json!({ "type": "function", "function": { "name": name, "description": "Does it. ".repeat(20) } }))
        .into();
    let orders = [[0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [1, 0, 4, 3, 2], [0, 1, 2, 3, 4]];
    let bodies = orders.map(|order| {
        let tools: Vec<&Value> = order.iter().map(|&at| &tools[at]).collect();
        let messages = [json!({ "role": "user", "content": "Is the oven on?" })];
        json!({ "model": MODEL, "messages": messages, "tools": tools, "max_tokens": 1, "temperature": 0 })
    });
    let n_cached = |layout| -> Vec<usize> {
        let usages = ask(Arc::new(SimulatedModel::new()), MODEL, layout, &bodies);
        usages.iter().map(|usage| usage.n_cached).collect()
    };
    let optimised = n_cached(LayoutMode::Optimise);
    assert_eq!(optimised[1..], [optimised[3]; 3]);
    let as_sent = n_cached(LayoutMode::Off);
    assert_eq!(as_sent[3], optimised[3]);
    assert!(as_sent[1] < optimised[1] / 4, "{as_sent:?}");
}

/// Home Assistant's own: a satellite's voice pipeline brings seven tools for timers that its other clients do not have, in
/// the middle of the thirty. The tokens that the first request with them computes, as sent and in `optimise`, where the
/// rooms of two satellites are known to change.
#[cfg(feature = "llama")]
fn seven_more_tools(model: &std::path::Path, recording: Recording) -> (usize, usize) {
    let recorded = home_assistant::bodies(recording);
    let first_of = |n_tools: usize, nth: usize| {
        let is_first = |body: &&Value| {
            let messages = body["messages"].as_array().unwrap();
            messages.len() == 2 && body["tools"].as_array().unwrap().len() == n_tools
        };
        recorded.iter().filter(is_first).nth(nth).unwrap().clone()
    };
    let (without, with) = (first_of(30, 0), first_of(37, 0));
    let with_thirty = |nth| {
        let mut satellite = first_of(37, nth);
        satellite["tools"] = without["tools"].clone();
        satellite
    };
    let satellites = [with_thirty(0), with_thirty(1), with_thirty(0), with_thirty(1)];
    let n_computed = |layout, known: &[Value]| {
        let bodies = [std::slice::from_ref(&without), known, std::slice::from_ref(&with)].concat();
        let usages = ask(home_assistant::simulated(model), home_assistant::NAME, layout, &bodies);
        let n_computed: Vec<usize> = usages.iter().map(|usage| usage.n_prompt - usage.n_cached).collect();
        eprintln!("{layout:?}: {n_computed:?} tokens computed");
        n_computed[n_computed.len() - 1]
    };
    (n_computed(LayoutMode::Off, &[]), n_computed(LayoutMode::Optimise, &satellites))
}

#[cfg(feature = "llama")]
#[test]
fn a_client_with_seven_more_tools_computes_those_and_little_else() {
    let model = models::smollm2();
    assert_eq!(seven_more_tools(&model, Recording::LlamaCpp), (4561, 1013));
    assert_eq!(seven_more_tools(&model, Recording::Ollama), (4009, 811));
}

/// Qwen's template has a place for tools.
#[cfg(feature = "llama")]
#[test]
fn models_with_tools_in_the_template_compute_seven_more_and_little_else() {
    let Some(qwen) = models::qwen() else { return };
    assert_eq!(seven_more_tools(&qwen, Recording::LlamaCpp), (5008, 1069));
    assert_eq!(seven_more_tools(&qwen, Recording::Ollama), (4380, 813));
}
