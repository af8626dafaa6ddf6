//! What may be said, and how likely: with the real vocabulary.

use std::collections::BTreeSet;

use crate::engine::llama::LlamaEngine;
use crate::engine::llama::tests::{chunk, open, smollm2};
use crate::engine::{AnswerRules, Engine, Grammar, GrammarOrigin, Model, SeqId, Special, ThinkingRules, Trigger};
use crate::request::{Dry, Mirostat, Penalties, Sampling, Token, Xtc};

const QUESTION: &str = "<|im_start|>user\nWhich room is the warmest?<|im_end|>\n<|im_start|>assistant\n";

fn tokens(text: &str) -> Vec<Token> {
    smollm2().vocab().tokenize(text, Special::Parsed)
}

fn text(tokens: &[Token]) -> String {
    let mut bytes = Vec::new();
    tokens.iter().for_each(|&token| smollm2().vocab().piece(token, &mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The answer to `prompt`, `n_max` tokens at most, and whether it ended.
fn answer(
    engine: &mut LlamaEngine,
    prompt: &str,
    sampling: &Sampling,
    rules: &AnswerRules,
    n_max: usize,
) -> (String, bool) {
    let mut all = tokens(prompt);
    let n_prompt = all.len();
    engine.remove(SeqId(0), 0).unwrap();
    let mut sampler = engine.sampler(sampling, rules, &all).unwrap();
    let mut from = 0;
    while all.len() < n_prompt + n_max {
        engine.decode(&chunk(0, &all, from..all.len())).unwrap();
        let token = engine.sample(all.len() - from - 1, &mut sampler).unwrap();
        if smollm2().vocab().is_end(token) {
            return (text(&all[n_prompt..]), true);
        }
        from = all.len();
        all.push(token);
    }
    (text(&all[n_prompt..]), false)
}

/// What comes first after the question, over some seeds.
fn first_tokens(engine: &mut LlamaEngine, sampling: &Sampling) -> BTreeSet<Token> {
    let prompt = tokens(QUESTION);
    engine.remove(SeqId(0), 0).unwrap();
    engine.decode(&chunk(0, &prompt, 0..prompt.len())).unwrap();
    let draw = |seed| {
        let sampling = Sampling { seed: Some(seed), ..sampling.clone() };
        let mut sampler = engine.sampler(&sampling, &AnswerRules::default(), &prompt).unwrap();
        engine.sample(prompt.len() - 1, &mut sampler).unwrap()
    };
    (0..60).map(draw).collect()
}

#[test]
fn each_sampler_leaves_out_what_it_should() {
    let mut engine = open(smollm2());
    let hot = Sampling { temperature: 2.0, ..Sampling::default() };
    let best = first_tokens(&mut engine, &Sampling { temperature: 0.0, ..hot.clone() });
    assert_eq!(best.len(), 1);
    let all = first_tokens(&mut engine, &hot);
    assert!(all.len() > 30, "{}", all.len());
    // Each leaves the best alone, or nearly.
    for narrow in [
        Sampling { top_k: 1, ..hot.clone() },
        Sampling { top_p: 0.01, ..hot.clone() },
        Sampling { min_p: 1.0, ..hot.clone() },
        Sampling { top_n_sigma: 0.01, ..hot.clone() },
        Sampling { temperature: 0.01, ..hot.clone() },
    ] {
        assert_eq!(first_tokens(&mut engine, &narrow), best, "{narrow:?}");
    }
    for narrower in [
        Sampling { typical_p: 0.2, ..hot.clone() },
        Sampling { mirostat: Some(Mirostat { is_first: true, tau: 0.5, eta: 0.1 }), ..hot.clone() },
        Sampling { mirostat: Some(Mirostat { is_first: false, tau: 0.5, eta: 0.1 }), ..hot.clone() },
        Sampling { temperature: 1.2, dynatemp_range: 1.0, ..hot.clone() },
    ] {
        let left = first_tokens(&mut engine, &narrower);
        assert!(left.len() < all.len(), "{}: {narrower:?}", left.len());
    }
    let kept = first_tokens(&mut engine, &Sampling { top_p: 0.01, min_keep: 3, ..hot.clone() });
    assert!((2..=3).contains(&kept.len()), "{kept:?}");
    // The likeliest is what this one leaves out.
    let surprising = Sampling { xtc: Xtc { probability: 1.0, threshold: 0.01 }, temperature: 1.0, ..hot };
    assert!(first_tokens(&mut engine, &surprising).is_disjoint(&best));
}

#[test]
fn repetition_costs_what_was_asked_for() {
    let mut engine = open(smollm2());
    let prompt = "red green blue, red green blue, red green blue, red green";
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let say =
        |engine: &mut LlamaEngine, sampling: &Sampling| answer(engine, prompt, sampling, &AnswerRules::default(), 1).0;
    assert_eq!(say(&mut engine, &greedy), " blue");
    let dry = Dry { multiplier: 10.0, breakers: vec!["!".into()], ..greedy.dry.clone() };
    assert_ne!(say(&mut engine, &Sampling { dry: dry.clone(), ..greedy.clone() }), " blue");
    let patient = Dry { allowed_length: 50, ..dry };
    assert_eq!(say(&mut engine, &Sampling { dry: patient, ..greedy.clone() }), " blue");
    let penalties = Penalties { repeat: 10.0, ..greedy.penalties };
    assert_ne!(say(&mut engine, &Sampling { penalties, ..greedy.clone() }), " blue");
    let forgetful = Penalties { last_n: Some(1), ..penalties };
    assert_eq!(say(&mut engine, &Sampling { penalties: forgetful, ..greedy }), " blue");
}

#[test]
fn an_answer_that_may_not_end_goes_on() {
    let mut engine = open(smollm2());
    let prompt = format!("{QUESTION}The kitchen is.");
    let end = tokens("<|im_end|>")[0];
    let ending = Sampling { temperature: 0.0, logit_bias: vec![(end, 100.0)], ..Sampling::default() };
    assert_eq!(answer(&mut engine, &prompt, &ending, &AnswerRules::default(), 4), (String::new(), true));
    let endless = Sampling { ignores_end: true, ..ending };
    assert!(!answer(&mut engine, &prompt, &endless, &AnswerRules::default(), 4).1);
}

fn under(text: &str) -> AnswerRules {
    let grammar = Grammar::whole(text, GrammarOrigin::Client);
    AnswerRules { grammar: Some(grammar), ..AnswerRules::default() }
}

/// `{"room":"…","warm":true}`.
const JSON: &str = r#"root ::= "{\"room\":\"" [a-z ]{1,12} "\",\"warm\":" ("true" | "false") "}""#;

#[test]
fn under_a_grammar_every_answer_fits_it() {
    let mut engine = open(smollm2());
    for seed in 0..20 {
        let sampling = Sampling { temperature: 1.5, seed: Some(seed), ..Sampling::default() };
        let (said, has_ended) = answer(&mut engine, QUESTION, &sampling, &under(JSON), 60);
        assert!(has_ended, "{said}");
        let room = said.strip_prefix("{\"room\":\"").unwrap();
        let (room, warm) = room.split_once("\",\"warm\":").unwrap();
        assert!((1..=12).contains(&room.len()) && ["true}", "false}"].contains(&warm), "{said}");
    }
    // Samplers that count candidates count those that may come.
    for narrow in [Sampling { top_k: 1, ..Sampling::default() }, Sampling { min_p: 1.0, ..Sampling::default() }] {
        assert!(answer(&mut engine, QUESTION, &narrow, &under(JSON), 60).1, "{narrow:?}");
    }
}

#[test]
fn a_grammar_of_a_schema_goes_on_from_what_the_prompt_holds() {
    let mut engine = open(smollm2());
    let mut rules = under(r#"root ::= "<|im_start|>assistant\nIt is the " ("kitchen" | "attic")"#);
    let grammar = rules.grammar.as_mut().unwrap();
    (grammar.origin, grammar.opening) = (GrammarOrigin::Tools, "<|im_start|>assistant\n".into());
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let (said, has_ended) = answer(&mut engine, QUESTION, &greedy, &rules, 20);
    assert!(has_ended && ["It is the kitchen", "It is the attic"].contains(&&*said), "{said}");
    rules.grammar.as_mut().unwrap().opening = "<|im_start|>user\n".into();
    assert!(engine.sampler(&greedy, &rules, &[]).is_err());
}

#[test]
fn a_lazy_grammar_binds_from_its_trigger_on() {
    let mut engine = open(smollm2());
    let mut rules = under(r#"root ::= "kitchen" " is 99 degrees""#);
    let grammar = rules.grammar.as_mut().unwrap();
    (grammar.is_lazy, grammar.triggers) = (true, vec![Trigger::Word("kitchen".into())]);
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let free = answer(&mut engine, QUESTION, &greedy, &AnswerRules::default(), 40).0;
    let said = answer(&mut engine, QUESTION, &greedy, &rules, 40).0;
    match free.split_once("kitchen") {
        Some((before, _)) => assert_eq!(said, format!("{before}kitchen is 99 degrees")),
        None => assert_eq!(said, free),
    }
    let wanting = format!("{QUESTION}The warmest room is the");
    let kitchen = tokens(" kitchen")[0];
    let biased = Sampling { logit_bias: vec![(kitchen, 100.0)], ..greedy };
    let (said, has_ended) = answer(&mut engine, &wanting, &biased, &rules, 20);
    assert_eq!((said.as_str(), has_ended), (" kitchen is 99 degrees", true));
}

#[test]
fn thinking_ends_when_its_budget_is_spent() {
    let mut engine = open(smollm2());
    let thinking = ThinkingRules {
        start: tokens("<think>"),
        ends: vec![tokens("</think>")],
        budget: Some(5),
        opening: "<think>".into(),
    };
    let rules = AnswerRules { thinking: Some(thinking), ..AnswerRules::default() };
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let said = answer(&mut engine, &format!("{QUESTION}<think>"), &greedy, &rules, 30).0;
    let (thought, rest) = said.split_once("</think>").unwrap();
    assert_eq!(tokens(thought).len(), 5, "{said}");
    assert!(!rest.contains("</think>") && !rest.is_empty(), "{said}");
}
