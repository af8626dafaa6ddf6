//! Drafts change how soon an answer comes and nothing else: not a token of it, not a cell, not what others have.

use proptest::prelude::*;

use super::stepped::{Asked, Client, Stepped};
use super::*;
use crate::kv::EvictionCause;
use crate::request::Scale;

/// Says what it said eight tokens before, mostly.
const REPEATING: (usize, u64) = (8, 12);

/// A prompt that it goes on with.
const PROMPT: &str = "kitchen kitchen kitchen ";

fn stepped(n_cells: usize, speculation: Speculation, attention: Attention) -> Stepped {
    let repeats = Some(REPEATING);
    let setup = Setup { n_cells, parallel: 3, queue: 64, attention, speculation, repeats, ..Setup::default() };
    Stepped::start(setup)
}

impl Stepped {
    /// Drafted and accepted tokens of all requests that have ended.
    fn drafted(&self) -> (usize, usize) {
        self.records.lock().unwrap().iter().fold((0, 0), |(n, n_right), record| match record {
            Record::Request(record) => (n + record.n_drafted, n_right + record.n_accepted),
            _ => (n, n_right),
        })
    }

    fn n_evictions(&self) -> usize {
        let records = self.records.lock().unwrap();
        records.iter().filter(|record| matches!(record, Record::Eviction(_))).count()
    }
}

/// What is answered without drafts, by a house that does nothing else.
fn plain(asked: &Asked) -> (String, Vec<Token>, usize, Finish) {
    let asked = Asked { capacity: 64, ..asked.clone() };
    stepped(4_096, Speculation::Off, Attention::Full).ask(asked).answer()
}

/// What can come between two steps.
#[derive(Clone, Debug)]
enum Op {
    Submit(Asked),
    Turns(usize),
    /// The client of that number goes away.
    Cancel(usize),
    Park,
    Evict,
    FailStep,
}

fn asked() -> impl Strategy<Value = Asked> {
    let owner = prop_oneof![Just(ALICE), Just(BOB)];
    let adapters = prop_oneof![Just(AdapterSet::NONE), Just(AdapterSet::NONE.with(0, Scale::ONE))];
    // At most 72 tokens, so that each fits its 160 cells with all it may say. Periods of eight and others, so that the answers repeat and deviate.
    let prompt = prop_oneof!["[a-c]{8,40}", "(kitchen |bedroom |on off ){3,8}", "[a-z]{20,60}"];
    let seed = proptest::option::of(1..9u32);
    let stop = proptest::option::of("[a-z]{1,3}").prop_map(|stop| stop.into_iter().collect());
    (owner, adapters, prompt, 1..80usize, seed, stop, 4..24usize).prop_map(
        |(owner, adapters, prompt, max_tokens, seed, stop, capacity)| Asked {
            owner,
            adapters,
            seed,
            stop,
            capacity,
            ..Asked::new(&prompt, max_tokens)
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => asked().prop_map(Op::Submit),
        8 => (1..30usize).prop_map(Op::Turns),
        1 => any::<usize>().prop_map(Op::Cancel),
        1 => Just(Op::Park),
        2 => Just(Op::Evict),
        1 => Just(Op::FailStep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_between_steps_answers_and_cells_are_those_without_drafts(
        ops in proptest::collection::vec(op(), 1..24), n_cells in 160..400usize
    ) {
        let mut house = stepped(n_cells, Speculation::Free, Attention::Full);
        let mut clients: Vec<Client> = Vec::new();
        for op in ops {
            match op {
                Op::Submit(asked) => clients.push(house.submit(asked)),
                Op::Turns(n) => {
                    for _ in 0..n {
                        house.turn();
                        clients.iter_mut().for_each(Client::read);
                    }
                }
                Op::Cancel(n) if !clients.is_empty() => {
                    let n = n % clients.len();
                    clients[n].events = None;
                }
                Op::Cancel(_) => {}
                Op::Park => {
                    if let Some(newest) = house.scheduler.running.len().checked_sub(1) {
                        house.scheduler.park(newest);
                    }
                }
                Op::Evict => {
                    let step::Scheduler { engine, cache, .. } = &mut house.scheduler;
                    cache.evict(engine, EvictionCause::Cells);
                }
                Op::FailStep => house.faults.fail_next_decodes(1),
            }
            house.check();
        }
        house.finish(&mut clients);
        prop_assert_eq!(house.scheduler.cache.cells().held, 0);
        for client in clients.iter().filter(|client| client.events.is_some() && !client.has_failed) {
            prop_assert_eq!(client.answer(), plain(&client.asked));
        }
    }
}

#[test]
fn an_answer_that_repeats_takes_a_fraction_of_the_steps() {
    let asked = Asked::new(PROMPT, 200);
    let mut house = stepped(1_024, Speculation::Free, Attention::Full);
    let mut clients = [house.submit(asked.clone())];
    let n_turns = house.finish(&mut clients);
    assert_eq!(clients[0].answer(), plain(&asked));
    let (_, _, n_generated, _) = clients[0].answer();
    let (n_drafted, n_accepted) = house.drafted();
    assert!(n_turns * 3 < n_generated, "{n_turns} turns for {n_generated} tokens");
    assert!(n_accepted < n_drafted, "{n_accepted} of {n_drafted}: some are wrong, as the model deviates at times");
    assert_eq!(n_turns + n_accepted, n_generated, "each step gives one token and those that were drafted right");
}

#[test]
fn nothing_is_drafted_where_it_is_off_or_the_memory_cannot_be_cut() {
    let asked = || Asked::new(PROMPT, 100);
    for (speculation, attention) in [
        (Speculation::Off, Attention::Full),
        (Speculation::Free, Attention::Window(16)),
        (Speculation::Free, Attention::Recurrent),
    ] {
        let mut house = stepped(1_024, speculation, attention);
        house.ask(asked());
        assert_eq!(house.drafted(), (0, 0), "{speculation:?}, {attention:?}");
    }
}

#[test]
fn while_two_decode_nothing_is_drafted() {
    let mut house = stepped(1_024, Speculation::Free, Attention::Full);
    let one = Asked::new(PROMPT, 60);
    let other = Asked { owner: BOB, ..Asked::new("lock.garage, lock.garage", 60) };
    let mut clients = [one.clone(), other.clone()].map(|asked| house.submit(asked));
    while house.scheduler.running.len() == 2 || !house.scheduler.waiting.is_empty() {
        house.turn();
        clients.iter_mut().for_each(Client::read);
    }
    assert_eq!(house.drafted(), (0, 0));
    house.finish(&mut clients);
    assert_eq!(clients.map(|client| client.answer()), [one, other].map(|asked| plain(&asked)));
}

#[test]
fn nothing_is_drafted_beyond_what_may_be_said() {
    for max_tokens in 1..12 {
        let mut house = stepped(1_024, Speculation::Free, Attention::Full);
        house.ask(Asked::new(PROMPT, max_tokens));
        // The prompt's step and each later one give a token themselves.
        let (n_drafted, _) = house.drafted();
        let n_owed = max_tokens.saturating_sub(2);
        assert!(n_drafted <= n_owed * (n_owed + 1) / 2, "{n_drafted} drafted for {max_tokens}");
    }
}

#[test]
fn no_draft_evicts_what_the_answer_leaves_alone() {
    let guest = || Asked { owner: BOB, ..Asked::new("garden gate", 5) };
    let n_guest = tokens("garden gate").len() + plain(&guest()).2 - 1;
    let unstopped = plain(&Asked::new(PROMPT, 250)).0;
    // Answers that end here and there, some of them in the middle of a draft, though they may go on for much longer.
    for last in (40..140).step_by(3) {
        let stop = unstopped.chars().skip(last).take(5).collect();
        let asked = Asked { stop: vec![stop], ..Asked::new(PROMPT, 250) };
        let (_, _, n_generated, finish) = plain(&asked);
        assert_eq!(finish, Finish::Stop);
        let n_cells = n_guest + tokens(&asked.prompt).len() + n_generated;
        for speculation in [Speculation::Off, Speculation::Free] {
            let mut house = stepped(n_cells, speculation, Attention::Full);
            house.ask(guest());
            house.ask(asked.clone());
            assert_eq!(house.n_evictions(), 0, "{speculation:?}, {asked:?}");
        }
    }
}
