//! What is computed and what is not, in exact numbers, and that nobody's answer changes by it. On q8_0 K/V, where rounding
//! depends on nothing but the order of a sequence's own cells: any company gives the same bits.

use std::collections::HashMap;

use hob::engine::{KvType, Model};
use hob::prompt::{Document, Moment, Planner, Profile};
use hob::request::{
    Client, Dialect, Event, Message, MissCause, Priority, Request, Role, Sampling, Token, TokenPrompt, Wanted,
};
use hob::scheduler::Pin;

use super::house::{ALICE, Answer, BOB, House, Setup, answer, prompt, smollm2, text};
use super::solo::{assert_rows_equal_solo, solo_text};

fn house(setup: Setup) -> House {
    House::of(smollm2(), Setup { kv_type: KvType::Q8_0, ..setup })
}

fn pin(name: &str, tokens: &[Token]) -> Pin {
    Pin::of_house(name, TokenPrompt { tokens: tokens.to_vec(), cuts: vec![] })
}

/// All rows that the house computed, against solo runs; how many had their cells out of order.
fn assert_exact(house: &House) -> usize {
    assert_rows_equal_solo(smollm2(), KvType::Q8_0, house.log.rows())
}

#[test]
fn two_that_come_together_compute_their_prefix_once() {
    let [prefix, one, two] =
        [("House", 300), ("Kitchen", 20), ("Cellar", 25)].map(|(name, n)| text(smollm2(), name, n));
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

/// So short that following would not pay: both compute, and the second gives its cells up for the first one's.
#[test]
fn the_same_short_prompt_computed_twice_is_held_once() {
    let short = prompt(&[&text(smollm2(), "House", 24)]);
    let house = house(Setup::default());
    house.step(0);
    let first = house.submit(ALICE, &text_alone("Attic"), 1);
    house.step(0);
    let twins = [house.submit(ALICE, &short, 4), house.submit(ALICE, &short, 4)];
    house.log.open_gate();
    answer(first);
    let twins = twins.map(answer);
    assert_eq!(twins.each_ref().map(Answer::n_cached), [0, 0]);
    assert_eq!(twins[0].text, twins[1].text);
    assert_eq!(house.log.n_computed(), 10 + 2 * (24 + 3));
    assert_eq!(house.rest().cells.evictable, 10 + 24 + 3);
    let longer = prompt(&[&short.tokens, &text(smollm2(), "Cellar", 12)]);
    assert_eq!(house.ask(ALICE, &longer, 2).n_cached(), 24);
    assert_exact(&house);
    house.rest();
}

fn text_alone(name: &str) -> TokenPrompt {
    prompt(&[&text(smollm2(), name, 10)])
}

#[test]
fn a_request_dropped_during_prefill_frees_its_sequence_within_one_step() {
    let long = prompt(&[&text(smollm2(), "House", 600)]);
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
    assert_eq!(house.log.n_computed(), 600);
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
        assert_eq!(answer.text, solo_text(smollm2(), KvType::Q8_0, &prompt.tokens, 10));
    }
    assert_eq!(house.log.n_computed(), 300 + 20 + 25 + 30 + 35 + 4 * 9);
    assert_eq!(assert_exact(&house), 0);
    let status = house.rest();
    assert_eq!((status.cells.pinned, status.cells.evictable), (300, house.log.n_computed() - 300));
}

/// Five questions to one document, planned as a client's would be.
#[test]
fn five_questions_to_one_document_compute_the_document_once() {
    let facts = |n: usize| format!("Lamp {n} stands in room {} and was bought in {}.\n", n % 9, 1990 + n * 3 % 35);
    let handbook = Document { title: "handbook".to_owned(), text: (0..28).map(facts).collect() };
    let profile = Profile {
        name: "house".to_owned(),
        system: "You answer questions about this house from its handbook.".to_owned(),
        documents: vec![handbook],
        ..Profile::default()
    };
    let model = smollm2();
    let mut planner = Planner::new(model.vocab(), model.template(), "tiny".to_owned(), vec![profile]).unwrap();
    let head = planner.pins().unwrap().remove(0);
    let n_head = head.prompt.tokens.len();
    assert!((500..700).contains(&n_head), "{n_head} tokens");
    let house = house(Setup { pins: vec![Pin::of_house(head.name, head.prompt)], ..Setup::default() });
    house.await_warm();
    assert_eq!(house.log.n_computed(), n_head);

    let questions =
        ["Where is lamp 3?", "When was lamp 12 bought?", "Which lamps are in room 5?", "Where is lamp 7?", "Thanks."];
    let mut earlier: Vec<Vec<Token>> = Vec::new();
    let mut n_questions = 0;
    for question in questions {
        let planned = planner.plan(&request(question), &Moment::utc(0)).unwrap();
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

/// Requests of two owners come at any time, share prefixes, go away, and take each other's cells: each logit that was used is
/// a solo run's.
#[test]
fn whatever_happens_every_answer_is_the_solo_one() {
    let documents = [("House", 90), ("Cellar", 60), ("Garage", 33)].map(|(name, n)| text(smollm2(), name, n));
    let questions = [("Kitchen", 9), ("Attic", 20), ("Hall", 35)].map(|(name, n)| text(smollm2(), name, n));
    let mut random = fastrand::Rng::with_seed(7);
    // Too small for all documents and three answers.
    let house = house(Setup { n_cells: 256, parallel: 3, ..Setup::default() });
    house.step(0);
    let mut pending = Vec::new();
    let mut n_dropped = 0;
    for _ in 0..24 {
        let owner = if random.u8(0..4) == 0 { BOB } else { ALICE };
        let prompt = prompt(&[random.choice(&documents).unwrap(), random.choice(&questions).unwrap()]);
        let n_tokens = random.usize(1..6);
        pending.push((prompt.tokens.clone(), n_tokens, house.submit(owner, &prompt, n_tokens)));
        house.step(random.usize(0..7));
        if random.u8(0..6) == 0 {
            drop(pending.swap_remove(random.usize(0..pending.len())));
            n_dropped += 1;
        }
    }
    house.log.open_gate();
    let n_answers = pending.len();
    let answers: Vec<_> =
        pending.into_iter().map(|(tokens, n_tokens, pending)| (tokens, n_tokens, answer(pending))).collect();
    house.rest();

    let rows = house.log.rows();
    let n_scattered = assert_exact(&house);
    eprintln!("{n_answers} answers, {n_dropped} dropped, {n_scattered} of {} rows from scattered cells", rows.len());
    assert!(n_answers > 16 && n_dropped > 2, "it was a test of both");
    assert!(n_scattered > 10 && n_scattered + 10 < rows.len(), "it was a test of both");
    // The plain solo run, cells in order, says the same, but for near ties among rows from scattered cells.
    let mut said: HashMap<&[Token], String> = HashMap::new();
    let mut n_equal = 0;
    for (tokens, n_tokens, answer) in &answers {
        let solo = said.entry(tokens).or_insert_with(|| solo_text(smollm2(), KvType::Q8_0, tokens, 5));
        assert_eq!(answer.done.n_generated, *n_tokens);
        let own = rows.iter().filter(|row| row.tokens.starts_with(tokens));
        if solo.starts_with(&answer.text) {
            n_equal += 1;
        } else {
            assert!(own.into_iter().any(|row| !row.order.is_sorted()), "{:?} is not {solo:?}", answer.text);
        }
    }
    eprintln!("{n_equal} of {n_answers} texts equal those of cells in order");
    assert!(2 * n_equal > n_answers);

    // The cache's count is the truth: one sequence gets every cell there is, and one more is refused.
    let all = prompt(&[&text(smollm2(), "Roof", 256)]);
    assert_eq!(house.ask(BOB, &all, 1).n_cached(), 0);
    assert_eq!(house.rest().cells.evictable, 256);
    let mut refused = house.submit(BOB, &prompt(&[&text(smollm2(), "Moat", 257)]), 1);
    let refusal = refused.blocking_recv();
    assert_eq!(refusal, Some(Event::Failed("prompt has 257 tokens, context holds 256".to_owned())));
}

#[test]
fn an_answer_that_was_parked_goes_on_as_if_alone() {
    let prompts = [("Kitchen", 20), ("Cellar", 25)].map(|(name, n)| prompt(&[&text(smollm2(), name, n)]));
    // The first is promised 20 + 256 cells and the second 25 + 200. When the first needs more, the second gives way, and loses
    // what it computed.
    let lengths = [340, 200];
    let house = house(Setup { n_cells: 512, ..Setup::default() });
    house.step(0);
    let first = house.submit(ALICE, &prompts[0], lengths[0]);
    house.step(120);
    let second = house.submit(ALICE, &prompts[1], lengths[1]);
    house.log.open_gate();
    for ((prompt, pending), n_tokens) in prompts.iter().zip([first, second]).zip(lengths) {
        let answer = answer(pending);
        assert_eq!(answer.done.n_generated, n_tokens);
        // All tokens but the last, which was said and not computed: none twice, none left out.
        let rows = house.log.rows();
        let own = rows.iter().filter(|row| row.tokens.starts_with(&prompt.tokens));
        let longest = own.max_by_key(|row| row.tokens.len()).unwrap();
        assert_eq!(longest.tokens.len(), prompt.tokens.len() + n_tokens - 1);
        let mut said = Vec::new();
        longest.tokens[prompt.tokens.len()..].iter().for_each(|&token| smollm2().vocab().piece(token, &mut said));
        assert!(answer.text.starts_with(String::from_utf8_lossy(&said).trim_end_matches('\u{fffd}')));
    }
    let n_computed_once = 20 + 25 + 339 + 199;
    assert!(house.log.n_computed() > n_computed_once, "one was parked, lost its cells, and was computed again");
    assert_exact(&house);
    house.rest();
}
