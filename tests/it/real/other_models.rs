//! Models of other memory and other templates than the demo model's. `make test-models` fetches them.

use std::sync::Arc;

use hob::engine::llama::LoadedModel;
use hob::engine::{KvType, Model};
use hob::prompt::{Moment, Planner, Profile};
use hob::request::{
    Client, Dialect, Message, MissCause, Priority, Request, Role, Sampling, Token, TokenPrompt, Wanted,
};
use hob::scheduler::Pin;

use super::house::{ALICE, BOB, House, Setup, load, prompt, text};
use super::solo::max_delta;
use super::tiny;
use crate::models;

/// Gemma's file has no template.
const GEMMA: &str = "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + m.role + '\n' + m.content + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";

/// A windowed layer under guard: shared and cut anywhere, inside the window and behind it.
fn is_shared_and_cut_anywhere(model: &Arc<LoadedModel>, n_pin: usize) {
    let setup = |pins| Setup { kv_type: KvType::F16, pins, ..Setup::default() };
    let policy = [&[model.vocab().bos().unwrap()], &text(model, "House", n_pin - 1)[..]].concat();
    let question = text(model, "Kitchen", 20);
    // All prompts are cut at the same places, so that equal tokens are computed in equal chunks.
    let split = |parts: &[&[Token]]| {
        let tokens = parts.concat();
        let cuts = [n_pin - 9, n_pin, n_pin + 11].into_iter().filter(|&cut| cut < tokens.len()).collect();
        TokenPrompt { tokens, cuts }
    };
    let house = House::of(model, setup(vec![Pin::of_house("house", split(&[&policy]))]));
    assert_eq!(house.await_warm().cells.pinned, n_pin);
    let prompts = [
        (n_pin, split(&[&policy, &question])),
        (n_pin + 11, split(&[&policy, &question[..11], &text(model, "Attic", 10)])),
        (n_pin - 9, split(&[&policy[..n_pin - 9], &text(model, "Cellar", 25)])),
    ];
    for (n_cached, prompt) in prompts {
        let answer = house.ask(ALICE, &prompt, 12);
        assert_eq!(answer.n_cached(), n_cached);
        let cold_house = House::of(model, setup(vec![]));
        let cold = cold_house.ask(ALICE, &prompt, 12);
        assert_eq!((answer.text, cold.n_cached()), (cold.text.clone(), 0));
        assert!(house.log.row(&prompt.tokens).logits == cold_house.log.row(&prompt.tokens).logits, "{n_cached}");
    }
    assert_eq!(house.rest().cells.pinned, n_pin);
}

#[test]
fn models_a_windowed_model_under_guard_is_shared_and_cut_with_the_logits_of_a_cold_run() {
    let Some(path) = models::gemma() else { return };
    is_shared_and_cut_anywhere(&load(&path, Some(GEMMA)), 561);
}

#[test]
fn a_tiny_windowed_model_under_guard_is_shared_and_cut_with_the_logits_of_a_cold_run() {
    is_shared_and_cut_anywhere(&load(tiny::gemma("gemma3").path(), Some(GEMMA)), 70);
}

/// Windowed, and not on the list of those that are proved to be cut under guard.
#[test]
fn an_unproved_windowed_model_reuses_whole_sequences_with_the_logits_of_cold_ones() {
    let model = load(tiny::gemma("gemma2").path(), Some(GEMMA));
    let policy = text(&model, "House", 70);
    let question = text(&model, "Kitchen", 20);
    let setup = |pins| Setup { pins, ..Setup::default() };
    let house = House::of(&model, setup(vec![Pin::of_house("house", prompt(&[&policy]))]));
    house.await_warm();
    let first = prompt(&[&policy, &question]);
    let other = prompt(&[&policy, &question[..10], &text(&model, "Attic", 10)]);
    for (asked, cause) in [(&first, MissCause::Appended), (&other, MissCause::Checkpoint)] {
        let answer = house.ask(ALICE, asked, 12);
        assert_eq!(
            (answer.n_cached(), answer.done.cache.cause),
            (70, cause),
            "the pin is copied whole, and cut nowhere"
        );
        let cold = House::of(&model, setup(vec![]));
        assert_eq!(answer.text, cold.ask(ALICE, asked, 12).text);
        assert!(house.log.row(&asked.tokens).logits == cold.log.row(&asked.tokens).logits);
    }
    house.rest();
}

/// Full attention, a template with tools: shared as the demo model is, tools in their place.
#[test]
fn models_qwen_shares_its_tools_and_computes_what_it_computes_alone() {
    let Some(path) = models::qwen() else { return };
    let model = load(&path, None);
    let tool = r#"{"type":"function","function":{"name":"set_lamp","description":"Switches a lamp","parameters":{"type":"object","properties":{"room":{"type":"string"},"on":{"type":"boolean"}},"required":["room","on"]}}}"#;
    let profile = Profile {
        name: "house".to_owned(),
        system: "You keep this house.".to_owned(),
        tools: vec![tool.to_owned()],
        ..Profile::default()
    };
    let mut planner = Planner::new(model.vocab(), model.template(), "qwen".to_owned(), vec![profile]).unwrap();
    assert!(!planner.tools_by_fallback(), "the template has a place for tools");
    let head = planner.pins().unwrap().remove(0);
    let n_head = head.prompt.tokens.len();
    let said = spelled(&*model.vocab(), &head.prompt.tokens);
    assert!(said.contains("<tools>") && said.contains("\"name\": \"set_lamp\""), "{said}");
    assert!(said.starts_with("system\nYou keep this house."), "{said}");

    let setup = |pins| Setup { kv_type: KvType::Q8_0, pins, ..Setup::default() };
    let house = House::of(&model, setup(vec![Pin::of_house(head.name, head.prompt)]));
    house.await_warm();
    for (owner, question) in [(ALICE, "Turn the kitchen lamp on."), (BOB, "Is it dark in the cellar?")] {
        let prompt = planner.plan(&request(question), &Moment::utc(0)).unwrap().prompt;
        let shared = house.ask(owner, &prompt, 6);
        assert_eq!(shared.n_cached(), n_head);
        assert!(prompt.tokens.len() - n_head < 24, "only the question was computed");
        // These weights are multiplied in groups of rows, so company moves even q8_0: the cold run is split in the same way.
        let cold_house = House::of(&model, setup(vec![]));
        let cold = cold_house.ask(owner, &prompt, 6);
        assert_eq!((cold.n_cached(), cold.done.cache.cause), (0, MissCause::Cold));
        assert!(house.log.row(&prompt.tokens).logits == cold_house.log.row(&prompt.tokens).logits, "{question}");
        assert_eq!(shared.text, cold.text);
    }
    assert_eq!(house.rest().pins[0].n_hits, 2);
}

/// Qwen 3 is on the list of memories that can be cut and shared anywhere: this is the proof.
#[test]
fn qwen3_is_shared_and_cut_anywhere_with_the_logits_of_a_cold_run() {
    let file = tiny::qwen3();
    let model = load(file.path(), Some(GEMMA));
    let policy = text(&model, "House", 300);
    let split = TokenPrompt { tokens: policy.clone(), cuts: vec![200] };
    let pins = vec![Pin::of_house("house", split)];
    let house = House::of(&model, Setup { pins, ..Setup::default() });
    house.await_warm();
    // At the pin's end, in the middle of the pin, and in the middle of what another request left.
    let kitchen = text(&model, "Kitchen", 40);
    for (parts, n_cached) in [
        (vec![&policy[..], &kitchen[..]], 300),
        (vec![&policy[..200], &text(&model, "Attic", 30)[..]], 200),
        (vec![&policy[..], &kitchen[..20], &text(&model, "Cellar", 30)[..]], 320),
    ] {
        // All are split at the same places, so that equal tokens are computed in equal chunks.
        let n = parts.iter().map(|part| part.len()).sum();
        let cuts = [200, 300, 320].into_iter().filter(|&cut| cut < n).collect();
        let asked = TokenPrompt { tokens: parts.concat(), cuts };
        let shared = house.ask(ALICE, &asked, 8);
        assert_eq!(shared.n_cached(), n_cached);
        let cold_house = House::of(&model, Setup::default());
        let cold = cold_house.ask(ALICE, &asked, 8);
        assert_eq!(cold.n_cached(), 0);
        assert!(house.log.row(&asked.tokens).logits == cold_house.log.row(&asked.tokens).logits, "cut at {n_cached}");
    }
    house.rest();
}

/// A recurrent state is one value: what is not whole is nothing.
#[test]
fn recurrent_and_hybrid_models_reuse_whole_sequences_with_the_logits_of_cold_ones() {
    for (name, file) in [("mamba", tiny::mamba()), ("jamba", tiny::jamba())] {
        let model = load(file.path(), Some(GEMMA));
        let setup = |pins| Setup { pins, ..Setup::default() };
        let policy = text(&model, "House", 300);
        let question = text(&model, "Kitchen", 20);
        let cold = |prompt: &TokenPrompt| {
            let house = House::of(&model, setup(vec![]));
            let said = house.ask(ALICE, prompt, 12).text;
            (said, house.log.row(&prompt.tokens).logits)
        };
        let house = House::of(&model, setup(vec![Pin::of_house("house", prompt(&[&policy]))]));
        house.await_warm();
        let first = prompt(&[&policy, &question]);
        let said_to_first = house.ask(ALICE, &first, 12);
        assert_eq!(said_to_first.n_cached(), 300, "{name}: the pin is copied whole");

        let said = house.log.rows().pop().unwrap().tokens;
        let next =
            TokenPrompt { tokens: [&said[..], &text(&model, "Cellar", 15)].concat(), cuts: vec![300, 320, said.len()] };
        let said_to_next = house.ask(ALICE, &next, 12);
        assert_eq!(said_to_next.n_cached(), said.len(), "{name}: taken over at its end");

        let other = prompt(&[&policy, &question[..10], &text(&model, "Attic", 10)]);
        let said_to_other = house.ask(ALICE, &other, 12);
        let cache = said_to_other.done.cache;
        assert_eq!((cache.n_cached, cache.cause), (300, MissCause::Checkpoint), "{name}: and cut nowhere");

        // What was said was computed token by token, and cold in one chunk: sums of floats in another order.
        let cases = [(first, said_to_first, 0.0), (next, said_to_next, 1e-5), (other, said_to_other, 0.0)];
        let mut all_logits = Vec::new();
        for (prompt, answer, tolerated) in cases {
            let (text, logits) = cold(&prompt);
            let delta = max_delta(&house.log.row(&prompt.tokens).logits, &logits);
            assert!(delta <= tolerated, "{name}: off by {delta}");
            assert_eq!(answer.text, text, "{name}");
            all_logits.push(logits);
        }
        assert!(max_delta(&all_logits[0], &all_logits[2]) > 0.1, "{name} hears what it is told");
        house.rest();
    }
}

fn spelled(vocab: &dyn hob::engine::Vocab, tokens: &[Token]) -> String {
    let mut bytes = Vec::new();
    tokens.iter().for_each(|&token| vocab.piece(token, &mut bytes));
    String::from_utf8(bytes).unwrap()
}

fn request(question: &str) -> Request {
    Request {
        model: "house".to_owned(),
        messages: vec![Message::text(Role::User, question)],
        tools: vec![],
        sampling: Sampling::default(),
        wanted: Wanted::default(),
        n_logprobs: None,
        max_tokens: None,
        stop: vec![],
        client: Client { name: "kitchen".to_owned(), salt: None, dialect: Dialect::OpenAi },
        conversation: None,
        layout: None,
        priority: Priority::default(),
    }
}
