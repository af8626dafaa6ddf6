//! The index against a naive list of prefixes; what budgets, files and parents must never do.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::kv::segment::PrefixHash;
use crate::request::{AdapterSet, Owner, Scale};

const ALICE: Holder = Holder::bare(Owner::Private([1; 32]));
const BOB: Holder = Holder::bare(Owner::Private([2; 32]));
/// Two of them under an adapter.
fn holders() -> [Holder; N_HOLDERS] {
    [Holder::HOUSE, ALICE, BOB, under_an_adapter(Holder::HOUSE), under_an_adapter(ALICE)]
}

const N_HOLDERS: usize = 5;

fn under_an_adapter(holder: Holder) -> Holder {
    Holder { adapters: AdapterSet::NONE.with(0, Scale::ONE), ..holder }
}

fn tokens(text: &str) -> Vec<Token> {
    text.bytes().map(|byte| Token(byte.into())).collect()
}

/// The end of `path` from `start` on, two tokens and twenty bytes a piece.
fn segment(holder: Holder, kept: Kept, path: &[Token], start: usize) -> Segment {
    let pieces =
        path[start..].chunks(2).map(|run| Piece { n_tokens: run.len(), bytes: vec![7; 10 * run.len()].into() });
    Segment::new(holder, kept, false, path, start, pieces.collect())
}

fn whole(holder: Holder, path: &[Token]) -> Segment {
    let piece = Piece { n_tokens: path.len(), bytes: vec![7; 100].into() };
    Segment::new(holder, Kept::Private, true, path, 0, vec![piece])
}

/// Bytes of RAM that a segment of `n` tokens takes.
fn cost(n: u64) -> u64 {
    n * (10 + 4) + OVERHEAD_BYTES
}

struct House {
    tiers: Tiers,
    speeds: Speeds,
}

impl House {
    fn new(ram: u64, disk: u64) -> House {
        House { tiers: Tiers::new(Budgets { ram, disk, learned: disk / 4 }), speeds: Speeds::default() }
    }

    /// Saves what is not covered of `text`.
    fn save(&mut self, holder: Holder, text: &str) -> bool {
        self.save_as(holder, Kept::Private, text, Reuse::Once)
    }

    fn save_as(&mut self, holder: Holder, kept: Kept, text: &str, reuse: Reuse) -> bool {
        let path = tokens(text);
        let start = self.tiers.find(holder, &path).n_tokens;
        start < path.len() && self.tiers.insert(&path, segment(holder, kept, &path, start), reuse, false, &self.speeds)
    }

    fn found(&self, holder: Holder, text: &str) -> usize {
        self.tiers.find(holder, &tokens(text)).n_tokens
    }

    fn last(&self, holder: Holder, text: &str) -> SegmentKey {
        self.tiers.find(holder, &tokens(text)).links.last().expect("it is held").key
    }

    fn hit(&mut self, holder: Holder, text: &str) {
        let chain = self.tiers.find(holder, &tokens(text));
        self.tiers.touch(&chain);
    }

    fn write(&mut self, key: SegmentKey) -> bool {
        let Some(segment) = self.tiers.begin_write(key) else { return false };
        self.tiers.written(key, ram_bytes(&segment.header) + FILE_BYTES);
        true
    }
}

#[test]
fn a_chain_goes_from_parent_to_child_wherever_the_child_begins() {
    let mut house = House::new(1 << 20, 0);
    assert!(house.save(ALICE, "policy and tools"));
    assert!(house.save(ALICE, "policy and tools: one"));
    assert!(house.save(ALICE, "policy for guests"));
    let chain = house.tiers.find(ALICE, &tokens("policy for guests?"));
    let ranges: Vec<_> = chain.links.iter().map(|link| link.start..link.upto).collect();
    assert_eq!(ranges, [0..7, 7..17]);
    let chain = house.tiers.find(ALICE, &tokens("policy and tools: two"));
    let ranges: Vec<_> = chain.links.iter().map(|link| link.start..link.upto).collect();
    assert_eq!(ranges, [0..16, 16..18]);
    assert_eq!(house.found(BOB, "policy and tools"), 0);
    let place = house.tiers.place(&chain, 17).unwrap();
    assert_eq!((place.range, place.upto, place.n_bytes), (16..18, 18, 20));
    let chain = house.tiers.find(ALICE, &tokens("policy!"));
    let place = house.tiers.place(&chain, 5).unwrap();
    assert_eq!((place.range, place.upto), (4..6, 6));
    assert!(house.tiers.place(&chain, 6).is_none());
}

/// Documents of this test's name are told apart by their tokens, though their keys are forced to be equal.
#[test]
fn an_equal_hash_never_matches_other_tokens() {
    let mut house = House::new(1 << 20, 0);
    assert!(house.save(ALICE, "what alice said"));
    let path = tokens("what mallory said");
    let mut forged = segment(ALICE, Kept::Private, &path, 0);
    forged.header.key = house.last(ALICE, "what alice said");
    assert!(!house.tiers.insert(&path, forged.clone(), Reuse::Once, false, &house.speeds));
    assert_eq!(house.found(ALICE, "what mallory said"), 5);
    // Nor when it comes from a file: the bytes are not those of the tokens that are held under its key.
    let key = forged.header.key;
    assert!(house.tiers.header(key).is_some_and(|header| header.tokens[..] == tokens("what alice said")[..]));
    house.tiers.take_found(vec![(forged.header.clone(), 100)]);
    assert_eq!(house.found(ALICE, "what mallory said"), 5);
    // Two prefixes of one hash: what stands behind one is not found behind the other.
    let behind = tokens("what alice said then");
    let mut child = segment(ALICE, Kept::Private, &behind, 15);
    child.header.prefix = PrefixHash::of(&tokens("what nobody said"));
    house.tiers.insert(&behind, child, Reuse::Once, false, &house.speeds);
    assert_eq!(house.found(ALICE, "what nobody said then"), 5);
}

#[test]
fn what_is_worth_least_goes_first_and_a_parent_after_its_children() {
    let mut house = House::new(4 * cost(4), 0);
    for text in ["aaaa", "aaaabbbb", "cccc", "dddd"] {
        assert!(house.save(ALICE, text));
    }
    house.hit(ALICE, "cccc");
    assert!(house.save(ALICE, "eeee"));
    assert_eq!(house.found(ALICE, "aaaabbbb"), 4, "the oldest leaf that nobody came back for");
    assert!(house.save(ALICE, "ffff"));
    assert_eq!(house.found(ALICE, "aaaa"), 0);
    for text in ["gggg", "hhhh", "iiii"] {
        assert!(house.save(ALICE, text));
    }
    assert_eq!(house.found(ALICE, "cccc"), 4, "what came back stays");
    let lost: Vec<_> = house.tiers.take_gone().into_iter().filter_map(|gone| gone.lost).collect();
    assert_eq!(lost[..2], [tokens("aaaab"), tokens("a")]);
}

#[test]
fn a_hundred_one_shots_do_not_push_out_what_came_back() {
    let mut house = House::new(3 * cost(8), 0);
    house.save(ALICE, "talking.");
    for _ in 0..3 {
        house.hit(ALICE, "talking.");
    }
    for shot in 0..20 {
        house.save(BOB, &format!("{shot:08}"));
        assert_eq!(house.found(ALICE, "talking."), 8, "after {shot}");
        assert!(house.tiers.held().ram <= 3 * cost(8));
    }
}

#[test]
fn larger_than_its_tier_is_not_taken_in_and_nothing_goes_for_it() {
    let mut house = House::new(2 * cost(4), 0);
    house.save(ALICE, "aaaa");
    let reserve =
        |house: &mut House, n_bytes| house.tiers.reserve(n_bytes, 4, None, Reuse::Hits(9), &house.speeds.clone());
    assert_eq!(reserve(&mut house, 2 * cost(4) + 1), Err(NoRoom::TooLarge));
    assert_eq!(house.found(ALICE, "aaaa"), 4);
    assert_eq!(reserve(&mut house, 2 * cost(4)), Ok(()));
    assert_eq!((house.found(ALICE, "aaaa"), house.tiers.held().ram), (0, 0));
    assert!(!house.save(ALICE, "bbbb"), "what is reserved is taken");
    house.tiers.release(2 * cost(4));
    assert!(house.save(ALICE, "bbbb"));
    let mut off = House::new(0, 0);
    assert!(!off.save(ALICE, "a"));
}

#[test]
fn with_a_file_ram_is_given_up_and_the_prefix_is_still_found() {
    let mut house = House::new(2 * cost(4), 1 << 20);
    house.save(ALICE, "aaaa");
    house.save(ALICE, "aaaabbbb");
    let [parent, child] = ["aaaa", "aaaabbbb"].map(|text| house.last(ALICE, text));
    assert!(!house.write(child), "a file without its parent's is of no use after a restart");
    assert!(house.write(parent));
    assert!(house.write(child));
    house.save(BOB, "cccc");
    house.save(BOB, "dddd");
    let chain = house.tiers.find(ALICE, &tokens("aaaabbbb"));
    assert_eq!((chain.n_tokens, house.tiers.n_on_disk(&chain, 2)), (8, 6));
    assert_eq!(house.tiers.bytes_behind(&chain, 2), (0, 80));
    // Bytes that come from the file and are worth their place stay.
    house.hit(ALICE, "aaaabbbb");
    house.speeds.disk.measure(80, Duration::from_secs(1));
    let path = tokens("aaaabbbb");
    house.tiers.bring_back(&segment(ALICE, Kept::Private, &path, 4), &house.speeds);
    assert_eq!(house.tiers.n_on_disk(&chain, 0), 4);
    house.tiers.lose(parent, GoneCause::Failed);
    assert_eq!(house.found(ALICE, "aaaabbbb"), 0, "what stood behind a lost one is lost");
    let files = house.tiers.take_gone().into_iter().filter(|gone| gone.tier == Tier::Disk);
    let files: Vec<SegmentKey> = files.map(|gone| gone.key).collect();
    assert_eq!(files, [child, parent]);
}

#[test]
fn what_only_passes_through_ram_is_beside_the_budget_and_readable_until_it_is_written() {
    let mut house = House::new(0, 1 << 20);
    let path = tokens("pinned");
    let pin = segment(Holder::HOUSE, Kept::Pin, &path, 0);
    let key = pin.header.key;
    assert!(house.tiers.insert(&path, pin, Reuse::Once, true, &house.speeds));
    assert!(house.tiers.begin_write(key).is_some());
    let chain = house.tiers.find(ALICE, &path);
    assert_eq!((chain.n_tokens, house.tiers.n_on_disk(&chain, 0), house.tiers.held().ram), (6, 0, 0));
    house.tiers.written(key, 1_000);
    assert_eq!((house.tiers.n_on_disk(&chain, 0), house.tiers.held().disk), (6, 1_000));
    // And one that could not be written is gone.
    let other = tokens("other");
    let pin = segment(Holder::HOUSE, Kept::Pin, &other, 0);
    let key = pin.header.key;
    house.tiers.insert(&other, pin, Reuse::Once, true, &house.speeds);
    house.tiers.begin_write(key);
    house.tiers.write_failed(key);
    assert_eq!(house.found(ALICE, "other"), 0);
}

#[test]
fn pins_and_learned_files_stay_and_private_ones_make_room() {
    let mut house = House::new(1 << 20, 4 * (cost(4) + FILE_BYTES));
    for (holder, kept, text) in [
        (Holder::HOUSE, Kept::Pin, "pins"),
        (ALICE, Kept::Learned, "lear"),
        (ALICE, Kept::Private, "priv"),
        (ALICE, Kept::Private, "next"),
        (ALICE, Kept::Private, "last"),
    ] {
        house.save_as(holder, kept, text, Reuse::Once);
        let key = house.last(holder, text);
        assert!(house.write(key), "{text}");
        if kept == Kept::Private {
            house.hit(holder, text);
        }
    }
    house.tiers.keep_pins(&[(Holder::HOUSE, &tokens("pins and more"))]);
    let files: Vec<_> = ["pins", "lear", "priv", "next", "last"]
        .map(|text| house.tiers.entries[&house.last(ALICE, text)].file == File::There)
        .into();
    assert_eq!(files, [true, true, false, true, true]);
    house.tiers.keep_pins(&[(Holder::HOUSE, &tokens("pin"))]);
    assert_eq!(house.found(ALICE, "pins"), 0, "its pin is configured no more");
}

#[test]
fn a_pin_that_begins_in_one_that_is_gone_keeps_what_it_stands_on() {
    let mut house = House::new(1 << 20, 1 << 20);
    for text in ["rules of monday", "rules of tuesday"] {
        house.save_as(Holder::HOUSE, Kept::Pin, text, Reuse::Once);
        let key = house.last(Holder::HOUSE, text);
        assert!(house.write(key), "{text}");
    }
    house.tiers.keep_pins(&[(Holder::HOUSE, &tokens("rules of tuesday"))]);
    assert_eq!(house.found(ALICE, "rules of tuesday"), 16);
    house.tiers.keep_pins(&[(Holder::HOUSE, &tokens("rules of monday"))]);
    assert_eq!(house.found(ALICE, "rules of tuesday"), 9, "nothing stands on it");
    house.tiers.keep_pins(&[]);
    assert_eq!(house.found(ALICE, "rules of monday"), 0);
}

#[test]
fn what_a_conversation_left_becomes_its_owners_pin_and_goes_with_it() {
    let mut house = House::new(1 << 20, 1 << 20);
    house.save(ALICE, "rules and question");
    let key = house.last(ALICE, "rules");
    assert!(house.tiers.keep_as_pin(BOB, &tokens("rules")).is_empty(), "another's is not kept");
    assert_eq!(house.tiers.keep_as_pin(ALICE, &tokens("rules")), [key], "its file has to be written");
    assert!(house.write(key));
    house.tiers.keep_pins(&[(ALICE, &tokens("rules"))]);
    assert_eq!((house.found(ALICE, "rules"), house.tiers.entries[&key].header.kept), (5, Kept::Pin));
    house.tiers.keep_pins(&[(BOB, &tokens("rules"))]);
    assert_eq!(house.found(ALICE, "rules"), 0);
}

#[test]
fn learned_ones_stay_in_their_share() {
    let mut house = House::new(1 << 20, 16 * (cost(4) + FILE_BYTES));
    let share = house.tiers.budgets().learned;
    for number in 0..9 {
        let text = format!("{number}abc");
        house.save(ALICE, &text);
        for key in house.tiers.learn(ALICE, &tokens(&text)) {
            assert!(house.write(key));
        }
        assert!(house.tiers.held().learned <= share, "{number}");
    }
    let is_learned =
        |text: &str| house.tiers.header(house.last(ALICE, text)).is_some_and(|header| header.kept == Kept::Learned);
    assert!(!is_learned("0abc") && is_learned("8abc"), "the oldest gives way");
    assert_eq!(house.tiers.learn(ALICE, &tokens("8abcdef")), [], "it is not all held");
}

#[test]
fn what_came_back_is_written_while_ram_can_still_wait_and_the_best_first_at_the_end() {
    let mut house = House::new(4 * cost(4), 1 << 20);
    house.save(ALICE, "aaaa");
    house.save(ALICE, "aaaabbbb");
    house.hit(ALICE, "aaaabbbb");
    assert_eq!(house.tiers.next_to_write(&house.speeds, false), None, "there is room");
    house.save(ALICE, "once");
    let parent = house.last(ALICE, "aaaa");
    assert_eq!(house.tiers.next_to_write(&house.speeds, false), Some(parent), "parents first");
    house.write(parent);
    let child = house.last(ALICE, "aaaabbbb");
    assert_eq!(house.tiers.next_to_write(&house.speeds, true), Some(child));
    house.write(child);
    assert_eq!(house.tiers.next_to_write(&house.speeds, true), None, "nobody came back for the third");
}

#[test]
fn what_lies_on_disk_is_found_after_a_restart_and_orphans_go() {
    let mut house = House::new(1 << 20, 1 << 20);
    let texts = ["policy", "policy and tools", "policy at night", "policy and tools!", "other"];
    let headers: Vec<Header> = texts
        .iter()
        .map(|text| {
            house.save(ALICE, text);
            house.tiers.header(house.last(ALICE, text)).unwrap().clone()
        })
        .collect();
    let mut found: Vec<(Header, u64)> = headers.iter().map(|header| (header.clone(), 50)).collect();
    found.reverse();
    let mut later = House::new(0, 1 << 20);
    later.tiers.take_found(found.clone());
    for text in texts {
        assert_eq!((later.found(ALICE, text), later.found(BOB, text)), (text.len(), 0), "{text}");
    }
    // Without the first file, what stands behind it means nothing.
    let mut orphaned = House::new(0, 1 << 20);
    orphaned.tiers.take_found(found.into_iter().filter(|(header, _)| header.start > 0 || header.end() == 5).collect());
    assert_eq!((orphaned.found(ALICE, "policy at night"), orphaned.found(ALICE, "other")), (0, 5));
    assert_eq!(orphaned.tiers.take_gone().len(), 3);
    // A smaller budget than before holds from the start.
    let mut small = House::new(0, 120);
    small.tiers.take_found(headers.iter().map(|header| (header.clone(), 50)).collect());
    assert!(small.tiers.held().disk <= 120);
}

#[test]
fn wholes_match_at_their_end_and_few_stay_of_each_conversation() {
    let mut house = House::new(1 << 20, 0);
    let path = tokens("system turn one turn two turn three");
    for end in [6, 15, 24, 35] {
        let saved = whole(ALICE, &path[..end]);
        assert!(house.tiers.insert(&path[..end], saved, Reuse::Once, false, &house.speeds));
        house.tiers.thin_wholes(ALICE, &path[..end], 6, 2);
    }
    let found = |text: &str| house.found(ALICE, text);
    assert_eq!(found("system turn one turn two turn three?"), 35);
    assert_eq!(found("system turn one turn two turn"), 24);
    assert_eq!(found("system turn one turn tw"), 6, "the last two, and what stands before the conversation");
    assert_eq!(house.tiers.common_len(ALICE, &tokens("system turn one turn tw")), 23);
}

/// What may happen to the tiers, over texts of two letters.
#[derive(Clone, Debug)]
enum Op {
    Save(usize, String, bool),
    Hit(usize, String),
    Write(usize, String),
    WriteFails(usize, String),
    Lose(usize, String),
    WriteNext,
    Learn(usize, String),
    Restart,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let text = "[ab]{1,12}";
    let op = prop_oneof![
        6 => (0..N_HOLDERS, text, any::<bool>()).prop_map(|(holder, text, pin)| Op::Save(holder, text, pin)),
        3 => (0..N_HOLDERS, text).prop_map(|(holder, text)| Op::Hit(holder, text)),
        3 => (0..N_HOLDERS, text).prop_map(|(holder, text)| Op::Write(holder, text)),
        1 => (0..N_HOLDERS, text).prop_map(|(holder, text)| Op::WriteFails(holder, text)),
        1 => (0..N_HOLDERS, text).prop_map(|(holder, text)| Op::Lose(holder, text)),
        2 => Just(Op::WriteNext),
        1 => (0..N_HOLDERS, text).prop_map(|(holder, text)| Op::Learn(holder, text)),
        1 => Just(Op::Restart),
    ];
    proptest::collection::vec(op, 1..60)
}

proptest! {
    #[test]
    fn the_index_finds_what_a_list_of_prefixes_finds(
        ops in ops(), ram in 0..8u64, disk in 0..8u64, question in "[ab]{1,14}"
    ) {
        let disk = disk * (cost(6) + FILE_BYTES);
        let mut house = House::new(ram * cost(6), disk);
        // Every prefix that was ever saved, with the key of the segment that ends it.
        let mut saved: Vec<(Holder, Vec<Token>, SegmentKey)> = Vec::new();
        for op in ops {
            match op {
                Op::Save(holder, text, is_pin) => {
                    let holder = holders()[holder];
                    let kept = if holder.is_house() && is_pin { Kept::Pin } else { Kept::Private };
                    if house.save_as(holder, kept, &text, Reuse::Once) {
                        saved.push((holder, tokens(&text), house.last(holder, &text)));
                    }
                }
                Op::Hit(holder, text) => house.hit(holders()[holder], &text),
                Op::Write(holder, text) => {
                    for link in house.tiers.find(holders()[holder], &tokens(&text)).links {
                        house.write(link.key);
                    }
                }
                Op::WriteFails(holder, text) => {
                    for link in house.tiers.find(holders()[holder], &tokens(&text)).links {
                        if house.tiers.begin_write(link.key).is_some() {
                            house.tiers.write_failed(link.key);
                        }
                    }
                }
                Op::Lose(holder, text) => {
                    if let Some(link) = house.tiers.find(holders()[holder], &tokens(&text)).links.last() {
                        house.tiers.lose(link.key, GoneCause::Failed);
                    }
                }
                Op::WriteNext => {
                    if let Some(key) = house.tiers.next_to_write(&house.speeds, false) {
                        house.write(key);
                    }
                }
                Op::Learn(holder, text) => drop(house.tiers.learn(holders()[holder], &tokens(&text))),
                Op::Restart => {
                    let on_disk = house.tiers.entries.values().filter(|entry| entry.file == File::There);
                    let mut found: Vec<_> =
                        on_disk.map(|entry| (entry.header.clone(), entry.file_bytes)).collect();
                    found.reverse();
                    let n_found = found.len();
                    let n_bytes = house.tiers.held().disk;
                    house.tiers = Tiers::new(house.tiers.budgets());
                    house.tiers.take_found(found);
                    prop_assert_eq!((house.tiers.held().n_segments, house.tiers.held().disk), (n_found, n_bytes));
                }
            }
            house.tiers.check();
            let held = house.tiers.held();
            prop_assert!(held.ram <= ram * cost(6) && held.disk <= disk && held.learned <= disk / 4);
            for holder in holders() {
                let chain = house.tiers.find(holder, &tokens(&question));
                let held = saved.iter().filter(|(held_by, _, key)| holder.may_see(*held_by) && house.tiers.contains(*key));
                let expected = held.map(|(_, path, _)| common_len(path, &tokens(&question))).max().unwrap_or(0);
                prop_assert_eq!(chain.n_tokens, expected);
                let mut at = 0;
                for link in &chain.links {
                    prop_assert_eq!(link.start, at);
                    at = link.upto;
                }
                prop_assert_eq!(at, chain.n_tokens);
            }
        }
    }
}
