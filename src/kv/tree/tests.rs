//! The tree by example, and against a naive oracle.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::request::{AdapterSet, Scale};

const ALICE: Holder = Holder::bare(Owner::Private([1; 32]));
const BOB: Holder = Holder::bare(Owner::Private([2; 32]));

fn tokens(text: &str) -> Vec<Token> {
    text.bytes().map(|byte| Token(byte.into())).collect()
}

/// Computes `text` in the tree as a finished sequence would leave it, and unlocks it.
fn hold(tree: &mut Tree, holder: Holder, text: &str, seq: u16) -> NodeId {
    let text = tokens(text);
    let hit = tree.find(holder, &text);
    let at = tree.lock(hit);
    let extended = tree.extend(at, holder, &text[hit.n_tokens..], SeqId(seq));
    tree.unlock(extended.node);
    tree.check();
    extended.node
}

/// A second for each cell: the one used longest ago goes first.
fn evict(tree: &mut Tree) -> Option<Evicted> {
    let (leaf, priority) = tree.least_valuable(|leaf| leaf.n_cells as f64)?;
    tree.age(priority);
    Some(tree.evict(leaf))
}

fn hit_len(tree: &Tree, holder: Holder, text: &str) -> usize {
    tree.find(holder, &tokens(text)).n_tokens
}

/// The example that says what reuse is: the same tokens from position 0.
#[test]
fn replacing_h_reuses_seven_tokens_and_replacing_a_none() {
    let mut tree = Tree::new();
    hold(&mut tree, ALICE, "ABCDEFGH", 0);
    assert_eq!(hit_len(&tree, ALICE, "ABCDEFGX"), 7);
    assert_eq!(hit_len(&tree, ALICE, "XBCDEFGH"), 0);
    assert_eq!(hit_len(&tree, ALICE, "ABCDEFGH"), 8);
}

#[test]
fn a_private_prefix_is_seen_by_its_owner_alone() {
    let mut tree = Tree::new();
    hold(&mut tree, Holder::HOUSE, "house ", 0);
    hold(&mut tree, ALICE, "house of alice", 1);
    assert_eq!(hit_len(&tree, ALICE, "house of alice"), 14);
    assert_eq!(hit_len(&tree, BOB, "house of alice"), 6);
    hold(&mut tree, BOB, "house of alice", 2);
    assert_eq!(hit_len(&tree, BOB, "house of alice"), 14);
}

#[test]
fn a_prefix_computed_twice_is_held_once() {
    let mut tree = Tree::new();
    let root = tree.lock(tree.find(ALICE, &[]));
    let first = tree.extend(root, ALICE, &tokens("abcd"), SeqId(0));
    let root = tree.lock(Hit { node: tree.root(), n_tokens: 0, continues: false });
    let second = tree.extend(root, ALICE, &tokens("abxy"), SeqId(1));
    assert_eq!((first.n_duplicate, second.n_duplicate), (0, 2));
    assert_eq!(tree.n_cells(), 6);
    tree.check();
}

#[test]
fn a_running_leaf_grows_in_place_and_gives_way_when_another_stands_on_it() {
    let mut tree = Tree::new();
    let at = tree.lock(tree.find(ALICE, &[]));
    let at = tree.extend(at, ALICE, &tokens("ab"), SeqId(0)).node;
    assert_eq!(tree.extend(at, ALICE, &tokens("cd"), SeqId(0)).node, at, "alone it grows in place");
    let other = tree.lock(tree.find(ALICE, &tokens("abcd")));
    assert_eq!(other, at);
    let grown = tree.extend(at, ALICE, &tokens("ef"), SeqId(0)).node;
    assert_ne!(grown, other, "the other still stands at its end");
    assert_eq!(tree.end(other), 4);
    tree.check();
}

#[test]
fn an_evicted_leaf_hands_its_id_to_a_parent_that_becomes_a_leaf() {
    let mut tree = Tree::new();
    hold(&mut tree, ALICE, "abcd", 0);
    hold(&mut tree, ALICE, "abxy", 1);
    let first = evict(&mut tree).unwrap();
    assert_eq!((first.seq, first.inherited, first.start), (SeqId(0), false, 2), "the older leaf goes first");
    tree.check();
    let second = evict(&mut tree).unwrap();
    assert_eq!((second.seq, second.inherited, second.n_cells), (SeqId(1), true, 2));
    tree.check();
    assert_eq!(hit_len(&tree, ALICE, "abxy"), 2);
    assert!(!evict(&mut tree).unwrap().inherited);
    assert_eq!(evict(&mut tree), None);
    assert_eq!(tree.n_cells(), 0);
}

#[test]
fn eviction_never_takes_a_locked_or_pinned_node() {
    let mut tree = Tree::new();
    let pin = hold(&mut tree, Holder::HOUSE, "pinned", 0);
    tree.pin(pin);
    hold(&mut tree, ALICE, "pinned and more", 1);
    let locked = tree.lock(tree.find(ALICE, &tokens("pinned and")));
    assert_eq!(evict(&mut tree).unwrap().n_cells, 5);
    assert_eq!(evict(&mut tree), None);
    tree.unlock(locked);
    assert_eq!(evict(&mut tree).unwrap().n_cells, 4);
    assert_eq!(evict(&mut tree), None);
    tree.unpin(pin);
    assert_eq!(evict(&mut tree).unwrap().n_cells, 6);
}

#[derive(Clone, Debug)]
enum Op {
    /// Find, lock and stand there.
    Stand(u8, Vec<Token>),
    /// The i-th standing sequence computes a run.
    Extend(usize, Vec<Token>),
    Leave(usize),
    Pin(usize),
    Unpin(usize),
    Evict,
}

fn op(n_holders: u8) -> impl Strategy<Value = Op> {
    // Two tokens make collisions, splits and duplicates frequent.
    let run = proptest::collection::vec((0..2).prop_map(Token), 0..9);
    prop_oneof![
        (0..n_holders, run.clone()).prop_map(|(holder, run)| Op::Stand(holder, run)),
        (any::<usize>(), run).prop_map(|(i, run)| Op::Extend(i, run)),
        any::<usize>().prop_map(Op::Leave),
        any::<usize>().prop_map(Op::Pin),
        any::<usize>().prop_map(Op::Unpin),
        Just(Op::Evict),
    ]
}

/// A sequence that stands in the tree: its node, the tokens up to it, its id.
struct Standing {
    holder: Holder,
    node: NodeId,
    tokens: Vec<Token>,
    seq: SeqId,
}

/// The oracle: every held cell as (holder, the tokens up to and with it), and how often it is held.
///
/// With several holders a prefix may be held twice: when the house computes what someone held privately before.
type Oracle = BTreeMap<(u8, Vec<Token>), usize>;

const N_HOLDERS: u8 = 5;

/// The first three under no adapter, the others under one.
fn holder_of(index: u8) -> Holder {
    let adapters = AdapterSet::NONE.with(0, Scale::ONE);
    [Holder::HOUSE, ALICE, BOB, Holder { adapters, ..Holder::HOUSE }, Holder { adapters, ..ALICE }][usize::from(index)]
}

fn index_of(holder: Holder) -> u8 {
    (0..N_HOLDERS).find(|&index| holder_of(index) == holder).unwrap()
}

/// Whether `holder` has `cell`, or the house under the same adapters.
fn is_seen(oracle: &Oracle, holder: u8, cell: &[Token]) -> bool {
    let house = index_of(holder_of(holder).house());
    [house, holder].iter().any(|&holder| oracle.contains_key(&(holder, cell.to_vec())))
}

fn naive_find(oracle: &Oracle, holder: u8, tokens: &[Token]) -> usize {
    (1..=tokens.len()).take_while(|&n| is_seen(oracle, holder, &tokens[..n])).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_tree_of_one_holder_equals_a_naive_oracle(ops in proptest::collection::vec(op(1), 1..60)) {
        check(ops, true)?;
    }

    #[test]
    fn the_tree_of_several_holders_equals_a_naive_oracle(ops in proptest::collection::vec(op(N_HOLDERS), 1..60)) {
        check(ops, false)?;
    }
}

/// Applies `ops` to the tree and to the oracle and compares after each. `held_once`: no cell may be held twice.
fn check(ops: Vec<Op>, held_once: bool) -> Result<(), TestCaseError> {
    let mut tree = Tree::new();
    let mut oracle = Oracle::new();
    let mut standing: Vec<Standing> = Vec::new();
    let mut pins: Vec<(NodeId, Vec<Token>)> = Vec::new();
    let mut next_seq = 0;
    for op in ops {
        match op {
            Op::Stand(holder, tokens) => {
                let hit = tree.find(holder_of(holder), &tokens);
                prop_assert_eq!(hit.n_tokens, naive_find(&oracle, holder, &tokens));
                let node = tree.lock(hit);
                prop_assert_eq!(tree.end(node), hit.n_tokens);
                let tokens = tokens[..hit.n_tokens].to_vec();
                prop_assert_eq!(tree.path(node), tokens.clone());
                standing.push(Standing { holder: holder_of(holder), node, tokens, seq: SeqId(next_seq) });
                next_seq += 1;
            }
            Op::Extend(i, run) if !standing.is_empty() => {
                let i = i % standing.len();
                let at = &mut standing[i];
                let extended = tree.extend(at.node, at.holder, &run, at.seq);
                let start = at.tokens.len();
                at.tokens.extend(&run);
                at.node = extended.node;
                prop_assert_eq!(tree.path(at.node), at.tokens.clone());
                let holder = index_of(at.holder);
                for n in 1..=run.len() {
                    let cell = at.tokens[..start + n].to_vec();
                    let is_duplicate = n <= extended.n_duplicate;
                    let is_held = is_seen(&oracle, holder, &cell);
                    prop_assert!(!is_duplicate || is_held, "only what was held is a duplicate");
                    prop_assert!(!held_once || is_duplicate == is_held, "what was held is a duplicate");
                    if !is_duplicate {
                        *oracle.entry((holder, cell)).or_default() += 1;
                    }
                }
            }
            Op::Leave(i) if !standing.is_empty() => {
                let left = standing.remove(i % standing.len());
                tree.unlock(left.node);
            }
            Op::Pin(i) if !standing.is_empty() => {
                let at = &standing[i % standing.len()];
                tree.pin(at.node);
                pins.push((at.node, at.tokens.clone()));
            }
            Op::Unpin(i) if !pins.is_empty() => {
                let (node, _) = pins.remove(i % pins.len());
                tree.unpin(node);
            }
            Op::Evict => {
                if let Some(evicted) = evict(&mut tree) {
                    for n in evicted.start + 1..=evicted.path.len() {
                        let cell = (index_of(evicted.holder), evicted.path[..n].to_vec());
                        let count = oracle.get_mut(&cell).expect("only what is held is evicted");
                        *count -= 1;
                        if *count == 0 {
                            oracle.remove(&cell);
                        }
                    }
                    prop_assert_eq!(evicted.n_cells, evicted.path.len() - evicted.start);
                } else {
                    prop_assert_eq!(tree.n_evictable(), 0, "what is evictable can be evicted");
                }
            }
            _ => {}
        }
        tree.check();
        prop_assert_eq!(tree.n_cells(), oracle.values().sum::<usize>());
        for at in &standing {
            prop_assert_eq!(tree.path(at.node), at.tokens.clone(), "a locked path stays");
        }
        for (node, tokens) in &pins {
            prop_assert_eq!(tree.path(*node), tokens.clone(), "a pinned path stays");
        }
    }
    for at in standing {
        tree.unlock(at.node);
    }
    for (node, _) in pins {
        tree.unpin(node);
    }
    while evict(&mut tree).is_some() {}
    tree.check();
    prop_assert_eq!(tree.n_cells(), 0);
    Ok(())
}

#[test]
fn what_came_back_outlives_what_was_seen_once() {
    let mut tree = Tree::new();
    let talk = hold(&mut tree, ALICE, "talk", 0);
    tree.hit(talk);
    let more = hold(&mut tree, ALICE, "talk goes on", 0);
    assert_eq!(tree.reuse(more), Reuse::Hits(1), "what goes on from it is expected back, too");
    hold(&mut tree, Holder::HOUSE, "pin", 1);
    hold(&mut tree, ALICE, "pin once", 2);
    hold(&mut tree, ALICE, "shot", 3);
    let evicted = |tree: &mut Tree| String::from_utf8(evict(tree).unwrap().path.iter().map(|t| t.0 as u8).collect());
    let order: Vec<String> = (0..3).map(|_| evicted(&mut tree).unwrap()).collect();
    assert_eq!(order, ["pin once", "pin", "shot"]);
    assert_eq!(hit_len(&tree, ALICE, "talk goes on"), 12);
}

#[test]
fn what_covers_a_path_covers_its_first_part_and_not_what_grew_behind_it() {
    let mut tree = Tree::new();
    let node = hold(&mut tree, ALICE, "abcdef", 0);
    let key = SegmentKey([7; 32]);
    tree.set_saved(node, key);
    hold(&mut tree, ALICE, "abcxyz", 1);
    let saved = |tree: &Tree, text: &str| tree.node(tree.find(ALICE, &tokens(text)).node).saved;
    assert_eq!((saved(&tree, "abc"), saved(&tree, "abcdef"), saved(&tree, "abcxyz")), (Some(key), Some(key), None));
    let at = tree.lock(tree.find(ALICE, &tokens("abcdef")));
    let grown = tree.extend(at, ALICE, &tokens("gh"), SeqId(0));
    assert_eq!(saved(&tree, "abcdefgh"), None);
    tree.unlock(grown.node);
}

#[test]
fn a_leaf_is_idle_when_two_epochs_have_begun_since_its_last_use() {
    let mut tree = Tree::new();
    hold(&mut tree, ALICE, "one", 0);
    tree.next_epoch();
    hold(&mut tree, ALICE, "two", 1);
    tree.next_epoch();
    let path = |leaf: Leaf, tree: &Tree| tree.path(leaf.node);
    assert_eq!(tree.idle_leaf(|_| true).map(|leaf| path(leaf, &tree)), Some(tokens("one")));
    assert_eq!(tree.idle_leaf(|_| false), None);
}
