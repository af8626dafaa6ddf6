//! Drafts on real models: the same tokens from the same logits in fewer steps, and cells that are what the cache believes.

use std::collections::HashMap;
use std::sync::Arc;

use hob::engine::llama::LoadedModel;
use hob::engine::{KvType, Model, Special};
use hob::request::{Sampling, Token, TokenPrompt};
use hob::scheduler::Speculation;

use super::house::{ALICE, Answer, House, Setup, answer, load, prompt, smollm2, text};
use super::solo::max_delta;
use super::tiny;

const N_TOKENS: usize = 96;

/// Calls of tools, which a model goes on with.
fn calls(model: &LoadedModel) -> TokenPrompt {
    let call =
        |room: &str| format!("{{\"name\": \"light.turn_on\", \"arguments\": {{\"entity_id\": \"light.{room}\"}}}}\n");
    let rooms: String = ["kitchen", "hall", "cellar"].map(call).concat();
    prompt(&[&model.vocab().tokenize(&rooms.repeat(4), Special::Text)])
}

/// What a house says that makes drafts, or none, and the house.
fn ask(
    model: &Arc<LoadedModel>,
    kv_type: KvType,
    speculation: Speculation,
    prompt: &TokenPrompt,
    sampling: &Sampling,
) -> (House, Answer) {
    let house = House::of(model, Setup { kv_type, speculation, ..Setup::default() });
    let answer = answer(house.submit_sampled(ALICE, prompt, N_TOKENS, sampling.clone()));
    house.rest();
    (house, answer)
}

/// The largest difference of the logits behind what both computed; how many places that were.
fn compare(drafting: &House, plain: &House) -> (f32, usize) {
    let rows = drafting.log.rows();
    let drafted: HashMap<&[Token], &[f32]> = rows.iter().map(|row| (&row.tokens[..], &row.logits[..])).collect();
    let plain = plain.log.rows();
    let both: Vec<f32> =
        plain.iter().filter_map(|row| Some(max_delta(drafted.get(&row.tokens[..])?, &row.logits))).collect();
    (both.iter().copied().fold(0.0, f32::max), both.len())
}

/// On q8_0 K/V the company of a row changes no bit of it, so that nothing may differ.
#[test]
fn with_drafts_the_same_is_said_from_the_same_logits_in_fewer_steps() {
    let model = smollm2();
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let lively = Sampling { temperature: 0.8, seed: Some(3), ..Sampling::default() };
    for (prompt, sampling, by) in [(calls(model), &greedy, 3), (calls(model), &lively, 1)] {
        let (plain, said) = ask(model, KvType::Q8_0, Speculation::Off, &prompt, sampling);
        let (drafting, drafted) = ask(model, KvType::Q8_0, Speculation::Free, &prompt, sampling);
        assert_eq!((&drafted.text, &drafted.done.generated), (&said.text, &said.done.generated));
        assert_eq!(compare(&drafting, &plain), (0.0, N_TOKENS));
        let n_steps = [&drafting, &plain].map(|house| house.log.n_steps());
        assert!(n_steps[0] < n_steps[1] && n_steps[0] * by <= n_steps[1], "{n_steps:?}");
    }
}

/// What is taken back behind a window's length has a guard, too.
#[test]
fn a_guarded_memory_takes_wrong_drafts_back() {
    let model = load(tiny::gemma("gemma3").path(), Some("{{ messages[0].content }}"));
    let prompt = prompt(&[&text(&model, "House", 150)]);
    // Its most likely tokens are the same over and over; now and then it says another one.
    let sampling = Sampling { temperature: 0.4, seed: Some(5), ..Sampling::default() };
    let (plain, said) = ask(&model, KvType::F16, Speculation::Off, &prompt, &sampling);
    let (drafting, drafted) = ask(&model, KvType::F16, Speculation::Free, &prompt, &sampling);
    let (delta, n_places) = compare(&drafting, &plain);
    eprintln!("max |Δ|: {delta:.6} over {n_places} tokens, {} steps", drafting.log.n_steps());
    assert_eq!(drafted.text, said.text);
    let (n_computed, n_plain) = (drafting.log.n_computed(), plain.log.n_computed());
    assert!(drafting.log.n_steps() < plain.log.n_steps() && n_computed > n_plain, "{n_computed}, {n_plain}");
}
