//! What is computed and what is not, in exact numbers, and that nobody's answer changes by it. On q8_0 K/V, where rounding
//! depends on nothing but the order of a sequence's own cells: any company gives the same bits (kv.md, E2).

use std::collections::HashMap;

use hob::engine::{KvType, Model};
use hob::prompt::{Document, Planner, Profile};
use hob::request::{Client, Dialect, Message, MissCause, Owner, Request, Role, Sampling, Token, TokenPrompt};
use hob::scheduler::Pin;

use super::house::{ALICE, Answer, BOB, House, Setup, answer, prompt, smollm2, text};
use super::solo::{assert_rows_equal_solo, solo};

fn house(setup: Setup) -> House {
    House::of(smollm2(), Setup { kv_type: KvType::Q8_0, ..setup })
}

fn pin(name: &str, tokens: &[Token]) -> Pin {
    Pin { name: name.to_owned(), prompt: TokenPrompt { tokens: tokens.to_vec(), cuts: vec![] } }
}

/// All rows that the house computed, against solo runs; how many had their cells out of order.
fn assert_exact(house: &House) -> usize {
    assert_rows_equal_solo(smollm2(), KvType::Q8_0, house.log.rows())
}

#[test]
fn two_that_come_together_compute_their_prefix_once() {
    let [prefix, one, two] = [("House", 300), ("Kitchen", 20), ("Cellar", 25)].map(|(name, n)| text(smollm2(), name, n));
    let prompts = [prompt(&[&prefix, &one]), prompt(&[&prefix, &two])];
    // The second context has no room for two copies.
    for n_cells in [1024, 512] {
        let house = house(Setup { n_cells, ..Setup::default() });
        house.step(0);
        let answers = prompts.each_ref().map(|prompt| house.submit(ALICE, prompt, 6));
        house.log.open_gate();
        let answers = answers.map(answer);
        assert_eq!(answers.each_ref().map(Answer::n_cached), [0, 300]);
        assert_eq!(house.log.n_computed(), 300 + 20 + 25 + 2 * 5);
        assert_eq!(assert_exact(&house), 0);
        let status = house.rest();
        assert_eq!(status.cells.evictable, house.log.n_computed(), "{n_cells} cells, nothing evicted");
    }
}

#[test]
fn a_request_dropped_during_prefill_frees_its_sequence_within_one_step() {
    let long = prompt(&[&text(smollm2(), "House", 900)]);
    let house = house(Setup::default());
    house.step(0);
    let dropped = house.submit(ALICE, &long, 4);
    house.step(1);
    assert_eq!(house.status().n_ids_running, 1);
    // The second step stands at the gate: it is computed, and no other.
    drop(dropped);
    house.log.open_gate();
    let status = house.rest();
    assert_eq!((house.log.n_steps(), house.log.n_computed()), (2, 512));
    assert_eq!((status.n_ids_running, status.cells.evictable), (0, 512));

    let again = house.ask(ALICE, &long, 1);
    assert_eq!((again.n_cached(), again.done.cache.cause), (512, MissCause::Appended));
    assert_eq!(house.log.n_computed(), 900);
    assert_eq!(assert_exact(&house), 0);
}

#[test]
fn four_answers_on_one_pin_equal_solo_ones_and_its_cells_are_counted_once() {
    let policy = text(smollm2(), "House", 300);
    // Four copies of the pin would not fit.
    let house = house(Setup { n_cells: 1024, pins: vec![pin("house", &policy)], ..Setup::default() });
    assert_eq!(house.await_warm().cells.pinned, 300);
    house.step(0);
    let names = [("Kitchen", 20), ("Cellar", 25), ("Garage", 30), ("Attic", 35)];
    let prompts = names.map(|(name, n_tokens)| prompt(&[&policy, &text(smollm2(), name, n_tokens)]));
    let answers = prompts.each_ref().map(|prompt| house.submit(ALICE, prompt, 10));
    house.step(4);
    let during = house.status();
    assert_eq!((during.n_running, during.cells.pinned), (4, 300));
    house.log.open_gate();
    for (prompt, pending) in prompts.iter().zip(answers) {
        let answer = answer(pending);
        assert_eq!(answer.n_cached(), 300);
        assert_eq!(answer.text, solo_text(&prompt.tokens, 10));
    }
    assert_eq!(house.log.n_computed(), 300 + 20 + 25 + 30 + 35 + 4 * 9);
    assert_eq!(assert_exact(&house), 0);
    let status = house.rest();
    assert_eq!((status.cells.pinned, status.cells.evictable), (300, house.log.n_computed() - 300));
}

/// What the model says to a prompt alone, most likely tokens only, never an end.
fn solo_text(tokens: &[Token], max_tokens: usize) -> String {
    let (mut tokens, mut said) = (tokens.to_vec(), Vec::new());
    let vocab = smollm2().vocab();
    for _ in 0..max_tokens {
        let order: Vec<usize> = (0..tokens.len()).collect();
        let n = tokens.len();
        let logits = solo(smollm2(), KvType::Q8_0, &tokens, &order, n - 1..n).remove(0);
        let likely = (0..logits.len()).filter(|&id| !vocab.is_end(Token(id as i32)));
        let best = likely.max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a))).unwrap();
        tokens.push(Token(best as i32));
        vocab.piece(Token(best as i32), &mut said);
    }
    String::from_utf8_lossy(&said).into_owned()
}

/// Five questions to one document, planned as a client's would be.
#[test]
fn five_questions_to_one_document_compute_the_document_once() {
    let facts = |n: usize| format!("Lamp {n} stands in room {} and was bought in {}.\n", n % 9, 1990 + n * 3 % 35);
    let handbook = Document { title: "handbook".to_owned(), text: (0..28).map(facts).collect() };
    let profile = Profile {
        name: "house".to_owned(),
        system: "You answer questions about this house from its handbook.".to_owned(),
        tools: vec![],
        documents: vec![handbook],
        max_tokens: None,
    };
    let model = smollm2();
    let mut planner = Planner::new(model.vocab(), model.template(), "tiny".to_owned(), vec![profile]).unwrap();
    let head = planner.pins().unwrap().remove(0);
    let n_head = head.prompt.tokens.len();
    assert!((500..700).contains(&n_head), "{n_head} tokens");
    let house = house(Setup { pins: vec![Pin { name: head.name, prompt: head.prompt }], ..Setup::default() });
    house.await_warm();
    assert_eq!(house.log.n_computed(), n_head);

    let questions =
        ["Where is lamp 3?", "When was lamp 12 bought?", "Which lamps are in room 5?", "Where is lamp 7?", "Thanks."];
    let mut earlier: Vec<Vec<Token>> = Vec::new();
    let mut n_questions = 0;
    for question in questions {
        let planned = planner.plan(&request(question)).unwrap();
        let tokens = planned.prompt.tokens.clone();
        let common = |other: &Vec<Token>| other.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        let expected = earlier.iter().map(common).max().unwrap_or(n_head);
        assert!((n_head..n_head + 12).contains(&expected), "questions may begin alike");
        let answer = house.ask(ALICE, &planned.prompt, 1);
        assert_eq!(answer.n_cached(), expected, "{question}");
        n_questions += tokens.len() - expected;
        assert!(tokens.len() - expected < 24, "only the question was computed: {} tokens", tokens.len() - expected);
        earlier.push(tokens);
    }
    assert_eq!(house.log.n_computed(), n_head + n_questions);
    assert_eq!(assert_exact(&house), 0);
    assert_eq!(house.rest().pins[0].n_hits, 5);
}

fn request(question: &str) -> Request {
    Request {
        model: "house".to_owned(),
        messages: vec![Message::text(Role::User, question)],
        tools: vec![],
        sampling: Sampling::default(),
        max_tokens: None,
        stop: vec![],
        client: Client { name: "kitchen".to_owned(), salt: None, dialect: Dialect::OpenAi },
    }
}

/// Requests of two owners come at any time, share prefixes, go away, and take each other's cells: each logit that was used is
/// a solo run's, and in the end the cache knows each cell.
#[test]
fn whatever_happens_every_answer_is_the_solo_one() {
    let mut random = fastrand::Rng::with_seed(7);
    let documents = [("House", 180), ("Cellar", 120), ("Garage", 70)].map(|(name, n)| text(smollm2(), name, n));
    let questions = [("Kitchen", 18), ("Attic", 40), ("Hall", 70)].map(|(name, n)| text(smollm2(), name, n));
    // Too small for all documents and three answers.
    let house = house(Setup { n_cells: 512, parallel: 3, ..Setup::default() });
    house.step(0);
    let mut pending = Vec::new();
    let mut answers: Vec<(TokenPrompt, Answer)> = Vec::new();
    let (mut n_dropped, mut n_evictions) = (0, 0);
    for _ in 0..24 {
        let owner = if random.u8(0..4) == 0 { BOB } else { ALICE };
        let prompt = prompt(&[&documents[random.usize(0..3)], &questions[random.usize(0..3)]]);
        pending.push((prompt.clone(), house.submit(owner, &prompt, random.usize(1..8))));
        house.step(random.usize(0..7));
        if random.u8(0..6) == 0 {
            drop(pending.swap_remove(random.usize(0..pending.len())));
            n_dropped += 1;
        }
    }
    house.log.open_gate();
    for (prompt, pending) in pending {
        answers.push((prompt, answer(pending)));
    }
    let status = house.rest();
    n_evictions += status.cells.evictable;

    let mut by_prompt: HashMap<&[Token], Vec<&Answer>> = HashMap::new();
    for (prompt, answer) in &answers {
        by_prompt.entry(&prompt.tokens).or_default().push(answer);
    }
    let n_scattered = assert_exact(&house);
    println!("{} answers, {n_dropped} dropped, {n_scattered} of {} rows scattered, {} tokens computed, {n_evictions}", answers.len(), house.log.rows().len(), house.log.n_computed());
}
