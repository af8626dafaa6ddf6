//! The scheduler as others see it, over the simulated engine: what is computed, what is said, what is left behind.

mod drafts;
mod fairness;
mod rules;
mod stepped;
mod tiers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::mpsc;

use super::*;
use crate::engine::simulated::{Attention, ByteVocab, Faults, SimulatedModel};
use crate::engine::{Batch, BatchToken, SeqId, Special, Vocab};
use crate::request::{CacheUse, Done, Finish, MissCause, Token};

const ALICE: Owner = Owner::Private([1; 32]);
const BOB: Owner = Owner::Private([2; 32]);

struct House {
    handle: SchedulerHandle,
    faults: Faults,
    thread: Option<JoinHandle<()>>,
}

impl Drop for House {
    fn drop(&mut self) {
        self.faults.open_gate();
        self.handle.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the scheduler's thread panicked");
        }
    }
}

struct Setup {
    n_cells: usize,
    parallel: usize,
    queue: usize,
    pins: Vec<Pin>,
    attention: Attention,
    /// Whether even the first step waits for `open_gate`.
    is_gated: bool,
    lower: OpenLower,
    record: Recorder,
    speculation: Speculation,
    /// See `SimulatedModel::repeating`.
    repeats: Option<(usize, u64)>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            n_cells: 4096,
            parallel: 4,
            queue: 8,
            pins: Vec::new(),
            attention: Attention::Full,
            is_gated: false,
            lower: Box::new(|_, _| Lower::default()),
            record: Box::new(|_| {}),
            speculation: Speculation::Free,
            repeats: None,
        }
    }
}

fn try_house(setup: Setup) -> Result<House, StartError> {
    let mut model = SimulatedModel::new().attention(setup.attention);
    if let Some((period, odds)) = setup.repeats {
        model = model.repeating(period, odds);
    }
    let faults = model.faults();
    if setup.is_gated {
        faults.gate(0);
    }
    let options = Options {
        n_cells: setup.n_cells,
        parallel: setup.parallel,
        queue: setup.queue,
        kv_type: KvType::F16,
        threads: Threads::same(1),
        pins: setup.pins,
        record: setup.record,
        open_lower: setup.lower,
        speculation: setup.speculation,
    };
    let (handle, thread) = start(Arc::new(model), options)?;
    Ok(House { handle, faults, thread: Some(thread) })
}

fn house(setup: Setup) -> House {
    try_house(setup).unwrap()
}

fn tokens(text: &str) -> Vec<Token> {
    ByteVocab::new().tokenize(text, Special::Text)
}

fn pin(name: &str, text: &str) -> Pin {
    Pin::of_house(name, TokenPrompt { tokens: tokens(text), cuts: vec![] })
}

/// A text of `n` tokens that differs from every other letter's.
fn text(letter: char, n: usize) -> String {
    letter.to_string().repeat(n)
}

impl House {
    fn submit(&self, owner: Owner, prompt: &str, max_tokens: usize) -> mpsc::Receiver<Event> {
        self.try_submit(owner, prompt, max_tokens).unwrap()
    }

    fn try_submit(&self, owner: Owner, prompt: &str, max_tokens: usize) -> Result<mpsc::Receiver<Event>, SubmitError> {
        let (events, receiver) = mpsc::channel(4096);
        self.handle.submit(self.submission(owner, prompt, max_tokens, events))?;
        Ok(receiver)
    }

    fn submission(&self, owner: Owner, prompt: &str, max_tokens: usize, events: mpsc::Sender<Event>) -> Submission {
        Submission {
            prompt: TokenPrompt { tokens: tokens(prompt), cuts: vec![] },
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            rules: Arc::default(),
            n_logprobs: None,
            max_tokens: Some(max_tokens),
            stop: vec![],
            owner,
            adapters: AdapterSet::NONE,
            priority: Priority::default(),
            received: Instant::now(),
            label: Default::default(),
            events,
        }
    }

    fn ask(&self, owner: Owner, prompt: &str, max_tokens: usize) -> (String, Done) {
        finish(self.submit(owner, prompt, max_tokens))
    }

    fn await_status(&self, what: impl Fn(&Status) -> bool) -> Status {
        let begun = Instant::now();
        loop {
            let status = self.handle.status();
            if what(&status) {
                return status;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "never came: {status:?}");
            std::thread::yield_now();
        }
    }

    fn is_empty(&self) -> Status {
        let status = self.await_status(|status| status.n_running == 0 && status.n_waiting == 0);
        assert_eq!(
            (status.cells.held, status.cells.reserved, status.n_ids_running),
            (0, 0, 0),
            "nothing is left behind"
        );
        status
    }
}

fn finish(mut events: mpsc::Receiver<Event>) -> (String, Done) {
    let mut said = String::new();
    loop {
        match events.blocking_recv().expect("an answer ends with Done") {
            Event::Admitted(_) | Event::Logprobs(_) => {}
            Event::Text(text) => said += &text,
            Event::Done(done) => return (said, done),
            Event::Failed(error) => panic!("{error}"),
        }
    }
}

/// What a fresh engine says, one sequence alone.
fn cold(prompt: &str, max_tokens: usize) -> String {
    let model = SimulatedModel::new();
    let options = ContextOptions {
        n_cells: 1 << 14,
        n_seq_max: 1,
        n_batch: 1 << 14,
        kv_type: KvType::F16,
        threads: Threads::same(1),
    };
    let mut engine = model.open(&options).unwrap();
    let mut sampler =
        engine.sampler(&Sampling { temperature: 0.0, ..Sampling::default() }, &AnswerRules::default(), &[]).unwrap();
    let (mut pending, mut pos, mut said) = (tokens(prompt), 0, Vec::new());
    for _ in 0..max_tokens {
        let n = pending.len();
        let row = |(i, &token)| BatchToken { token, pos: pos + i, seq: SeqId(0), wants_logits: i + 1 == n };
        engine.decode(&Batch { tokens: pending.iter().enumerate().map(row).collect() }).unwrap();
        pos += n;
        let token = engine.sample(n - 1, &mut sampler).unwrap();
        if ByteVocab::new().is_end(token) {
            break;
        }
        ByteVocab::new().piece(token, &mut said);
        pending = vec![token];
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn a_second_question_computes_only_what_is_new() {
    let house = house(Setup::default());
    let document = text('d', 900);
    let first = house.ask(ALICE, &format!("{document}first?"), 8);
    assert_eq!(first.0, cold(&format!("{document}first?"), 8));
    assert_eq!((first.1.cache.n_cached, first.1.cache.cause), (0, MissCause::Cold));
    let second = house.ask(ALICE, &format!("{document}second?"), 8);
    assert_eq!(second.1.cache.n_cached, 900);
    assert_eq!(second.0, cold(&format!("{document}second?"), 8));
    let (_, repeated) = house.ask(ALICE, &format!("{document}second?"), 8);
    assert_eq!(
        repeated.cache,
        CacheUse { n_prompt: 907, n_cached: 906, n_restored: 0, cause: MissCause::Appended },
        "one token must be computed to have logits"
    );
    house.is_empty();
}

#[test]
fn a_conversation_goes_on_from_its_own_answer() {
    let house = house(Setup::default());
    let mut history = text('h', 300);
    for turn in 0..5 {
        let (said, done) = house.ask(ALICE, &history, 20);
        assert_eq!(said, cold(&history, 20), "turn {turn}");
        if turn > 0 {
            assert!(done.cache.n_cached + 8 >= done.cache.n_prompt - 1, "{done:?}");
        }
        // Lossy text of odd bytes is not what was said: such an answer is not continued.
        history =
            if said.contains('\u{fffd}') { format!("{history}next {turn}") } else { format!("{history}{said}{turn}") };
    }
    house.is_empty();
}

#[test]
fn one_owner_does_not_see_what_another_left() {
    let house = house(Setup::default());
    let prompt = text('s', 500);
    house.ask(ALICE, &prompt, 1);
    assert_eq!(house.ask(BOB, &prompt, 1).1.cache.n_cached, 0);
    assert_eq!(house.ask(BOB, &prompt, 1).1.cache.n_cached, 499);
}

#[test]
fn two_that_come_together_compute_their_prefix_once() {
    // Too small for two copies of the prefix.
    let house = house(Setup { n_cells: 1500, ..Setup::default() });
    house.faults.gate(0);
    let prefix = text('p', 1000);
    let (one, two) = (format!("{prefix} question one"), format!("{prefix} the second question"));
    let first = house.submit(ALICE, &one, 4);
    let second = house.submit(ALICE, &two, 4);
    house.faults.open_gate();
    let (first, second) = (finish(first), finish(second));
    assert_eq!((first.0, second.0), (cold(&one, 4), cold(&two, 4)));
    assert_eq!((first.1.cache.n_cached, second.1.cache.n_cached), (0, 1001));
    assert!(house.faults.n_computed() < 1000 + 13 + 20 + 8, "{}", house.faults.n_computed());
    house.is_empty();
}

#[test]
fn followers_go_on_when_their_leader_goes() {
    let house = house(Setup::default());
    house.faults.gate(0);
    let prefix = text('p', 1000);
    let prompts: Vec<String> = (0..4).map(|i| format!("{prefix} question {i}")).collect();
    let mut answers: Vec<_> = prompts.iter().map(|prompt| house.submit(ALICE, prompt, 4)).collect();
    // One step, after which all of them have come.
    house.faults.gate(1);
    house.await_status(|status| status.n_running == 4);
    drop(answers.remove(0));
    house.faults.open_gate();
    for (prompt, answer) in prompts[1..].iter().zip(answers) {
        assert_eq!(finish(answer).0, cold(prompt, 4));
    }
    // The leader's own end was not computed, the prefix once.
    assert!(house.faults.n_computed() <= 1000 + 3 * 16, "{}", house.faults.n_computed());
    house.is_empty();
}

#[test]
fn followers_never_wait_for_each_other() {
    let policy = text('p', 700);
    let setup = Setup { pins: vec![pin("house", &policy)], n_cells: 1300, is_gated: true, ..Setup::default() };
    let house = house(setup);
    // All come while the pin's first chunk is computed.
    house.await_status(|status| status.cells.held > 0 || status.cells.reserved > 0);
    let followers = ["one", "two"].map(|question| format!("{policy}{}{question}", text('a', 300)));
    let other = text('o', 500);
    let answers: Vec<_> = followers.iter().chain([&other]).map(|prompt| house.submit(ALICE, prompt, 4)).collect();
    // The pin leads the first, the first the second; the third takes the pin's cells, and the first is parked for want of them.
    house.faults.open_gate();
    for (prompt, answer) in followers.iter().chain([&other]).zip(answers) {
        assert_eq!(finish(answer).0, cold(prompt, 4));
    }
    house.is_empty();
}

#[test]
fn a_cancelled_prefill_leaves_what_it_computed() {
    let house = house(Setup::default());
    let prompt = text('c', 2000);
    house.faults.gate(2);
    let answer = house.submit(ALICE, &prompt, 4);
    house.await_status(|status| status.cells.held >= 512);
    drop(answer);
    house.faults.open_gate();
    house.is_empty();
    let n_computed = house.faults.n_computed();
    assert!((512..=768).contains(&n_computed), "it ended within one step: {n_computed}");
    assert_eq!(house.ask(ALICE, &prompt, 4).1.cache.n_cached, n_computed);
}

#[test]
fn a_full_queue_refuses_and_names_a_time() {
    let house = house(Setup { parallel: 1, queue: 2, ..Setup::default() });
    house.faults.gate(0);
    let running = house.submit(ALICE, &text('a', 600), 1);
    house.await_status(|status| status.n_running == 1);
    let waiting = [house.submit(ALICE, "b", 1), house.submit(ALICE, "c", 1)];
    let refused = house.try_submit(ALICE, "d", 1).unwrap_err();
    assert!(matches!(refused, SubmitError::Busy { retry_after, .. } if retry_after >= Duration::from_secs(1)));
    house.faults.open_gate();
    finish(running);
    waiting.into_iter().for_each(|answer| drop(finish(answer)));
    house.is_empty();
}

#[test]
fn together_means_all_or_none() {
    let house = house(Setup { parallel: 1, queue: 2, ..Setup::default() });
    house.faults.gate(0);
    let running = house.submit(ALICE, &text('a', 600), 1);
    house.await_status(|status| status.n_running == 1);
    let together = |n: usize| {
        let (submissions, answers): (Vec<_>, Vec<_>) = (0..n)
            .map(|_| {
                let (events, answer) = mpsc::channel(4096);
                (house.submission(ALICE, "b", 1, events), answer)
            })
            .unzip();
        house.handle.submit_together(submissions).map(|()| answers)
    };
    assert!(matches!(together(3), Err(SubmitError::Busy { .. })));
    let both = together(2).expect("none of the three was taken");
    house.faults.open_gate();
    finish(running);
    both.into_iter().for_each(|answer| drop(finish(answer)));
    house.is_empty();
}

#[test]
fn a_failed_step_ends_its_sequences_and_not_the_daemon() {
    let house = house(Setup::default());
    house.faults.fail_next_decodes(1);
    let mut answer = house.submit(ALICE, &text('f', 100), 4);
    let ended = std::iter::from_fn(|| answer.blocking_recv()).last();
    assert!(matches!(ended, Some(Event::Failed(_))), "{ended:?}");
    house.is_empty();
    assert_eq!(house.ask(ALICE, &text('f', 100), 4).0, cold(&text('f', 100), 4));
}

#[test]
fn answers_that_outgrow_the_cells_are_parked_and_end_as_cold_ones() {
    let house = house(Setup { n_cells: 1024, ..Setup::default() });
    let prompts: Vec<String> = "abcd".chars().map(|letter| text(letter, 100)).collect();
    let answers: Vec<_> = prompts.iter().map(|prompt| house.submit(ALICE, prompt, 400)).collect();
    for (prompt, answer) in prompts.iter().zip(answers) {
        assert_eq!(finish(answer).0, cold(prompt, 400));
    }
    house.is_empty();
}

#[test]
fn an_answer_that_fills_the_context_ends_with_length() {
    let house = house(Setup { n_cells: 512, ..Setup::default() });
    // Answers are random in length; one of these runs into the end.
    let finishes: Vec<Finish> = (0..8).map(|i| house.ask(ALICE, &text('l', 505 - i), 100).1.finish).collect();
    assert!(finishes.contains(&Finish::Length), "{finishes:?}");
    assert_eq!(house.ask(ALICE, &text('x', 512), 5).1.n_generated, 1, "a full context still says one token");
    house.is_empty();
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_and_the_next_one_answered() {
    let house = house(Setup { n_cells: 512, ..Setup::default() });
    let mut answer = house.submit(ALICE, &text('x', 513), 1);
    let expected = Event::Failed("prompt has 513 tokens, context holds 512".to_owned());
    assert_eq!(answer.blocking_recv(), Some(expected));
    assert_eq!(house.ask(ALICE, "?", 1).0, cold("?", 1));
    house.is_empty();
}

#[test]
fn pins_are_warmed_in_the_background_and_shared_by_all() {
    let policy = text('p', 700);
    let pins = vec![pin("house", &policy), pin("study", &format!("{policy}{}", text('s', 300)))];
    let house = house(Setup { pins, ..Setup::default() });
    let status = house.await_status(|status| status.pins.iter().all(|pin| pin.is_warm));
    assert_eq!(status.cells.pinned, 1000, "what they share is held once");
    assert_eq!(house.faults.n_computed(), 1000);
    for owner in [ALICE, BOB] {
        let (said, done) = house.ask(owner, &format!("{policy}who?"), 6);
        assert_eq!((done.cache.n_cached, said), (700, cold(&format!("{policy}who?"), 6)));
    }
    assert_eq!(house.is_empty().pins[0].n_hits, 2);
}

#[test]
fn a_pin_that_is_held_already_is_warm() {
    for attention in [Attention::Full, Attention::Window(64), Attention::Recurrent] {
        let policy = text('p', 300);
        let long = format!("{policy}{}", text('s', 100));
        let pins = vec![pin("study", &long), pin("house", &policy), pin("twin", &long)];
        let house = house(Setup { pins, attention, ..Setup::default() });
        house.await_status(|status| status.pins.iter().all(|pin| pin.is_warm));
        let (said, done) = house.ask(ALICE, &format!("{long}?"), 1);
        assert_eq!(done.cache.n_cached, 400);
        if attention == Attention::Full {
            assert_eq!(house.faults.n_computed(), 400 + 1);
            assert_eq!(said, cold(&format!("{long}?"), 1));
        }
        house.is_empty();
    }
}

#[test]
fn a_pin_gives_way_only_to_a_request_that_would_not_fit_and_comes_back() {
    let pins = vec![pin("house", &text('p', 700))];
    let house = house(Setup { pins, n_cells: 1300, ..Setup::default() });
    house.await_status(|status| status.pins[0].is_warm);
    for letter in "abcdef".chars() {
        house.ask(ALICE, &text(letter, 300), 4);
        assert_eq!(house.handle.status().cells.pinned, 700, "one-shots take each other's cells");
    }
    let long = text('z', 1200);
    assert_eq!(house.ask(ALICE, &long, 4).0, cold(&long, 4));
    house.await_status(|status| status.pins[0].is_warm);
    assert_eq!(house.ask(BOB, &format!("{}?", text('p', 700)), 1).1.cache.n_cached, 700);
}

#[test]
fn a_request_follows_a_pin_that_is_still_warming() {
    let policy = text('p', 1000);
    let house = house(Setup { pins: vec![pin("house", &policy)], n_cells: 1600, ..Setup::default() });
    let prompt = format!("{policy}?");
    let (said, done) = house.ask(ALICE, &prompt, 3);
    assert_eq!((said, done.cache.n_cached), (cold(&prompt, 3), 1000));
    assert!(house.faults.n_computed() <= 1000 + 1 + 3);
}

#[test]
fn a_pin_that_cannot_fit_refuses_the_start() {
    let Err(error) = try_house(Setup { pins: vec![pin("house", &text('p', 4000))], ..Setup::default() }) else {
        panic!("it started");
    };
    insta::assert_snapshot!(error, @"pins need 4000 cells and 512 must stay for requests, the context has 4096: 416 too few; that is 6656 bytes of K/V: raise model.context or shorten the profiles");
}

#[test]
fn opaque_memories_reuse_whole_sequences_only() {
    for attention in [Attention::Window(64), Attention::Recurrent] {
        let policy = text('p', 300);
        let house = house(Setup { pins: vec![pin("house", &policy)], attention, ..Setup::default() });
        house.await_status(|status| status.pins[0].is_warm);
        let first = format!("{policy} first question");
        let (_, done) = house.ask(ALICE, &first, 1);
        assert_eq!(done.cache.n_cached, 300, "a pinned whole is copied");
        let next = format!("{first} and another");
        let (_, done) = house.ask(ALICE, &next, 1);
        assert_eq!(done.cache.n_cached, first.len(), "a whole is taken over at its end");
        let (_, done) = house.ask(ALICE, &format!("{first} differently"), 1);
        assert_eq!((done.cache.n_cached, done.cache.cause), (300, MissCause::Checkpoint), "and cut nowhere");
        house.is_empty();
    }
}

#[test]
fn many_one_shots_need_no_more_ids_than_there_are() {
    let house = house(Setup { n_cells: 1 << 14, ..Setup::default() });
    for i in 0..600 {
        let prompt = format!("{i:04} {}", text('o', 4));
        assert_eq!(house.ask(ALICE, &prompt, 2).0, cold(&prompt, 2));
    }
    house.is_empty();
}

#[test]
fn a_new_pin_takes_the_place_of_the_old_one_and_nobody_is_disturbed() {
    let (monday, tuesday) = (text('m', 300), text('t', 320));
    let house = house(Setup { pins: vec![pin("house", &monday), pin("kids", &text('k', 50))], ..Setup::default() });
    house.await_status(|status| status.pins.iter().all(|pin| pin.is_warm));
    let running = house.submit(ALICE, &format!("{monday} Alice asks"), 40);
    house.handle.repin(vec![pin("house", &tuesday)]);
    house.await_status(|status| status.pins[0].n_tokens == 320 && status.pins.iter().all(|pin| pin.is_warm));
    let (_, done) = finish(running);
    assert_ne!(done.finish, Finish::Error);
    let (_, done) = house.ask(BOB, &format!("{tuesday} Bob asks"), 4);
    assert_eq!(done.cache.n_cached, 320);
    // The old one is nobody's pin any more: its cells may be taken.
    let status = house.await_status(|status| status.n_running == 0 && status.cells.held == 0);
    assert_eq!(status.cells.pinned, 320 + 50);
    // Equal pins are left alone.
    let n_computed = house.faults.n_computed();
    house.handle.repin(vec![pin("house", &tuesday), pin("unknown", "x")]);
    let (_, done) = house.ask(BOB, &format!("{tuesday} Bob asks"), 4);
    assert_eq!(house.faults.n_computed() - n_computed, done.n_generated.min(3) + 1);
}

#[test]
fn a_pin_that_is_being_warmed_can_be_replaced() {
    let house = house(Setup { pins: vec![pin("house", &text('m', 3000))], is_gated: true, ..Setup::default() });
    house.await_status(|status| status.pins[0].n_tokens == 3000);
    house.handle.repin(vec![pin("house", &text('t', 100))]);
    house.faults.open_gate();
    let status = house.await_status(|status| status.pins[0].is_warm);
    assert_eq!((status.pins[0].n_tokens, status.cells.pinned), (100, 100));
}

#[test]
fn new_pins_that_do_not_fit_are_refused_and_the_old_ones_stay() {
    let house = house(Setup { n_cells: 1024, pins: vec![pin("house", &text('m', 200))], ..Setup::default() });
    house.await_status(|status| status.pins[0].is_warm);
    house.handle.repin(vec![pin("house", &text('t', 900))]);
    let (_, done) = house.ask(BOB, &format!("{} asks", text('m', 200)), 4);
    assert_eq!(done.cache.n_cached, 200);
}

#[test]
fn answers_of_a_client_that_is_forgotten_end_and_leave_nothing() {
    let house = house(Setup { parallel: 2, is_gated: true, ..Setup::default() });
    let mut alices: Vec<_> = ["a", "aa", "aaa"].map(|name| house.submit(ALICE, &name.repeat(40), 400)).into();
    let bobs = house.submit(BOB, &text('b', 50), 20);
    house.faults.gate(9);
    house.await_status(|status| status.n_running == 2 && status.n_waiting == 2 && status.cells.held > 0);
    let mut forgetting = Box::pin(house.handle.forget(Some(ALICE)));
    assert!((&mut forgetting).now_or_never().is_none(), "it stands in the inbox");
    house.faults.open_gate();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(forgetting).unwrap().n_answers, 3);
    // When that is reported, they have ended.
    for events in &mut alices {
        let last = std::iter::from_fn(|| events.try_recv().ok()).last();
        assert_eq!(last, Some(Event::Failed("what this client left was forgotten while it was being answered".into())));
    }
    assert_eq!(finish(bobs).0, cold(&text('b', 50), 20));
    let status = house.is_empty();
    assert!(status.cells.evictable <= 70, "Bob's alone are left: {:?}", status.cells);
    assert_eq!(house.ask(ALICE, &"a".repeat(40), 2).1.cache.n_cached, 0);
}
