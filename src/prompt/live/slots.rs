//! Slots: the places of a system text where something changes between blocks that stay, and what stands in them now.
//!
//! A *slot* lies between two stable neighbours; its value in a request is whatever stands there, possibly nothing. A
//! *layout* is the list of stable blocks and slots that a conversation is rendered with; it never changes. Which slots
//! there are is decided by `family`, what is done with their values by `compose`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::blocks::{Block, Kind};
use super::digest::Digest;
use super::names::Names;
use crate::request::Message;

/// Cells of the table that aligns two lists exactly; above it (two texts of 500 blocks without a common end), only blocks
/// that occur once in both are aligned.
const TABLE_CELLS_MAX: usize = 250_000;

/// A slot's number in its layout, from the front.
pub(super) type SlotIdx = u16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Layout {
    pub(super) version: u32,
    pub(super) places: Vec<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Place {
    /// A block that stays.
    Stable(Digest),
    Clock,
    /// `holds`: the freest that has ever stood in it.
    State {
        holds: Form,
    },
}

/// What the text in a slot looks like, and with it who may move it.
///
/// `safe` moves data from wherever it stands, and what people wrote as sentences only where nothing else changes by it: a
/// few short lines at the text's very end, behind which stand tools and the conversation alone. In front of the question
/// they have the same text before them, and behind them what was asked. Home Assistant's area and timers lines stand there.
/// A sentence between others may be about its neighbours, and a paragraph is an instruction: only `optimise` moves those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Form {
    /// List items, rows and `key: value` lines, their headings included.
    Data,
    /// `N_LINES_MAX` short lines at most.
    Lines,
    Prose,
}

/// More short lines than this are a paragraph, however it is broken. Home Assistant adds two for a device.
const N_LINES_MAX: usize = 3;

impl Form {
    /// Of a slot with blocks of these kinds in it; `has_items`: some of them stand in a list.
    pub(super) fn of(kinds: impl Iterator<Item = Kind>, has_items: bool) -> Form {
        let mut n_lines = 0;
        let mut form = Form::Data;
        for kind in kinds {
            form = form.max(match kind {
                Kind::Item | Kind::Row | Kind::KeyValue => Form::Data,
                // A heading moves with its items.
                Kind::Heading if has_items => Form::Data,
                Kind::Line => Form::Lines,
                Kind::Heading | Kind::Prose => Form::Prose,
            });
            n_lines += usize::from(kind == Kind::Line);
        }
        if n_lines > N_LINES_MAX { Form::Prose } else { form }
    }
}

/// What may leave the system text of one request.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) may_move_prose: bool,
    /// Blocks that the client marked for its own cache, and which stay.
    pub(super) fixed_blocks: Range<usize>,
}

/// A system text laid out.
#[derive(Debug)]
pub(super) struct Placed {
    /// What stays of each leading message; `None`: nothing.
    pub(super) texts: Vec<Option<String>>,
    /// Over all that stays.
    pub(super) digest: Digest,
    /// By slot index.
    pub(super) values: Vec<Value>,
    /// Slot indices whose value holds the time.
    pub(super) clocks: Vec<SlotIdx>,
    /// Where each block went.
    pub(super) to: Vec<Option<SlotIdx>>,
}

/// What stands in a slot. Two values are equal if their texts are.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Value {
    /// Empty: nothing stands there.
    pub(super) text: Arc<str>,
    /// What it must stand under to be known; of an empty one what it stood under.
    pub(super) label: Option<Arc<str>>,
    /// It is the time or the date, which the block's first line shows.
    pub(super) is_in_marker: bool,
}

/// A value that the house says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::prompt) struct HouseSlot {
    pub(in crate::prompt) name: String,
    /// As it is written; empty: nothing is known.
    pub(in crate::prompt) text: Arc<str>,
    /// It is the time or the date: the marker shows it.
    pub(in crate::prompt) is_clock: bool,
}

/// Lays `blocks` of `n_messages` leading messages out. `None`: nothing would stay, so nothing may move.
pub(super) fn place(layout: &Layout, blocks: &[Block], n_messages: usize, terms: &Terms) -> Option<Placed> {
    let mut to: Vec<Option<SlotIdx>> = vec![None; blocks.len()];
    // For each slot the block that it stands behind.
    let mut behind: Vec<Option<usize>> = vec![None; layout.n_slots()];
    // Lines that move if they stand at the end.
    let mut lines_to = to.clone();
    let numbers = slot_numbers(&layout.places);
    let digest_of = |place: &Place| if let Place::Stable(digest) = place { Some(*digest) } else { None };
    for run in runs(&layout.places, digest_of, blocks) {
        let places = &layout.places[run.places.clone()];
        let clock = places.iter().position(|place| *place == Place::Clock).map(|at| numbers[run.places.start + at]);
        let states: Vec<usize> = run.states(&layout.places, |place| !matches!(place, Place::Clock));
        let is_slot: Vec<bool> =
            states.iter().map(|&place_idx| matches!(layout.places[place_idx], Place::State { .. })).collect();
        let plain: Vec<usize> = run.blocks.clone().filter(|&block_idx| !blocks[block_idx].is_clock).collect();
        for block_idx in run.blocks.clone().filter(|&block_idx| blocks[block_idx].is_clock) {
            to[block_idx] = clock;
        }
        for (&place_idx, range) in states.iter().zip(assign(&is_slot, plain.len())) {
            let Place::State { holds } = layout.places[place_idx] else { continue };
            let before = range.start.checked_sub(1).map(|at| plain[at]).or(run.blocks.start.checked_sub(1));
            behind[usize::from(numbers[place_idx])] = before;
            let slot_blocks = &plain[range];
            let has_items = slot_blocks.iter().any(|&block_idx| blocks[block_idx].list.is_some());
            let kinds = slot_blocks.iter().map(|&block_idx| blocks[block_idx].kind);
            let moving = match holds.max(Form::of(kinds, has_items)) {
                _ if terms.may_move_prose => &mut to,
                Form::Data => &mut to,
                Form::Lines => &mut lines_to,
                Form::Prose => continue,
            };
            slot_blocks.iter().for_each(|&block_idx| moving[block_idx] = Some(numbers[place_idx]));
        }
    }
    for (to, lines_to) in to.iter_mut().zip(lines_to).rev() {
        if to.is_none() {
            if lines_to.is_none() {
                break;
            }
            *to = lines_to;
        }
    }
    to[terms.fixed_blocks.clone()].fill(None);
    let names = Names::of(blocks);
    names.settle(&mut to);
    if to.iter().all(Option::is_some) {
        return None;
    }

    let texts = staying(blocks, &to, n_messages);
    let clocks = layout.places.iter().zip(&numbers).filter(|(place, _)| **place == Place::Clock);
    Some(Placed {
        digest: digest(&texts),
        texts,
        values: values(blocks, &to, &names, &behind),
        clocks: clocks.map(|(_, &number)| number).collect(),
        to,
    })
}

impl Placed {
    /// Nothing leaves `leading`.
    pub(super) fn untouched(layout: &Layout, leading: &[Message]) -> Placed {
        let text = |message: &Message| Some(message.content.clone()).filter(|text| !text.trim().is_empty());
        let texts: Vec<Option<String>> = leading.iter().map(text).collect();
        Placed {
            digest: digest(&texts),
            texts,
            values: vec![Value::default(); layout.n_slots()],
            clocks: Vec::new(),
            to: Vec::new(),
        }
    }

    /// The house's slots come behind the client's.
    pub(super) fn with_house(mut self, house: &[HouseSlot]) -> Placed {
        for HouseSlot { text, is_clock, .. } in house {
            if *is_clock {
                self.clocks.push(self.values.len() as SlotIdx);
            }
            self.values.push(Value { text: text.clone(), label: None, is_in_marker: *is_clock });
        }
        self
    }
}

fn digest(texts: &[Option<String>]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        let text = text.as_deref();
        hasher.update(&(text.map_or(u64::MAX, |text| text.len() as u64)).to_le_bytes());
        hasher.update(text.unwrap_or_default().as_bytes());
    }
    Digest::so_far(&hasher)
}

impl Layout {
    pub(super) fn n_slots(&self) -> usize {
        self.places.iter().filter(|place| !matches!(place, Place::Stable(_))).count()
    }
}

/// For each place the number of its slot, if it is one.
fn slot_numbers(places: &[Place]) -> Vec<SlotIdx> {
    let mut next = 0;
    let number = |place: &Place| {
        let number = next;
        next += SlotIdx::from(!matches!(place, Place::Stable(_)));
        number
    };
    places.iter().map(number).collect()
}

/// The text of each message without what moved.
///
/// Between two blocks that stay stands the widest of the gaps that lay between them, so that the text is the same whether
/// a slot between them holds something or not; behind the last one stands the message's own end.
fn staying(blocks: &[Block], to: &[Option<SlotIdx>], n_messages: usize) -> Vec<Option<String>> {
    let mut texts: Vec<Option<String>> = vec![None; n_messages];
    let mut gap: Option<&str> = None;
    for (block_idx, block) in blocks.iter().enumerate() {
        let is_last = blocks.get(block_idx + 1).is_none_or(|next| next.message_idx != block.message_idx);
        let text = &mut texts[block.message_idx];
        if to[block_idx].is_none() {
            let text = text.get_or_insert_default();
            text.push_str(gap.take().unwrap_or_default());
            text.push_str(block.content);
            gap = Some(block.gap);
        } else if let Some(before) = gap
            && (is_last || width(block.gap) > width(before))
        {
            gap = Some(block.gap);
        }
        if is_last && let Some(gap) = gap.take() {
            text.get_or_insert_default().push_str(gap);
        }
    }
    texts
}

fn width(gap: &str) -> (usize, usize) {
    (gap.matches('\n').count(), gap.len())
}

fn values(blocks: &[Block], to: &[Option<SlotIdx>], names: &Names, behind: &[Option<usize>]) -> Vec<Value> {
    let n_slots = behind.len();
    let mut texts: Vec<String> = vec![String::new(); n_slots];
    let mut labels: Vec<Option<Arc<str>>> = vec![None; n_slots];
    // The last block of each slot, to know whether the gap behind it was between two of its own.
    let mut last_idx: Vec<usize> = vec![usize::MAX; n_slots];
    for (block_idx, block) in blocks.iter().enumerate() {
        let Some(slot) = to[block_idx].map(usize::from) else { continue };
        if last_idx[slot] != usize::MAX {
            let follows = last_idx[slot] + 1 == block_idx && !blocks[last_idx[slot]].gap.is_empty();
            texts[slot].push_str(if follows { blocks[last_idx[slot]].gap } else { "\n" });
        } else {
            labels[slot] = names.name(block_idx);
        }
        // White space in front of the text's first block means nothing elsewhere.
        let content = if block_idx == 0 { block.content.trim_start() } else { block.content };
        texts[slot].push_str(content);
        last_idx[slot] = block_idx;
    }
    let value = |((text, label), behind): ((String, Option<Arc<str>>), &Option<usize>)| {
        // What is gone is named by where it was.
        let label = if text.is_empty() { behind.and_then(|behind| names.name_behind(behind)) } else { label };
        Value { text: text.into(), label, is_in_marker: false }
    };
    texts.into_iter().zip(labels).zip(behind).map(value).collect()
}

/// What lies between two neighbours that are the same in both lists.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) places: Range<usize>,
    /// Clocks included.
    pub(super) blocks: Range<usize>,
    /// The place and the block that end the run and are the same; `None` at the texts' ends.
    pub(super) anchor: Option<(usize, usize)>,
}

impl Run {
    /// The run's places that take blocks other than clocks.
    fn states<P>(&self, places: &[P], takes_blocks: impl Fn(&P) -> bool) -> Vec<usize> {
        self.places.clone().filter(|&place_idx| takes_blocks(&places[place_idx])).collect()
    }
}

/// Cuts both lists at the blocks they have in common. `digest_of`: a place that is one block.
pub(super) fn runs<P>(places: &[P], digest_of: impl Fn(&P) -> Option<Digest>, blocks: &[Block]) -> Vec<Run> {
    let (place_idxs, place_digests): (Vec<usize>, Vec<Digest>) =
        places.iter().enumerate().filter_map(|(place_idx, place)| Some((place_idx, digest_of(place)?))).unzip();
    let (block_idxs, block_digests): (Vec<usize>, Vec<Digest>) = blocks
        .iter()
        .enumerate()
        .filter(|(_, block)| !block.is_clock)
        .map(|(block_idx, block)| (block_idx, block.digest))
        .unzip();
    let mut runs = Vec::new();
    let (mut place_start, mut block_start) = (0, 0);
    for (place, block) in align(&place_digests, &block_digests) {
        let (place_idx, block_idx) = (place_idxs[place], block_idxs[block]);
        let anchor = Some((place_idx, block_idx));
        runs.push(Run { places: place_start..place_idx, blocks: block_start..block_idx, anchor });
        (place_start, block_start) = (place_idx + 1, block_idx + 1);
    }
    runs.push(Run { places: place_start..places.len(), blocks: block_start..blocks.len(), anchor: None });
    runs
}

/// Which of `n` consecutive blocks stand in which of the run's places. Without a slot one in each, in order. The first
/// slot takes what the others leave, and one before them: what changes is more likely to change again than to be gone.
pub(super) fn assign(is_slot: &[bool], n: usize) -> Vec<Range<usize>> {
    let slot = is_slot.iter().position(|is_slot| *is_slot);
    let n_others = is_slot.len() - usize::from(slot.is_some());
    let n_slot = n.saturating_sub(n_others).max(n.min(1));
    let mut start = 0;
    let take = |at: usize| {
        // What is left behind the slot goes to the places behind it, one each.
        let n_taken = if Some(at) == slot { n_slot.min(n - start) } else { 1.min(n - start) };
        let reserved = if slot.is_some_and(|slot| at < slot) { n_slot } else { 0 };
        let end = (start + n_taken).min(n.saturating_sub(reserved).max(start));
        let range = start..end;
        start = end;
        range
    };
    (0..is_slot.len()).map(take).collect()
}

/// Pairs of equal items of two lists, rising in both: a longest common subsequence, if the lists are not too long.
fn align(left: &[Digest], right: &[Digest]) -> Vec<(usize, usize)> {
    let n_front = left.iter().zip(right).take_while(|(left, right)| left == right).count();
    let n_back = left[n_front..].iter().rev().zip(right[n_front..].iter().rev()).take_while(|(l, r)| l == r).count();
    let (left_end, right_end) = (left.len() - n_back, right.len() - n_back);
    let mut pairs: Vec<(usize, usize)> = (0..n_front).map(|at| (at, at)).collect();
    let (left_mid, right_mid) = (&left[n_front..left_end], &right[n_front..right_end]);
    let middle = if left_mid.len() * right_mid.len() <= TABLE_CELLS_MAX {
        common(left_mid, right_mid)
    } else {
        unique_common(left_mid, right_mid)
    };
    pairs.extend(middle.into_iter().map(|(l, r)| (n_front + l, n_front + r)));
    pairs.extend((0..n_back).map(|at| (left_end + at, right_end + at)));
    pairs
}

/// The longest common subsequence by table; of several the one that is first in `left`.
fn common(left: &[Digest], right: &[Digest]) -> Vec<(usize, usize)> {
    let width = right.len() + 1;
    // lengths[l * width + r]: of the longest one of left[l..] and right[r..].
    let mut lengths = vec![0u16; (left.len() + 1) * width];
    for l in (0..left.len()).rev() {
        for r in (0..right.len()).rev() {
            lengths[l * width + r] = if left[l] == right[r] {
                lengths[(l + 1) * width + r + 1] + 1
            } else {
                lengths[(l + 1) * width + r].max(lengths[l * width + r + 1])
            };
        }
    }
    let mut pairs = Vec::new();
    let (mut l, mut r) = (0, 0);
    while l < left.len() && r < right.len() {
        if left[l] == right[r] {
            pairs.push((l, r));
            (l, r) = (l + 1, r + 1);
        } else if lengths[(l + 1) * width + r] >= lengths[l * width + r + 1] {
            l += 1;
        } else {
            r += 1;
        }
    }
    pairs
}

/// Pairs of what occurs once in both, in order; what would cross an earlier pair is left out.
fn unique_common(left: &[Digest], right: &[Digest]) -> Vec<(usize, usize)> {
    let count = |list: &[Digest]| {
        let mut seen: HashMap<Digest, (usize, usize)> = HashMap::new();
        for (at, digest) in list.iter().enumerate() {
            seen.entry(*digest).or_insert((at, 0)).1 += 1;
        }
        seen
    };
    let (in_left, in_right) = (count(left), count(right));
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for (l, digest) in left.iter().enumerate() {
        if let (Some((_, 1)), Some(&(r, 1))) = (in_left.get(digest), in_right.get(digest))
            && pairs.last().is_none_or(|&(_, last)| last < r)
        {
            pairs.push((l, r));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::live::blocks::{Clocks, split};
    use proptest::prelude::*;

    fn digests(text: &str) -> Vec<Digest> {
        text.chars().map(|c| Digest::of(c.to_string().as_bytes())).collect()
    }

    #[test]
    fn the_slot_takes_what_its_neighbours_leave() {
        let check = |is_slot: &[bool], n: usize, expected: &[usize]| {
            let n_each: Vec<usize> = assign(is_slot, n).iter().map(Range::len).collect();
            assert_eq!(n_each, expected, "{is_slot:?} {n}");
        };
        check(&[true], 3, &[3]);
        check(&[false, true], 2, &[1, 1]);
        check(&[true, false], 4, &[3, 1]);
        check(&[true, false], 1, &[1, 0]);
        check(&[false, true, false], 2, &[1, 1, 0]);
        check(&[false, true], 1, &[0, 1]);
        check(&[false, false], 3, &[1, 1]);
        check(&[true, true], 3, &[2, 1]);
        check(&[true, false], 0, &[0, 0]);
    }

    #[test]
    fn what_stays_is_the_same_with_and_without_a_value() {
        let layout = |text: &str, slot_at: usize| {
            let mut blocks = Vec::new();
            split(text, 0, Clocks::NONE, &mut blocks);
            let mut places: Vec<Place> = blocks.iter().map(|block| Place::Stable(block.digest)).collect();
            places.insert(slot_at, Place::State { holds: Form::Data });
            Layout { version: 0, places }
        };
        let laid = |layout: &Layout, text: &str| {
            let mut blocks = Vec::new();
            split(text, 0, Clocks::NONE, &mut blocks);
            let terms = Terms { may_move_prose: true, fixed_blocks: 0..0 };
            let placed = place(layout, &blocks, 1, &terms).expect("something stays");
            (placed.texts[0].clone().unwrap(), placed.values[0].text.to_string())
        };
        for (bare, slot_at, full, value) in [
            ("A.\n\nB.", 1, "A.\nX.\n\nB.", "X."),
            ("A.\nB.", 2, "A.\nB.\nX.", "X."),
            ("A.\nB.\n", 2, "A.\nB.\n\nX.\nY.\n", "X.\nY."),
            ("A.\nB.", 0, "X.\nA.\nB.", "X."),
        ] {
            let layout = layout(bare, slot_at);
            assert_eq!(laid(&layout, bare), (bare.to_string(), String::new()));
            assert_eq!(laid(&layout, full), (bare.to_string(), value.to_string()));
        }
    }

    proptest! {
        #[test]
        fn alignment_is_common_rising_and_not_shorter_than_by_unique_items(left in "[abc]{0,12}", right in "[abc]{0,12}") {
            let (left, right) = (digests(&left), digests(&right));
            let pairs = align(&left, &right);
            prop_assert!(pairs.iter().all(|&(l, r)| left[l] == right[r]));
            prop_assert!(pairs.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
            prop_assert!(pairs.len() >= unique_common(&left, &right).len());
            prop_assert_eq!(pairs.len(), common(&left, &right).len());
        }

        #[test]
        fn assigned_blocks_are_in_order_and_none_is_lost_where_there_is_a_slot(is_slot in proptest::collection::vec(any::<bool>(), 1..5), n in 0usize..7) {
            let ranges = assign(&is_slot, n);
            let mut end = 0;
            for range in &ranges {
                prop_assert_eq!(range.start, end);
                end = range.end;
            }
            prop_assert!(end <= n);
            // With several slots the first takes all that the others leave.
            if is_slot.iter().any(|is_slot| *is_slot) {
                prop_assert_eq!(end, n);
            }
        }
    }
}
