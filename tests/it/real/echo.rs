//! What the model said comes back in the history with the tokens it was said in.

use std::sync::Arc;

use hob::config::{Gpu, GpuLayers};
use hob::engine::llama::{LoadedModel, Weights};
use hob::engine::{Model, Special};
use serde_json::{Value, json};

use crate::house::{House, Setup};
use crate::models;

#[test]
fn an_echoed_answer_is_reused_however_it_was_spelled() {
    let weights = Weights::On { gpu: Gpu::Off, layers: GpuLayers::All };
    let model = Arc::new(LoadedModel::load(&models::smollm2(), weights, None, |_| {}).unwrap());
    let vocab = model.vocab();
    let setup = Setup { model_name: "smol", context: 1024, ..Setup::default() };
    let house = House::start(model, setup);
    let mut n_unusual = 0;
    // A hot model chooses unusual spellings; these seeds make some answers of which the tokeniser would make others.
    for seed in 0..6 {
        let question = json!({"role": "user", "content": format!("Tell me a story, number {seed}.")});
        let said = house.ask(&body(seed, json!([question])));
        assert_eq!(said.head.status, 200, "{said:?}");
        let said = said.json();
        let text = said["choices"][0]["message"]["content"].as_str().unwrap();
        let n_said = said["usage"]["completion_tokens"].as_u64().unwrap();
        n_unusual += u32::from(vocab.tokenize(text, Special::Text).len() as u64 != n_said);

        let answer = json!({"role": "assistant", "content": text});
        let next = json!({"role": "user", "content": "And then?"});
        let echoed = house.ask(&body(seed, json!([question, answer, next]))).json();
        // All but the last token said: that one was sampled and never computed.
        let n_held = said["usage"]["prompt_tokens"].as_u64().unwrap() + n_said - 1;
        let n_cached = echoed["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert!(n_cached >= n_held, "seed {seed}: {n_cached} of {n_held} reused, {text:?}");
    }
    assert!(n_unusual > 0, "no answer was spelled otherwise than the tokeniser would: choose other seeds");
    house.await_rest();
    house.close();
}

fn body(seed: u32, messages: Value) -> Value {
    json!({"model": "smol", "messages": messages, "max_tokens": 40, "temperature": 1.6, "seed": seed})
}
