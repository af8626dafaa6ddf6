//! Exactness: what is shared gives the logits of what is computed alone.

use hob::request::{MissCause, Token, TokenPrompt};

use super::house::{ALICE, BOB, House, Setup, answer, prompt, smollm2, text};
use super::recording::Row;
use super::solo::max_delta;

/// Prefix, then a question each. The questions are shorter than the 64 tokens from which attention works in tiles of cells:
/// there, cells of others in between move the sums.
struct Case {
    prefix: Vec<Token>,
    questions: [Vec<Token>; 2],
}

impl Case {
    fn new(n_prefix: usize) -> Case {
        let [prefix, one, two] = [("House", n_prefix), ("Kitchen", 24), ("Cellar", 31)]
            .map(|(name, n_tokens)| text(smollm2(), name, n_tokens));
        Case { prefix, questions: [one, two] }
    }

    fn prompt(&self, index: usize) -> TokenPrompt {
        prompt(&[&self.prefix, &self.questions[index]])
    }
}

fn house() -> House {
    House::of(smollm2(), Setup::default())
}

/// The row of a prompt computed alone in a house of its own, and its answer.
fn cold(prompt: &TokenPrompt, max_tokens: usize) -> (Row, String) {
    let house = house();
    let answer = house.ask(ALICE, prompt, max_tokens);
    assert_eq!((answer.n_cached(), answer.done.cache.cause), (0, MissCause::Cold));
    let row = house.log.row(&prompt.tokens);
    assert!(row.is_alone());
    house.rest();
    (row, answer.text)
}

#[test]
fn a_second_question_gets_the_logits_of_a_cold_one() {
    let case = Case::new(300);
    let house = house();
    house.ask(ALICE, &case.prompt(0), 8);
    let second = house.ask(ALICE, &case.prompt(1), 8);
    assert_eq!((second.n_cached(), second.done.cache.cause), (300, MissCause::Appended));
    let (row, text) = cold(&case.prompt(1), 8);
    assert!(house.log.row(&case.prompt(1).tokens).logits == row.logits);
    assert_eq!(second.text, text);
    // The last token of an answer is said and not computed.
    assert_eq!(house.log.n_computed(), 300 + 24 + 31 + 2 * 7);
    house.rest();
}

#[test]
fn a_prefix_shared_while_it_is_computed_gives_the_logits_of_a_cold_one() {
    // The leader's question is so long that it does not fit into the step that computes the follower's.
    let mut case = Case::new(600);
    case.questions[0] = text(smollm2(), "Kitchen", 240);
    let house = house();
    house.step(0);
    let leader = house.submit(ALICE, &case.prompt(0), 1);
    house.step(0);
    let follower = house.submit(ALICE, &case.prompt(1), 1);
    house.log.open_gate();
    let (leader, follower) = (answer(leader), answer(follower));
    assert_eq!((leader.n_cached(), follower.n_cached()), (0, 600));
    assert_eq!(house.log.n_computed(), 600 + 240 + 31);
    let row = house.log.row(&case.prompt(1).tokens);
    assert!(row.is_alone());
    assert!(row.logits == cold(&case.prompt(1), 1).0.logits);
    house.rest();
}

#[test]
fn a_follower_inherits_a_cancelled_leaders_work_and_gets_the_logits_of_a_cold_one() {
    let case = Case::new(600);
    let house = house();
    house.step(0);
    let leader = house.submit(ALICE, &case.prompt(0), 1);
    house.step(0);
    let follower = house.submit(ALICE, &case.prompt(1), 1);
    // The leader's first chunk; its second one stands at the gate and is computed though its client has gone.
    house.step(1);
    drop(leader);
    house.log.open_gate();
    assert_eq!(answer(follower).n_cached(), 512);
    assert_eq!(house.log.n_computed(), 600 + 31);
    let prompt = case.prompt(1);
    assert!(house.log.row(&prompt.tokens).logits == cold(&prompt, 1).0.logits);
    house.rest();
}

/// The rounding of f16 K/V depends on company, so sharing may move logits as far as company moves cold ones.
#[test]
fn company_moves_shared_logits_no_further_than_cold_ones() {
    let mut case = Case::new(300);
    case.questions = [text(smollm2(), "Kitchen", 90), text(smollm2(), "Cellar", 110)];
    let stranger = prompt(&[&text(smollm2(), "Garage", 300), &text(smollm2(), "Attic", 90)]);
    let wanted = case.prompt(1);
    let alone = cold(&wanted, 1).0.logits;

    // Cold, with strangers: before it, with it.
    let before = house();
    before.ask(BOB, &stranger, 8);
    before.ask(ALICE, &wanted, 1);
    let beside = house();
    beside.step(0);
    let answers = [beside.submit(BOB, &stranger, 1), beside.submit(ALICE, &wanted, 1)];
    beside.log.open_gate();
    answers.into_iter().for_each(|pending| drop(answer(pending)));
    let cold_deltas = [&before, &beside].map(|house| max_delta(&house.log.row(&wanted.tokens).logits, &alone));

    // Shared: behind a finished one, with its leader.
    let behind = house();
    behind.ask(ALICE, &case.prompt(0), 8);
    behind.ask(ALICE, &wanted, 1);
    let led = house();
    led.step(0);
    let answers = [led.submit(ALICE, &case.prompt(0), 1), led.submit(ALICE, &wanted, 1)];
    led.log.open_gate();
    answers.into_iter().for_each(|pending| drop(answer(pending)));
    assert!(!led.log.row(&wanted.tokens).is_alone());
    let shared_deltas = [&behind, &led].map(|house| max_delta(&house.log.row(&wanted.tokens).logits, &alone));

    eprintln!("moved by company: cold {cold_deltas:?}, shared {shared_deltas:?}");
    // Twice, because each number is one sample of rounding, and which is larger depends on the processor. Wrong cells move
    // logits by 5 and more.
    let largest = |deltas: [f32; 2]| deltas[0].max(deltas[1]);
    assert!(largest(shared_deltas) <= 2.0 * largest(cold_deltas));
}
