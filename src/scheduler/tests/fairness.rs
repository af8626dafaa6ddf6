//! Whose turn it is, in exact steps: classes, clients' shares, places given up and gone on with.
//!
//! Each turn of the scheduler is at most one step, so that turns until an answer's end, with one token to say, are the steps until
//! its first token.

use super::stepped::{Asked, Client, Stepped};
use super::*;
use crate::scheduler::batch::CHUNK;
use crate::scheduler::sequence::Work;

const CAROL: Owner = Owner::Private([3; 32]);
const DAVE: Owner = Owner::Private([4; 32]);

fn setup() -> Setup {
    Setup { n_cells: 1 << 14, speculation: Speculation::Off, ..Setup::default() }
}

/// `n` tokens like nobody else's, answered with one.
fn asked(owner: Owner, priority: Priority, letter: char, n: usize) -> Asked {
    Asked { owner, priority, ..Asked::new(&text(letter, n), 1) }
}

fn turns(house: &mut Stepped, n: usize) {
    for _ in 0..n {
        house.turn();
    }
}

/// Turns until `client` has its answer, which must be the right one.
fn turns_until_answered(house: &mut Stepped, client: &mut Client) -> usize {
    let mut n_turns = 0;
    while client.end.is_none() {
        house.turn();
        client.read();
        n_turns += 1;
        assert!(!client.has_failed && n_turns < 1_000, "it is answered");
    }
    assert_eq!(client.said, cold(&client.asked.prompt, client.asked.max_tokens));
    n_turns
}

#[test]
fn a_question_during_anothers_long_prefill_waits_one_step_more_at_most() {
    for n_tokens in [20, 256, 600, 7 * CHUNK] {
        let n_own = n_tokens.div_ceil(CHUNK);
        for n_before in [0, 1, 4, 7, 8] {
            let mut house = Stepped::start(setup());
            let _long = house.submit(asked(ALICE, Priority::Interactive, 'a', 6_000));
            turns(&mut house, n_before);
            let mut question = house.submit(asked(BOB, Priority::Interactive, 'q', n_tokens));
            // One step in eight is for who has waited longest.
            let n_turns = usize::from((n_before..n_before + n_own).any(|step| step % 8 == 7));
            assert_eq!(turns_until_answered(&mut house, &mut question), n_own + n_turns, "{n_tokens} after {n_before}");
            assert_eq!(house.faults.n_computed(), (n_before + n_turns) * CHUNK + n_tokens);
        }
    }
}

#[test]
fn a_long_prefill_that_gave_way_computes_nothing_twice() {
    let mut house = Stepped::start(setup());
    let mut long = house.submit(asked(ALICE, Priority::Interactive, 'a', 2_000));
    for n in 1..4 {
        turns(&mut house, 1);
        let mut question = house.submit(asked(BOB, Priority::Interactive, 'q', 256 * n));
        turns_until_answered(&mut house, &mut question);
    }
    turns_until_answered(&mut house, &mut long);
    // The questions begin with one another.
    assert_eq!(house.faults.n_computed(), 2_000 + 256 * 3);
}

#[test]
fn memories_that_take_turns_hold_neither_streams_nor_questions_up() {
    for attention in [Attention::Window(64), Attention::Recurrent] {
        let mut house = Stepped::start(Setup { attention, ..setup() });
        let streams: Vec<Client> = "xyz"
            .chars()
            .map(|letter| house.submit(Asked { owner: CAROL, ..Asked::new(&text(letter, 30), 400) }))
            .collect();
        turns(&mut house, 4);
        let _long = house.submit(asked(ALICE, Priority::Interactive, 'a', 4_000));
        let (mut n_seen, mut n_before) = (0, n_generated(&house));
        for _ in 0..16 {
            turns(&mut house, 2);
            let now = n_generated(&house);
            for (key, n) in &now {
                let before = n_before.iter().find(|(other, _)| other == key);
                assert!(before.is_none_or(|(_, before)| n > before), "{attention:?}: a token in two steps");
                n_seen += usize::from(before.is_some());
            }
            n_before = now;
        }
        assert!(n_seen > 8, "{attention:?}: {n_seen}, or nothing was shown");
        let long = house.scheduler.running.iter().find(|running| running.sequence.n_prompt == 4_000).unwrap();
        assert!(long.n_past() >= 12 * CHUNK, "it goes on beside them: {}", long.n_past());
        drop(streams);
    }
}

/// What those who speak have said so far: their keys, and tokens.
fn n_generated(house: &Stepped) -> Vec<(u64, usize)> {
    let running = house.scheduler.running.iter().map(|running| &running.sequence);
    let speaking = running.filter(|sequence| sequence.has_spoken());
    speaking.map(|sequence| (sequence.key, sequence.tokens.len() - sequence.n_prompt)).collect()
}

#[test]
fn every_stream_has_a_token_in_every_step_whatever_is_computed_beside_it() {
    let mut house = Stepped::start(setup());
    let _streams = ['x', 'y'].map(|letter| house.submit(Asked { owner: CAROL, ..Asked::new(&text(letter, 30), 400) }));
    turns(&mut house, 1);
    let _longs = [(ALICE, 'a'), (BOB, 'b')]
        .map(|(owner, letter)| house.submit(asked(owner, Priority::Interactive, letter, 6_000)));
    let mut n_seen = 0;
    for _ in 0..20 {
        let before = n_generated(&house);
        turns(&mut house, 1);
        let after = n_generated(&house);
        for (key, n) in after {
            n_seen += usize::from(before.contains(&(key, n - 1)));
            assert!(before.is_empty() || before.contains(&(key, n - 1)), "one token a step");
        }
    }
    assert!(n_seen > 10, "{n_seen}, or nothing was shown");
}

#[test]
fn one_client_with_ten_requests_does_not_outweigh_another_with_one() {
    let mut house = Stepped::start(setup());
    let mut alices: Vec<Client> =
        ('a'..='j').map(|letter| house.submit(asked(ALICE, Priority::Interactive, letter, 1_000))).collect();
    turns(&mut house, 3);
    assert_eq!(house.scheduler.running.len(), 4, "all places are hers");
    let mut bob = house.submit(asked(BOB, Priority::Interactive, 'q', 900));
    assert_eq!(
        turns_until_answered(&mut house, &mut bob),
        4,
        "one of hers gives way, and all of them while he computes"
    );
    house.finish(&mut alices);
    for alice in &alices {
        assert_eq!(alice.said, cold(&alice.asked.prompt, 1));
    }
    assert_eq!(house.faults.n_computed(), 10 * 1_000 + 900, "who gave way went on with what was computed");
}

#[test]
fn a_lower_class_gives_its_place_to_a_higher_one_at_once_and_goes_on_later() {
    let classes = [
        (Priority::Background, Priority::Normal),
        (Priority::Background, Priority::Interactive),
        (Priority::Normal, Priority::Interactive),
    ];
    for (low, high) in classes {
        let mut house = Stepped::start(Setup { parallel: 1, ..setup() });
        let mut job = house.submit(asked(ALICE, low, 'a', 4_000));
        turns(&mut house, 5);
        let mut question = house.submit(asked(ALICE, high, 'q', 100));
        assert_eq!(turns_until_answered(&mut house, &mut question), 1);
        house.finish(std::slice::from_mut(&mut job));
        assert_eq!(job.said, cold(&job.asked.prompt, 1));
        assert_eq!(house.faults.n_computed(), 4_000 + 100);
        // The other way round it waits.
        let mut question = house.submit(asked(ALICE, high, 'r', 1_000));
        turns(&mut house, 1);
        let mut job = house.submit(asked(BOB, low, 'b', 10));
        assert_eq!(turns_until_answered(&mut house, &mut question), 3);
        assert_eq!(turns_until_answered(&mut house, &mut job), 1);
    }
}

#[test]
fn a_job_that_gives_way_in_the_middle_of_its_answer_says_the_same() {
    let mut house = Stepped::start(Setup { parallel: 1, ..setup() });
    let (prompt, n) = ("abcdefgh".chars().map(|letter| text(letter, 60)), 200);
    for prompt in prompt {
        let mut job = house.submit(Asked { priority: Priority::Background, ..Asked::new(&prompt, n) });
        for _ in 0..4 {
            turns(&mut house, 5);
            let mut question = house.submit(asked(BOB, Priority::Interactive, 'q', 100));
            turns_until_answered(&mut house, &mut question);
        }
        house.finish(std::slice::from_mut(&mut job));
        job.read();
        assert_eq!(job.said, cold(&prompt, n));
    }
}

#[test]
fn whoever_waits_longest_is_let_in_after_eight_others_and_keeps_its_place() {
    let mut house = Stepped::start(Setup { parallel: 1, ..setup() });
    let mut letters = ('A'..='Z').cycle();
    let mut ask = |house: &mut Stepped| {
        let letter = letters.next().unwrap();
        house.submit(Asked { owner: BOB, ..Asked::new(&format!("{letter} {}", text(letter, 100)), 1) })
    };
    // There is always a question waiting.
    let mut questions = vec![ask(&mut house), ask(&mut house)];
    let mut job = house.submit(asked(ALICE, Priority::Background, 'a', 1_000));
    let (mut n_answered, mut n_before) = (0, None);
    while job.end.is_none() {
        house.turn();
        for question in &mut questions {
            question.read();
        }
        let n_open = questions.len();
        questions.retain(|question| question.end.is_none());
        n_answered += n_open - questions.len();
        while questions.len() < 2 {
            questions.push(ask(&mut house));
        }
        job.read();
        let is_running = house.scheduler.running.iter().any(|running| running.sequence.n_prompt == 1_000);
        if is_running && n_before.is_none() {
            n_before = Some(n_answered);
        }
        assert!(n_answered < 100, "it starves");
    }
    assert_eq!(job.said, cold(&job.asked.prompt, 1));
    // The first two had come before it.
    assert_eq!((n_before, n_answered), (Some(2 + 8), 2 + 8));
    house.finish(&mut questions);
}

#[test]
fn for_want_of_cells_jobs_are_parked_before_answers_however_old() {
    // Long answers, which outgrow what they were promised together.
    let long = |n_cells| Stepped::start(Setup { n_cells, repeats: Some((8, 1_000)), ..setup() });
    let classes = [(Priority::Background, "hall "), (Priority::Normal, "oven "), (Priority::Interactive, "lamp ")];
    let asked = classes.map(|(priority, word)| Asked { priority, ..Asked::new(&word.repeat(20), 400) });
    let mut house = long(1_100);
    // The job is the oldest.
    let mut clients = asked.clone().map(|asked| {
        let client = house.submit(asked);
        house.turn();
        client
    });
    let mut seen: Vec<Vec<Priority>> = Vec::new();
    while !house.is_idle() {
        house.turn();
        clients.iter_mut().for_each(Client::read);
        seen.push(house.scheduler.running.iter().map(|running| running.sequence.priority).collect());
    }
    let n_with = |class| seen.iter().filter(|running| running.contains(&class)).count();
    let [job, normal, interactive] =
        classes.map(|(class, _)| seen.iter().rposition(|running| running.contains(&class)));
    assert!(interactive.max(normal) < job, "{interactive:?} {normal:?} {job:?}: the job ends last");
    assert_eq!(n_with(Priority::Interactive), interactive.unwrap() + 1, "it is never parked");
    assert!(n_with(Priority::Background) < job.unwrap() + 1, "the job is");
    for (client, asked) in clients.iter().zip(asked) {
        assert_eq!(client.answer(), long(4_096).ask(asked).answer(), "and none of them fails");
    }
}

#[test]
fn followers_lend_their_class_through_one_another() {
    let mut house = Stepped::start(setup());
    let prefix = text('p', 1_000);
    let of = |priority, end: &str| Asked { priority, ..Asked::new(&format!("{prefix}{end}"), 1) };
    let _long = house.submit(asked(BOB, Priority::Normal, 'b', 6_000));
    turns(&mut house, 1);
    let _job = house.submit(of(Priority::Background, &text('x', 2_000)));
    turns(&mut house, 1);
    // It follows the job, and the question follows it behind that.
    let middle = format!("{}middle", text('y', 400));
    let _middle = house.submit(of(Priority::Background, &middle));
    turns(&mut house, 1);
    let mut question = house.submit(of(Priority::Interactive, &format!("{}?", text('y', 400))));
    // Four chunks with the end of the prefix, three behind it with the end of what two have in common, and its own.
    let n_turns = turns_until_answered(&mut house, &mut question);
    assert_eq!(n_turns, 4 + 3 + 1, "all that it follows goes before Bob's");
}

/// A house's policy; everybody stands on it.
const N_PIN: usize = 1_600;

#[test]
fn four_members_at_once_on_a_warm_pin_compute_their_own_suffixes_alone() {
    let policy = text('p', N_PIN);
    let mut house = Stepped::start(Setup { pins: vec![pin("house", &policy)], ..setup() });
    while !house.scheduler.pins.is_warm(0) {
        house.turn();
    }
    let mut n_expected = house.faults.n_computed();
    assert_eq!(n_expected, N_PIN);
    let members = [ALICE, BOB, CAROL, DAVE];
    let mut histories = members.map(|_| policy.clone());
    // What each left computed the last time.
    let mut left: [Vec<Token>; 4] = Default::default();
    for turn in 0..5 {
        let mut clients = Vec::new();
        for (member, (&owner, history)) in members.iter().zip(&mut histories).enumerate() {
            *history += &format!("\n{member} asks {turn}: where is the cat?\n");
            clients.push(house.submit(Asked { owner, ..Asked::new(history, 12) }));
        }
        house.finish(&mut clients);
        for (member, client) in clients.iter().enumerate() {
            let (said, generated, n_generated, finish) = client.answer();
            assert_eq!(said, cold(&histories[member], 12));
            let prompt = tokens(&histories[member]);
            let n_held = left[member].iter().zip(&prompt).take_while(|(held, asked)| held == asked).count();
            let cache = client.end.as_ref().unwrap().cache;
            assert_eq!(cache.n_cached, n_held.max(N_PIN), "member {member}, turn {turn}");
            assert_eq!(turn > 0, n_held > N_PIN, "the conversation is known from the second turn on");
            // The last token of an answer that is cut off is said and not computed.
            let n_decoded = n_generated - usize::from(finish == Finish::Length);
            n_expected += prompt.len() - cache.n_cached + n_decoded;
            left[member] = [&prompt[..], &generated[..n_decoded]].concat();
            // Lossy text of odd bytes is not what was said.
            if !said.contains('\u{fffd}') {
                histories[member] += &said;
            }
        }
        assert_eq!(house.faults.n_computed(), n_expected, "turn {turn}");
    }
}

#[test]
fn the_last_places_of_a_queue_are_for_those_who_are_waited_for() {
    let house = house(Setup { parallel: 1, queue: 4, ..Setup::default() });
    house.faults.gate(0);
    let running = house.submit(ALICE, &text('a', 600), 1);
    house.await_status(|status| status.n_running == 1);
    let submit = |priority| {
        let (events, answer) = mpsc::channel(4096);
        let submission = Submission { priority, ..house.submission(BOB, "b", 1, events) };
        house.handle.submit(submission).map(|()| answer)
    };
    let [background, normal, interactive] = [Priority::Background, Priority::Normal, Priority::Interactive];
    let taken = [background, background, background, normal, normal, interactive, interactive].map(submit);
    assert_eq!(taken.each_ref().map(Result::is_ok), [true, true, false, true, false, true, false]);
    house.faults.open_gate();
    finish(running);
    taken.into_iter().flatten().for_each(|answer| drop(finish(answer)));
    house.is_empty();
}

#[test]
fn whoever_is_refused_is_told_when_what_is_ahead_will_be_computed() {
    let mut house = Stepped::start(Setup { parallel: 1, ..setup() });
    let pinned = text('p', 1_000);
    house.ask(Asked::new(&pinned, 1));
    let _running = house.submit(Asked::new(&text('a', 2_000), 1));
    turns(&mut house, 1);
    // 999 of its tokens are held.
    let _waiting = house.submit(Asked::new(&format!("{pinned}{}", text('w', 500)), 1));
    house.scheduler.publish_status();
    let status = house.scheduler.status.borrow().clone();
    let is_answer = |work: &Work<_>| matches!(work, Work::Answer(_));
    assert_eq!(house.scheduler.running.iter().filter(|running| is_answer(&running.sequence.work)).count(), 1);
    assert_eq!(status.n_tokens_ahead, (2_000 - CHUNK) + 500);
    assert!(status.prefill_tokens_per_second > 0);
}
