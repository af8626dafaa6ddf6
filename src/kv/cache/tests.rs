//! What the cache counts against what the simulated engine holds: they must agree after every operation, and every computed
//! token must see what a cold run sees.

use super::*;
use crate::engine::simulated::{SimulatedEngine, SimulatedModel};
use crate::engine::{Batch, BatchToken, ContextOptions, KvType, Model, Threads};
use crate::request::{AdapterSet, Owner, Scale};

const ALICE: Holder = Holder::bare(Owner::Private([1; 32]));
const BOB: Holder = Holder::bare(Owner::Private([2; 32]));

/// The same under an adapter.
fn adapted(holder: Holder) -> Holder {
    Holder { adapters: AdapterSet::NONE.with(0, Scale::ONE), ..holder }
}

/// A sequence as the scheduler would run it.
struct Runner {
    holder: Holder,
    tokens: Vec<Token>,
    standing: Standing,
    /// Followers have not: their id stands on no leaf.
    has_computed: bool,
}

struct House {
    engine: SimulatedEngine,
    cache: Cache,
    n_restored: usize,
}

impl House {
    fn new(n_cells: usize, n_seq_max: usize) -> House {
        let options =
            ContextOptions { n_cells, n_seq_max, n_batch: n_cells, kv_type: KvType::F16, threads: Threads::same(1) };
        let engine = SimulatedModel::new().adapters(1).open(&options).unwrap();
        House { engine, cache: Cache::new(n_cells, n_seq_max, Memory::Rewindable), n_restored: 0 }
    }

    fn stand(&mut self, holder: Holder, text: &str) -> Option<Runner> {
        let tokens: Vec<Token> = text.bytes().map(|byte| Token(byte.into())).collect();
        let n = tokens.len();
        let standing = self.cache.stand(&mut self.engine, holder, &tokens, |n_hit| n - n_hit).unwrap()?;
        self.check();
        Some(Runner { holder, tokens, standing, has_computed: false })
    }

    /// Computes up to `n` tokens and makes them findable.
    fn compute(&mut self, runner: &mut Runner, n: usize) {
        let n_past = runner.standing.n_past();
        let n = n.min(runner.tokens.len() - n_past).min(runner.standing.n_reserved());
        if n == 0 {
            return;
        }
        runner.has_computed = true;
        self.cache.occupy(&mut self.engine, &mut runner.standing, n);
        let seq = runner.standing.seq;
        let end = n_past + n;
        self.engine.set_adapters(runner.holder.adapters).unwrap();
        let warm = logits(&mut self.engine, seq, &runner.tokens[..end], n_past);
        let mut cold = House::new(64, 1).engine;
        cold.set_adapters(runner.holder.adapters).unwrap();
        assert_eq!(warm, logits(&mut cold, SeqId(0), &runner.tokens[..end], 0), "cached equals cold");
        self.cache.publish(&mut self.engine, &mut runner.standing, &runner.tokens[..end]).unwrap();
        self.check();
    }

    /// Brings back the next piece, if one is saved that begins where the sequence ends.
    fn restore(&mut self, runner: &mut Runner) {
        let restored = self.cache.restore_piece(&mut self.engine, &mut runner.standing, &runner.tokens, None);
        if let Restored::Piece { n_tokens, .. } = restored {
            runner.has_computed = true;
            self.n_restored += n_tokens;
        }
        self.check();
    }

    fn advance(&mut self, runner: &mut Runner) {
        self.cache.advance(&mut self.engine, &mut runner.standing, &runner.tokens).unwrap();
        self.check();
    }

    fn leave(&mut self, runner: Runner) {
        let n_past = runner.standing.n_past();
        self.cache.leave(&mut self.engine, runner.standing, &runner.tokens[..n_past]);
        self.check();
    }

    fn check(&self) {
        self.cache.check();
        assert_eq!(self.cache.cells().free, self.engine.n_free(), "the engine's free cells are those the cache counts");
    }
}

/// Computes `tokens` from position `from` on; the logits behind the last one.
fn logits(engine: &mut SimulatedEngine, seq: SeqId, tokens: &[Token], from: usize) -> Vec<f32> {
    let row = |pos| BatchToken { token: tokens[pos], pos, seq, wants_logits: pos + 1 == tokens.len() };
    engine.decode(&Batch { tokens: (from..tokens.len()).map(row).collect() }).unwrap();
    engine.logits(tokens.len() - from - 1).unwrap().to_vec()
}

/// A follower may begin on its owner's own copy of a prefix and go on along the house's: then it stands on the latter alone,
/// or the cells of the former would be held and counted free.
#[test]
fn a_follower_that_changes_paths_gives_the_old_cells_up() {
    let mut house = House::new(64, 8);
    let mut own = house.stand(ALICE, "policy").unwrap();
    house.compute(&mut own, 6);
    house.leave(own);
    let mut leader = house.stand(Holder::HOUSE, "policy and tools").unwrap();
    house.compute(&mut leader, 4);
    let mut follower = house.stand(ALICE, "policy and tools?").unwrap();
    assert_eq!(follower.standing.n_past(), 6);
    house.compute(&mut leader, 12);
    house.advance(&mut follower);
    assert_eq!(follower.standing.n_past(), 16);
    // Alice's own copy is nobody's now.
    assert!(house.cache.evict(&mut house.engine, EvictionCause::Cells));
    house.check();
    assert_eq!(house.cache.cells().free, 64 - 16);
    house.compute(&mut follower, 1);
    house.leave(leader);
    house.leave(follower);
    assert_eq!(house.cache.cells().evictable, 17);
}

/// Bytes of RAM in plenty for these tests.
fn with_ram(house: House) -> House {
    let House { engine, cache, n_restored } = house;
    let tiers = Tiers::new(crate::kv::Budgets { ram: 1 << 20, disk: 0, learned: 0 });
    House { engine, cache: cache.with_tiers(tiers, 256, 24), n_restored }
}

#[test]
fn what_is_saved_and_idle_leaves_the_cells_and_what_is_not_saved_stays() {
    let mut house = with_ram(House::new(128, 8));
    for (holder, text) in [(ALICE, "a conversation that is saved"), (BOB, "one that is not")] {
        let mut runner = house.stand(holder, text).unwrap();
        house.compute(&mut runner, 64);
        house.leave(runner);
    }
    let tokens: Vec<Token> = "a conversation that is saved".bytes().map(|byte| Token(byte.into())).collect();
    let mut saving = Saving::new(ALICE, tokens.clone(), Vec::new(), crate::kv::Kept::Private);
    while house.cache.save_piece(&mut house.engine, &mut saving) != Saved::Done {}
    assert_eq!(house.cache.evict_idle(&mut house.engine), 0, "it was used in this epoch or the last");
    assert_eq!(house.cache.evict_idle(&mut house.engine), 1);
    house.check();
    assert_eq!((house.cache.find(ALICE, &tokens), house.cache.cells().evictable), (0, 15));
    // And it comes back as itself.
    let restorable = house.cache.restorable(ALICE, &tokens).unwrap();
    assert_eq!((restorable.n_tokens, restorable.n_stand), (28, 0));
    let mut standing = house.cache.stand(&mut house.engine, ALICE, &[], |_| 30).unwrap().unwrap();
    let restored = house.cache.restore_piece(&mut house.engine, &mut standing, &tokens, None);
    assert!(matches!(restored, Restored::Piece { n_tokens: 28, was_read: false, .. }));
    house.check();
    house.cache.leave(&mut house.engine, standing, &tokens);
    assert_eq!(house.cache.find(ALICE, &tokens), 28);
}

/// What no disk takes is copied once for it, and goes to RAM.
#[test]
fn a_pin_that_the_disk_has_no_room_for_is_not_copied_for_ever() {
    for ram in [0, 1 << 20] {
        let House { engine, cache, n_restored } = House::new(128, 8);
        let tiers = Tiers::new(crate::kv::Budgets { ram, disk: 10, learned: 0 });
        let mut house = House { engine, cache: cache.with_tiers(tiers, 256, 24), n_restored };
        let mut runner = house.stand(Holder::HOUSE, "the policy of this house").unwrap();
        house.compute(&mut runner, 64);
        house.leave(runner);
        let tokens: Vec<Token> = "the policy of this house".bytes().map(|byte| Token(byte.into())).collect();
        let mut saving = Saving::new(Holder::HOUSE, tokens.clone(), Vec::new(), crate::kv::Kept::Pin);
        let mut segments = Vec::new();
        loop {
            match house.cache.save_piece(&mut house.engine, &mut saving) {
                Saved::Segment { key, is_passing } => {
                    segments.push(is_passing);
                    assert!(house.cache.tiers().begin_write(key).is_none());
                    house.cache.tiers().drop_passing(key);
                }
                Saved::Done => break,
                Saved::Piece | Saved::Waits => {}
            }
            assert!(segments.len() < 10, "it ends");
        }
        let expected: &[bool] = if ram == 0 { &[true] } else { &[true, false] };
        assert_eq!(segments, expected, "{ram}");
        assert_eq!(house.cache.tiers().find(ALICE, &tokens).n_tokens, if ram == 0 { 0 } else { tokens.len() });
    }
}

#[test]
fn whatever_is_done_the_engine_holds_what_the_cache_counts() {
    let mut n_restored = 0;
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut house = House::new(random.usize(40..90), random.usize(3..9));
        // Half of the houses save what leaves the cells, in a RAM that is too small for all of it.
        if random.bool() {
            let tiers = Tiers::new(crate::kv::Budgets { ram: random.u64(600..9_000), disk: 0, learned: 0 });
            house.cache = house.cache.with_tiers(tiers, random.usize(1..9), 24);
        }
        let mut running: Vec<Runner> = Vec::new();
        let mut pinned: Vec<Pinned> = Vec::new();
        for _ in 0..80 {
            let index = random.usize(0..running.len().max(1));
            match random.u8(0..14) {
                0..=3 => {
                    let holder =
                        *random.choice(&[ALICE, BOB, Holder::HOUSE, adapted(ALICE), adapted(Holder::HOUSE)]).unwrap();
                    let words = ["aaaa", "ab", "b"];
                    let n_words = random.usize(1..9);
                    let text: String = (0..n_words).map(|_| *random.choice(&words).unwrap()).collect();
                    // Some of them are said again and again, so that they come back from where they were saved.
                    let said_often = "aaaababbaaaaabbbaaaaabaaaaabbabb";
                    let text = if random.bool() { said_often[..random.usize(20..32)].to_owned() } else { text };
                    running.extend(house.stand(holder, &text));
                    if let Some(runner) = running.last_mut().filter(|_| random.bool()) {
                        house.restore(runner);
                        house.restore(runner);
                    }
                }
                4..=7 if !running.is_empty() => house.compute(&mut running[index], random.usize(1..9)),
                8 if running.get(index).is_some_and(|runner| !runner.has_computed) => {
                    house.advance(&mut running[index])
                }
                9 if !running.is_empty() => {
                    let runner = running.swap_remove(index);
                    house.leave(runner);
                }
                10 if !running.is_empty() => {
                    let Runner { holder, tokens, standing, .. } = running.swap_remove(index);
                    let tokens = &tokens[..standing.n_past()];
                    if holder.is_house() && !tokens.is_empty() {
                        pinned.push(house.cache.leave_pinned(&mut house.engine, standing, tokens));
                    } else {
                        house.cache.abandon(&mut house.engine, standing, tokens);
                    }
                    house.check();
                }
                12 if running.get(index).is_some_and(|runner| runner.standing.n_past() < runner.tokens.len()) => {
                    house.restore(&mut running[index]);
                }
                13 => drop(house.cache.evict_idle(&mut house.engine)),
                11 if random.bool() && !pinned.is_empty() => house.cache.unpin(pinned.swap_remove(0)),
                _ => drop(house.cache.evict(&mut house.engine, EvictionCause::Cells)),
            }
            house.check();
        }
        running.into_iter().for_each(|runner| house.leave(runner));
        pinned.into_iter().for_each(|pinned| house.cache.unpin(pinned));
        while house.cache.evict(&mut house.engine, EvictionCause::Cells) {
            house.check();
        }
        assert_eq!((house.cache.cells().free, house.cache.ids().0), (house.cache.cells().total, house.cache.ids().2));
        n_restored += house.n_restored;
    }
    assert!(n_restored > 100, "{n_restored} tokens came back");
}

#[test]
fn what_another_set_holds_is_a_miss_that_says_so_and_what_was_evicted_is_still_called_that() {
    let mut house = House::new(96, 4);
    let mut runner = house.stand(adapted(ALICE), "the policy of this house, written down at length").unwrap();
    house.compute(&mut runner, 64);
    house.leave(runner);
    let cause = |house: &House, holder, text: &str| {
        let tokens: Vec<Token> = text.bytes().map(|byte| Token(byte.into())).collect();
        (house.cache.find(holder, &tokens), house.cache.miss_cause(holder, &tokens, 0))
    };
    assert_eq!(cause(&house, ALICE, "the policy of this house, written down at length!"), (0, MissCause::Adapter));
    assert_eq!(
        cause(&house, adapted(ALICE), "the policy of this house, written down at length!"),
        (48, MissCause::Appended)
    );
    assert_eq!(
        cause(&house, adapted(BOB), "the policy of this house, written down at length!"),
        (0, MissCause::Cold),
        "it is another's"
    );
    assert_eq!(cause(&house, BOB, "the policy of this house, written down at length!"), (0, MissCause::Cold));
    assert_eq!(cause(&house, ALICE, "another policy"), (0, MissCause::Cold));
    // Part of it is held for the set that asks, too.
    let mut runner = house.stand(ALICE, "the policy").unwrap();
    house.compute(&mut runner, 64);
    house.leave(runner);
    assert_eq!(cause(&house, ALICE, "the policy of this house, written down at length!"), (10, MissCause::Adapter));
    assert_eq!(cause(&house, ALICE, "the policy of that house, written down at length"), (10, MissCause::Appended));
    while house.cache.evict(&mut house.engine, EvictionCause::Cells) {}
    assert_eq!(
        cause(&house, adapted(ALICE), "the policy of this house, written down at length!"),
        (0, MissCause::Evicted)
    );
    assert_eq!(cause(&house, ALICE, "the policy of this house, written down at length!"), (0, MissCause::Evicted));
}
