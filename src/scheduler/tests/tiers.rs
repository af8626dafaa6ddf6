//! The tiers below the cells, from outside: what leaves the cells comes back, as itself, to its owner, without being computed.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::*;
use crate::kv::tiers::ram_bytes;
use crate::kv::{Kept, Segment, SegmentKey};
use crate::snapshots::{Busy, Found, Reporter, Swept};

/// Bytes that the simulated engine's cells take in RAM, index and all, with room for heads.
const CELL: u64 = 24 + 4;

fn ram(bytes: u64) -> OpenLower {
    Box::new(move |_, _| Lower { budgets: Budgets { ram: bytes, disk: 0, learned: 0 }, ..Lower::default() })
}

/// A disk in memory, which several houses may have one after the other.
#[derive(Clone, Default)]
struct Shelf {
    files: Arc<Mutex<BTreeMap<SegmentKey, Segment>>>,
    /// Reads find something else than was written.
    is_broken: Arc<std::sync::atomic::AtomicBool>,
    /// Reads say that they took a day.
    is_slow: Arc<std::sync::atomic::AtomicBool>,
}

struct ShelfDoor {
    shelf: Shelf,
    report: Reporter,
}

fn n_file_bytes(segment: &Segment) -> u64 {
    // What the index takes it for before it is told, so that the sums of a status do not depend on when it is asked.
    ram_bytes(&segment.header) + 4096
}

impl Shelf {
    fn open(&self, ram: u64, disk: u64) -> OpenLower {
        let shelf = self.clone();
        Box::new(move |_, report| {
            let files = shelf.files.lock().unwrap();
            let found = files.values().map(|segment| Found {
                header: segment.header.clone(),
                n_file_bytes: n_file_bytes(segment),
                used: std::time::UNIX_EPOCH,
            });
            report(Report::Swept(Swept { found: found.collect(), ..Swept::default() }));
            drop(files);
            let budgets = Budgets { ram, disk, learned: disk / 4 };
            Lower { budgets, disk: Some(Box::new(ShelfDoor { shelf, report })), wait: Duration::from_secs(60) }
        })
    }

    fn n_tokens(&self, kept: Kept) -> usize {
        let files = self.files.lock().unwrap();
        let kept = files.values().filter(|segment| segment.header.kept == kept);
        kept.map(|segment| segment.header.tokens.len()).sum()
    }

    fn await_tokens(&self, kept: Kept, n: usize) {
        let begun = Instant::now();
        while self.n_tokens(kept) != n {
            assert!(begun.elapsed() < Duration::from_secs(60), "{kept:?}: {} and not {n}", self.n_tokens(kept));
            std::thread::yield_now();
        }
    }
}

impl Disk for ShelfDoor {
    fn write(&self, segment: Segment) -> Result<(), Busy> {
        let (key, n_file_bytes) = (segment.header.key, n_file_bytes(&segment));
        self.shelf.files.lock().unwrap().insert(key, segment);
        (self.report)(Report::Written { key, n_file_bytes, time: Duration::from_micros(1) });
        Ok(())
    }

    fn read(&self, key: SegmentKey) -> Result<(), Busy> {
        let is_broken = self.shelf.is_broken.load(Ordering::SeqCst);
        let found = self.shelf.files.lock().unwrap().get(&key).cloned().filter(|_| !is_broken);
        (self.report)(match found {
            Some(segment) => {
                let is_slow = self.shelf.is_slow.load(Ordering::SeqCst);
                let time = if is_slow { Duration::from_secs(24 * 60 * 60) } else { Duration::from_micros(1) };
                Report::Read { segment, time }
            }
            None => Report::ReadFailed { key, reason: "a test broke it".to_owned() },
        });
        Ok(())
    }

    fn remove(&self, key: SegmentKey) -> Result<(), Busy> {
        self.shelf.files.lock().unwrap().remove(&key);
        Ok(())
    }

    fn touch(&self, _key: SegmentKey) {}

    fn forget(&self, _: Option<Owner>) -> Result<(), Busy> {
        Ok(())
    }
}

impl House {
    /// Waits until nothing is being copied any more: what is saved does not change from then on.
    fn await_saved(&self, n_segments: usize) -> Status {
        self.await_status(|status| status.lower.n_segments >= n_segments)
    }
}

/// A document of its own for each `i`, `n` tokens long.
fn document(i: usize, n: usize) -> String {
    format!("document {i:04} ").repeat(n / 14 + 1)[..n].to_owned()
}

#[test]
fn what_lost_its_cells_comes_back_from_ram_and_says_the_same() {
    let house = house(Setup { n_cells: 1500, lower: ram(1 << 20), ..Setup::default() });
    for i in 0..4 {
        house.ask(ALICE, &document(i, 700), 4);
    }
    let n_computed = house.faults.n_computed();
    for i in 0..4 {
        let prompt = format!("{}?", document(i, 700));
        let (said, done) = house.ask(ALICE, &prompt, 4);
        assert_eq!(said, cold(&prompt, 4));
        assert!(done.cache.n_cached >= 700, "{i}: {:?}", done.cache);
        assert_eq!(done.cache.cause, MissCause::Appended);
        if i == 0 {
            assert!(done.cache.n_restored >= 688, "{:?}", done.cache);
        }
    }
    assert!(house.faults.n_computed() - n_computed <= 4 * 5);
    assert_eq!(house.ask(BOB, &document(0, 700), 4).1.cache.n_cached, 0, "it is Alice's");
    house.is_empty();
}

/// Twelve conversations, on which llama-server with a 120 MiB cache reuses 0 % in round two.
#[test]
fn twelve_conversations_with_room_for_four_compute_only_their_new_turns() {
    let policy = text('p', 430);
    let pins = vec![pin("house", &policy)];
    let house = house(Setup { n_cells: 430 + 4 * 430 + 600, pins, lower: ram(1 << 22), ..Setup::default() });
    house.await_status(|status| status.pins[0].is_warm);
    let mut histories: Vec<String> = (0..12).map(|i| format!("{policy}{}", document(i, 420))).collect();
    for history in &mut histories {
        let (said, _) = house.ask(ALICE, history, 8);
        history.push_str(if said.contains('\u{fffd}') { "" } else { &said });
        history.push_str(" And?");
    }
    let (mut n_prompt, mut n_cached, mut n_restored) = (0, 0, 0);
    for history in &histories {
        let (said, done) = house.ask(ALICE, history, 8);
        assert_eq!(said, cold(history, 8));
        assert!(done.cache.n_cached >= 850, "all but the new turn: {:?}", done.cache);
        n_prompt += done.cache.n_prompt;
        n_cached += done.cache.n_cached;
        n_restored += done.cache.n_restored;
    }
    assert!(
        100 * n_cached >= 98 * n_prompt && n_restored >= 6 * 400,
        "{n_cached} of {n_prompt}, {n_restored} restored"
    );
    let (_, household) = house.ask(BOB, &format!("{policy}who?"), 1);
    assert!(100 * household.cache.n_cached >= 99 * 430, "{:?}", household.cache);
    house.is_empty();
}

#[test]
fn a_turn_on_a_shared_prefix_is_saved_as_its_own_tokens_alone() {
    let policy = text('p', 3000);
    let shelf = Shelf::default();
    let pins = vec![pin("house", &policy)];
    let house = house(Setup { n_cells: 8192, pins, lower: shelf.open(1 << 20, 1 << 30), ..Setup::default() });
    shelf.await_tokens(Kept::Pin, 3000);
    let n_file_bytes: u64 = shelf.files.lock().unwrap().values().map(n_file_bytes).sum();
    let before = house.await_status(|status| status.lower.disk == n_file_bytes).lower;
    assert_eq!(before.ram, 0, "a pin passes through RAM to disk");
    house.ask(ALICE, &format!("{policy}{}", text('q', 300)), 1);
    let status = house.await_saved(before.n_segments + 1);
    let n_bytes = status.lower.ram as f64;
    assert!((n_bytes / (300.0 * CELL as f64 + 512.0) - 1.0).abs() < 0.05, "{n_bytes} bytes");
    // A second conversation stands on the same prefix and stores it no second time.
    house.ask(BOB, &format!("{policy}{}", text('r', 300)), 1);
    let status = house.await_saved(before.n_segments + 2);
    assert!(status.lower.ram as f64 <= 2.05 * (300.0 * CELL as f64 + 512.0));
    assert_eq!(status.lower.disk, before.disk);
}

/// As where a large model has to be read first. What was computed meanwhile has its file, the old or a new one.
#[test]
fn a_disk_that_tells_late_what_it_holds_is_used_from_then_on() {
    let [policy, other] = [text('p', 900), text('q', 700)];
    let pins = || vec![pin("house", &policy), pin("garage", &other)];
    let shelf = Shelf::default();
    let first = house(Setup { pins: pins(), lower: shelf.open(1 << 20, 1 << 30), ..Setup::default() });
    shelf.await_tokens(Kept::Pin, 1600);
    first.ask(ALICE, &text('a', 300), 1);
    first.await_saved(3);
    first.ask(ALICE, &format!("{}!", text('a', 300)), 1);
    drop(first);
    assert!(shelf.n_tokens(Kept::Private) >= 300);

    let (late, told) = std::sync::mpsc::sync_channel::<Box<dyn FnOnce() + Send>>(1);
    let lower: OpenLower = Box::new({
        let shelf = shelf.clone();
        move |opened, report| {
            let report: Arc<Mutex<Reporter>> = Arc::new(Mutex::new(report));
            let held: Arc<Mutex<Vec<Report>>> = Arc::default();
            let (to_hold, to_tell, open) = (held.clone(), report.clone(), Arc::new(Mutex::new(false)));
            let is_open = open.clone();
            let reporter: Reporter = Box::new(move |told| {
                if *is_open.lock().unwrap() {
                    (to_tell.lock().unwrap())(told);
                } else {
                    to_hold.lock().unwrap().push(told);
                }
            });
            let lower = shelf.open(1 << 20, 1 << 30)(opened, reporter);
            let tell = move || {
                *open.lock().unwrap() = true;
                held.lock().unwrap().drain(..).for_each(|told| (report.lock().unwrap())(told));
            };
            late.send(Box::new(tell)).unwrap();
            Lower { wait: Duration::ZERO, ..lower }
        }
    });
    let again = house(Setup { pins: pins(), lower, ..Setup::default() });
    again.await_status(|status| status.pins.iter().all(|pin| pin.is_warm));
    assert_eq!(again.faults.n_computed(), 1600, "nobody waited");
    (told.recv().unwrap())();
    again.await_status(|status| status.lower.n_segments >= 3);
    let (_, done) = again.ask(ALICE, &format!("{}?", text('a', 300)), 1);
    assert!(done.cache.n_restored >= 290, "{:?}", done.cache);
    drop(again);
    assert_eq!(shelf.n_tokens(Kept::Pin), 1600);
    let third = house(Setup { pins: pins(), lower: shelf.open(1 << 20, 1 << 30), ..Setup::default() });
    third.await_status(|status| status.pins.iter().all(|pin| pin.is_warm));
    assert_eq!(third.faults.n_computed(), 0);
}

#[test]
fn a_pin_is_written_when_warm_and_restored_first_after_a_restart() {
    let policy = text('p', 1500);
    let shelf = Shelf::default();
    let setup = || Setup { pins: vec![pin("house", &policy)], lower: shelf.open(0, 1 << 30), ..Setup::default() };
    let first = house(setup());
    shelf.await_tokens(Kept::Pin, 1500);
    drop(first);
    let again = house(setup());
    let prompt = format!("{policy}who?");
    let (said, done) = again.ask(ALICE, &prompt, 3);
    assert_eq!((said, done.cache.n_cached), (cold(&prompt, 3), 1500));
    assert!(again.faults.n_computed() <= 4 + 3, "{}", again.faults.n_computed());
    again.is_empty();
    drop(again);
    // Another pin is configured: the old one's file goes.
    let other = text('o', 600);
    let changed = house(Setup { pins: vec![pin("house", &other)], ..setup() });
    changed.await_status(|status| status.pins[0].is_warm);
    shelf.await_tokens(Kept::Pin, 600);
}

#[test]
fn a_file_that_cannot_be_read_is_a_named_miss_and_goes() {
    let document = document(1, 900);
    let shelf = Shelf::default();
    let setup = || Setup { n_cells: 1100, lower: shelf.open(1 << 20, 1 << 30), ..Setup::default() };
    let first = house(setup());
    first.ask(ALICE, &document, 1);
    // Only what came back is worth a file.
    first.ask(ALICE, &format!("{document}?"), 1);
    first.await_saved(1);
    drop(first);
    assert!(shelf.n_tokens(Kept::Private) >= 900, "the daemon's end writes what is worth it");
    shelf.is_broken.store(true, Ordering::SeqCst);
    let again = house(setup());
    let prompt = format!("{document}!");
    let (said, done) = again.ask(ALICE, &prompt, 3);
    assert_eq!((said, done.cache.n_cached), (cold(&prompt, 3), 0));
    assert_eq!(done.cache.cause, MissCause::RestoreFailed);
    again.await_status(|_| shelf.n_tokens(Kept::Private) == 0);
    let (_, done) = again.ask(ALICE, &prompt, 3);
    assert_eq!(done.cache.n_cached, 900, "computed anew, it is there again");
    again.is_empty();
}

#[test]
fn a_restart_brings_conversations_back_from_disk_with_no_ram_at_all() {
    let document = document(1, 900);
    let shelf = Shelf::default();
    let setup = || Setup { lower: shelf.open(0, 1 << 30), ..Setup::default() };
    let first = house(setup());
    first.ask(ALICE, &document, 1);
    first.ask(ALICE, &format!("{document}?"), 1);
    first.await_saved(1);
    drop(first);
    let again = house(setup());
    let prompt = format!("{document}? And then?");
    let (said, done) = again.ask(ALICE, &prompt, 3);
    assert_eq!(said, cold(&prompt, 3));
    assert!(done.cache.n_cached >= 900 && done.cache.n_restored == done.cache.n_cached, "{:?}", done.cache);
    assert_eq!(again.ask(BOB, &prompt, 3).1.cache.n_cached, 0);
    assert_eq!(again.handle.status().lower.ram, 0);
    again.is_empty();
}

#[test]
fn a_restore_that_fails_half_way_goes_on_by_computing() {
    for is_short in [false, true] {
        let house = house(Setup { n_cells: 1200, lower: ram(1 << 20), ..Setup::default() });
        let document = document(1, 900);
        house.ask(ALICE, &document, 1);
        house.await_saved(1);
        house.ask(BOB, &text('b', 1000), 1);
        house.faults.gate(0);
        // The third piece fails.
        let prompt = format!("{document}?");
        if is_short {
            house.faults.shorten_next_restores(1);
        } else {
            house.faults.fail_next_restores(1);
        }
        let answer = house.submit(ALICE, &prompt, 3);
        house.faults.open_gate();
        let (said, done) = finish(answer);
        assert_eq!((said, done.cache.cause), (cold(&prompt, 3), MissCause::RestoreFailed), "{:?}", done.cache);
        house.is_empty();
        assert_eq!(house.ask(ALICE, &prompt, 3).1.cache.n_cached, 900, "the broken one is not tried again");
    }
}

/// A disk whose reads take longer than computing: it is measured once, then computing is chosen and said to be faster.
#[test]
fn what_is_computed_faster_than_read_is_computed() {
    let document = document(1, 900);
    let shelf = Shelf::default();
    let setup = || Setup { n_cells: 1100, lower: shelf.open(0, 1 << 30), ..Setup::default() };
    let first = house(setup());
    first.ask(ALICE, &document, 1);
    first.ask(ALICE, &format!("{document}?"), 1);
    first.await_saved(1);
    drop(first);
    shelf.is_slow.store(true, Ordering::SeqCst);
    let again = house(setup());
    let ask = |question: &str| {
        let prompt = format!("{document}{question}");
        let (said, done) = again.ask(ALICE, &prompt, 1);
        assert_eq!(said, cold(&prompt, 1));
        // What was computed leaves the cells again.
        again.ask(BOB, &text('b', 1000), 1);
        done.cache
    };
    assert!(ask(" one").n_restored >= 900, "what was never measured is tried");
    let cache = ask(" two");
    assert_eq!((cache.n_cached, cache.cause), (0, MissCause::RestoreSlower));
    again.is_empty();
}

#[test]
fn one_that_is_cancelled_while_it_is_restored_leaves_what_is_back() {
    let house = house(Setup { n_cells: 1200, lower: ram(1 << 20), ..Setup::default() });
    let document = document(1, 1000);
    house.ask(ALICE, &document, 1);
    house.await_saved(1);
    house.ask(BOB, &text('b', 1000), 1);
    // Another decodes behind the gate, so that each step, with one piece in it, is let through alone.
    house.faults.gate(1);
    let other = house.submit(BOB, "?", 50);
    house.await_status(|status| status.n_running == 1);
    let answer = house.submit(ALICE, &format!("{document}?"), 3);
    house.faults.gate(2);
    house.await_status(|status| status.cells.held >= 256);
    drop(answer);
    house.faults.open_gate();
    drop(finish(other));
    house.is_empty();
    let (said, done) = house.ask(ALICE, &format!("{document}!"), 3);
    assert_eq!((said, done.cache.n_cached), (cold(&format!("{document}!"), 3), 1000));
}

#[test]
fn one_that_is_restored_has_followers() {
    // Too small for two copies of the prefix.
    let house = house(Setup { n_cells: 1500, lower: ram(1 << 20), ..Setup::default() });
    let document = document(1, 1000);
    house.ask(ALICE, &document, 1);
    house.await_saved(1);
    house.ask(BOB, &text('b', 1200), 1);
    let n_computed = house.faults.n_computed();
    house.faults.gate(0);
    let prompts = ["one?", "another?"].map(|question| format!("{document}{question}"));
    let answers: Vec<_> = prompts.iter().map(|prompt| house.submit(ALICE, prompt, 3)).collect();
    house.faults.open_gate();
    for (prompt, answer) in prompts.iter().zip(answers) {
        let (said, done) = finish(answer);
        assert_eq!((said, done.cache.n_cached), (cold(prompt, 3), 1000));
    }
    assert!(house.faults.n_computed() - n_computed <= 4 + 8 + 6);
    house.is_empty();
}

#[test]
fn a_document_that_branches_inside_a_saved_one_is_restored_up_to_the_branch() {
    for at in [100, 255, 256, 257, 300, 511, 512, 513, 700] {
        let house = house(Setup { n_cells: 1300, lower: ram(1 << 20), ..Setup::default() });
        let document = document(1, 900);
        house.ask(ALICE, &document, 1);
        house.await_saved(1);
        house.ask(BOB, &text('b', 1200), 1);
        let prompt = format!("{}other words?", &document[..at]);
        let (said, done) = house.ask(ALICE, &prompt, 3);
        assert_eq!((said, done.cache.n_cached, done.cache.n_restored), (cold(&prompt, 3), at, at));
        house.is_empty();
    }
}

#[test]
fn larger_than_ram_is_answered_and_not_stored_and_the_miss_says_so() {
    let house = house(Setup { n_cells: 1300, lower: ram(300 * CELL), ..Setup::default() });
    let document = document(1, 900);
    assert_eq!(house.ask(ALICE, &document, 3).0, cold(&document, 3));
    house.ask(BOB, &text('b', 1200), 1);
    assert_eq!(house.is_empty().lower.n_segments, 0);
    let (said, done) = house.ask(ALICE, &document, 3);
    assert_eq!((said, done.cache.n_cached, done.cache.cause), (cold(&document, 3), 0, MissCause::TooLarge));
}

#[test]
fn one_shots_leave_pin_and_conversation_alone_and_bytes_in_their_budget() {
    let policy = text('p', 430);
    let shelf = Shelf::default();
    let (sender, records) = std::sync::mpsc::sync_channel(1 << 16);
    let budget = 3 * 500 * CELL;
    let pins = vec![pin("house", &policy)];
    let house = house(Setup {
        n_cells: 430 + 3 * 560,
        pins,
        lower: shelf.open(budget, 1 << 30),
        record: Box::new(move |record| drop(sender.send(record))),
        ..Setup::default()
    });
    shelf.await_tokens(Kept::Pin, 430);
    let mut talk = format!("{policy}{}", document(0, 400));
    for _ in 0..3 {
        house.ask(ALICE, &talk, 1);
        talk += " And then, please?";
    }
    for i in 1..=100 {
        let (_, done) = house.ask(BOB, &format!("{policy}{}", document(i, 500)), 1);
        assert!(done.cache.n_cached >= 430, "{i}: {:?}", done.cache);
        let status = house.handle.status();
        assert!(status.lower.ram <= budget, "{status:?}");
        assert_eq!(status.cells.pinned, 430);
    }
    let (said, done) = house.ask(ALICE, &talk, 3);
    assert_eq!(said, cold(&talk, 3));
    assert!(done.cache.n_prompt - done.cache.n_cached <= 19, "the conversation is still there: {:?}", done.cache);
    house.is_empty();
    drop(house);
    // What left each tier was told, one record each.
    let evictions: Vec<_> = records
        .iter()
        .filter_map(|record| match record {
            Record::Eviction(eviction) => Some(eviction),
            _ => None,
        })
        .collect();
    let of = |tier: &str| evictions.iter().filter(|eviction| eviction.tier == tier).map(|e| e.n_tokens).sum::<usize>();
    assert!(of("cells") >= 90 * 500 && of("ram") > 0, "{} cells, {} in RAM", of("cells"), of("ram"));
}

#[test]
fn a_one_off_between_two_turns_costs_the_conversation_nothing() {
    let house = house(Setup { n_cells: 4700, lower: ram(1 << 20), ..Setup::default() });
    let talk = document(1, 4000);
    house.ask(ALICE, &talk, 4);
    house.ask(BOB, &document(2, 200), 200);
    let next = format!("{talk} and now?");
    let (said, done) = house.ask(ALICE, &next, 4);
    assert_eq!((said, done.cache.n_cached), (cold(&next, 4), 4000));
    house.is_empty();
}

#[test]
fn five_conversations_on_four_places_share_their_prefix_in_every_round() {
    let shared = text('s', 1000);
    let house = house(Setup { n_cells: 1400, queue: 8, lower: ram(1 << 20), ..Setup::default() });
    for round in 0..3 {
        for talker in 0..5 {
            let prompt = format!("{shared}marker {talker}, round {round}?");
            let (said, done) = house.ask(ALICE, &prompt, 8);
            assert_eq!(said, cold(&prompt, 8));
            assert!(round == 0 && talker == 0 || done.cache.n_cached >= 1000, "{:?}", done.cache);
        }
    }
    house.is_empty();
}

#[test]
fn a_prefix_that_its_client_sends_again_and_again_is_kept_on_disk_for_it_alone() {
    let system = text('s', 400);
    let shelf = Shelf::default();
    let setup = || Setup { lower: shelf.open(1 << 20, 1 << 30), ..Setup::default() };
    let ask = |house: &House, owner, question: &str| {
        let (events, receiver) = mpsc::channel(4096);
        let mut submission = house.submission(owner, &format!("{system}{question}"), 2, events);
        submission.prompt.cuts = vec![400];
        house.handle.submit(submission).unwrap();
        finish(receiver)
    };
    let first = house(setup());
    for (i, question) in ["one?", "two?", "three?"].into_iter().enumerate() {
        assert_eq!(shelf.n_tokens(Kept::Learned), 0, "{i}");
        ask(&first, ALICE, question);
        first.is_empty();
    }
    shelf.await_tokens(Kept::Learned, 400);
    drop(first);
    let again = house(setup());
    let (said, done) = ask(&again, ALICE, "four?");
    assert_eq!((said, done.cache.n_cached), (cold(&format!("{system}four?"), 2), 400));
    assert_eq!(ask(&again, BOB, "five?").1.cache.n_cached, 0);
    again.is_empty();
}

#[test]
fn opaque_memories_come_back_where_a_whole_was_saved() {
    for attention in [Attention::Window(64), Attention::Recurrent] {
        let house = house(Setup { n_cells: 1500, attention, lower: ram(1 << 20), ..Setup::default() });
        let first = document(1, 600);
        house.ask(ALICE, &first, 1);
        house.ask(BOB, &text('b', 1400), 1);
        let next = format!("{first} and another");
        let (_, done) = house.ask(ALICE, &next, 1);
        assert_eq!((done.cache.n_cached, done.cache.n_restored), (600, 600), "{attention:?}: {:?}", done.cache);
        let (_, done) = house.ask(ALICE, &format!("{}?", &first[..500]), 1);
        assert_eq!((done.cache.n_cached, done.cache.cause), (0, MissCause::Checkpoint));
        house.is_empty();
    }
}

/// A house whose memory goes forward only, and can be cut at checkpoints.
fn recurrent(ram_bytes: u64) -> House {
    house(Setup { attention: Attention::Recurrent, lower: ram(ram_bytes), ..Setup::default() })
}

fn cold_recurrent(prompt: &str, max_tokens: usize) -> String {
    house(Setup { attention: Attention::Recurrent, ..Setup::default() }).ask(ALICE, prompt, max_tokens).0
}

#[test]
fn a_conversation_goes_on_with_another_end_in_its_own_cells() {
    let house = recurrent(1 << 20);
    let first = document(1, 600);
    house.ask(ALICE, &first, 30);
    let ask = |prompt: &str| {
        let n_computed = house.faults.n_computed();
        let (said, done) = house.ask(ALICE, prompt, 4);
        assert_eq!(said, cold_recurrent(prompt, 4));
        assert_eq!(house.faults.n_computed() - n_computed, prompt.len() - done.cache.n_cached + done.n_generated - 1);
        (done.cache.n_cached, done.cache.cause)
    };
    let before = first.len() - 16;
    assert_eq!(ask(&first), (before, MissCause::Checkpoint), "an answer is made again");
    assert_eq!(house.handle.status().checkpoint_bytes, Some(24 + 64));
    // The template opens a past answer in another way than one that is to come.
    let second = format!("{} And what now, on a day like this one?", &first[..before + 5]);
    assert_eq!(ask(&second), (before, MissCause::Checkpoint), "the next turn says the answer without its thoughts");
    let third = format!("{} And in the end, when all of it is said?", &second[..second.len() - 10]);
    assert_eq!(ask(&third), (second.len() - 16, MissCause::Checkpoint));
    assert_eq!(ask(&second), (second.len() - 16, MissCause::Checkpoint), "its last turn is taken back");
    assert_eq!(ask(&third).0, second.len() - 16);
    let fourth = format!("{} Or not, after so many words, or is it so?", &third[..third.len() - 10]);
    assert_eq!(ask(&fourth).0, third.len() - 16);
    assert_eq!(house.ask(BOB, &fourth, 1).1.cache.n_cached, 0, "it is Alice's");
    assert_eq!(ask(&first), (0, MissCause::Checkpoint), "the last two places are kept");
    house.is_empty();
}

#[test]
fn without_room_in_ram_no_checkpoint_is_taken_and_nothing_is_said_wrong() {
    for n_bytes in [0, 1, 180, 200, 400] {
        let house = recurrent(n_bytes);
        for prompt in [document(1, 300), document(2, 300), document(1, 300)] {
            let (said, done) = house.ask(ALICE, &prompt, 3);
            assert_eq!(said, cold_recurrent(&prompt, 3));
            assert!(n_bytes > 180 || done.cache.n_cached == 0, "{n_bytes}");
        }
        house.is_empty();
    }
}

#[test]
fn a_conversation_that_cannot_go_back_is_computed_and_its_cells_are_free() {
    let house = recurrent(1 << 20);
    let prompt = document(1, 600);
    house.ask(ALICE, &prompt, 3);
    house.faults.fail_next_restores(1);
    let (said, done) = house.ask(ALICE, &prompt, 3);
    assert_eq!((said, done.cache.n_cached), (cold_recurrent(&prompt, 3), 0));
    assert_eq!(house.ask(ALICE, &prompt, 3).1.cache.n_cached, 600 - 16);
    // Neither is its id lost: there are at most 256.
    let short = document(2, 100);
    for _ in 0..300 {
        house.faults.fail_next_restores(1);
        house.ask(ALICE, &short, 1);
    }
    assert_eq!(house.ask(ALICE, &prompt, 3).0, cold_recurrent(&prompt, 3));
    house.is_empty();
}

/// Conversations that go on, answer again, drop what was said and part, among too few cells: all is said as without a cache.
#[test]
fn random_conversations_over_checkpoints_equal_cold_ones() {
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let lower = ram([600, 3_000, 1 << 20][seed as usize % 3]);
        let house =
            house(Setup { attention: Attention::Recurrent, n_cells: 1500, parallel: 2, lower, ..Setup::default() });
        let mut talks: Vec<Vec<String>> = (0..3).map(|talk| vec![document(talk, 120)]).collect();
        let mut n_cut = 0;
        for turn in 0..30 {
            let owner = [ALICE, BOB][rng.usize(..2)];
            let talk = rng.usize(..talks.len());
            let parts = &mut talks[talk];
            match rng.u8(..6) {
                0 => {}
                1 | 2 => {
                    parts.pop().filter(|_| parts.len() > 1).into_iter().for_each(drop);
                    if parts.is_empty() {
                        parts.push(document(talk, 120));
                    }
                }
                _ => parts.push(format!(" {turn}{}", text(rng.lowercase(), rng.usize(1..60)))),
            }
            if parts.iter().map(String::len).sum::<usize>() > 700 {
                parts.truncate(2);
            }
            let prompt = parts.concat();
            if rng.u8(..12) == 0 {
                house.faults.fail_next_restores(1);
            }
            if rng.u8(..12) == 0 {
                house.faults.fail_next_saves(1);
            }
            let (said, done) = house.ask(owner, &prompt, 5);
            assert_eq!(said, cold_recurrent(&prompt, 5), "seed {seed}, turn {turn}: {:?}", done.cache);
            n_cut += usize::from(done.cache.cause == MissCause::Checkpoint && done.cache.n_cached > 0);
            // An answer that is kept becomes a part of what follows.
            if rng.bool() {
                talks[talk].push(said);
            }
        }
        assert!(n_cut > 0 || seed % 3 == 0, "seed {seed}: nothing went back");
        house.is_empty();
    }
}
