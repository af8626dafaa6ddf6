//! Families: requests whose system texts are one text with changing places, and the evidence of what changes.
//!
//! A *family* is what one owner's requests to one model have in common. Its *spine* is the text as last seen, with
//! each block's changes counted; a *layout* is cut from the spine when a conversation needs one, and stays as it is
//!. Values and history are not known here.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::blocks::{Block, Kind};
use super::digest::Digest;
use super::slots::{Form, Layout, Place, assign, runs};

/// Changes that make a state. Changed blocks are counted: a run in which two lines changed at once is evidence
/// enough. Nothing is lost by believing it then: what stands behind a change is computed anyway.
const N_CHANGES_MIN: u32 = 2;
/// Changed siblings that make the whole list one slot. Added and removed ones do not count: a device that is new
/// in a list of 50 is no reason to repeat all of them in each conversation.
const N_SIBLINGS_MIN: usize = 2;
/// Without a change for this long a state is text like any other.
const STILL_S: i64 = 30 * 24 * 3600;
/// A text laid this recently is likely to be held, and worth more than a better layout.
const HELD_S: i64 = 3600;
/// Conversations older than this many changes of the layout start anew: their layout is forgotten.
const N_LAYOUTS_MAX: usize = 8;
/// Texts remembered as laid, and beginnings of texts as sent: some of each for a request.
const N_LAID_MAX: usize = 256;
/// A slot whose value is this many times longer than ever before holds another text.
const GROWTH_MAX: usize = 2;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Family {
    pub(super) id: u64,
    pub(super) owner: Digest,
    pub(super) model: String,
    pub(super) used_at: i64,
    spine: Vec<Vertebra>,
    /// Oldest first; the last one is for new conversations. Never empty.
    layouts: Vec<Layout>,
    /// Cells do not outlive a restart, and this does not.
    #[serde(skip)]
    laid: Vec<LaidText>,
    #[serde(skip)]
    n_bytes: usize,
}

/// A system text that was rendered.
#[derive(Debug)]
struct LaidText {
    text: Digest,
    /// The tools beside it.
    tools: Arc<[Digest]>,
    at: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Vertebra {
    Block(Seen),
    Clock { seen_at: i64 },
    Slot(Slot),
}

/// A block as last seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Seen {
    digest: Digest,
    kind: Kind,
    n_bytes: usize,
    list: Option<Digest>,
    /// Absent ones are kept until they are forgotten: they may come back.
    is_present: bool,
    /// Another text stood in its place, not only more or less text.
    is_altered: bool,
    n_changes: u32,
    changed_at: i64,
}

/// A run of blocks that changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Slot {
    /// As last seen.
    value: Vec<Seen>,
    /// The list it is in, or is.
    list: Option<Digest>,
    /// The freest that has ever stood in it.
    holds: Form,
    is_altered: bool,
    n_bytes_max: usize,
    changed_at: i64,
}

impl Family {
    /// A family whose first request has `blocks`: nothing but clocks changes yet.
    pub(super) fn new(id: u64, owner: Digest, model: &str, blocks: &[Block], now: i64) -> Family {
        let mut family = Family {
            id,
            owner,
            model: model.to_string(),
            used_at: now,
            spine: Vec::new(),
            layouts: Vec::new(),
            laid: Vec::new(),
            n_bytes: 0,
        };
        let mut was_clock = false;
        for block in blocks {
            if !block.is_clock {
                family.spine.push(Vertebra::Block(Seen::of(block, 0, now)));
            } else if !was_clock {
                family.spine.push(Vertebra::Clock { seen_at: now });
            }
            was_clock = block.is_clock;
        }
        family.layouts.push(family.cut(0));
        family
    }

    /// How much of the stable bytes of `blocks` and of the spine are the same: 0 to 1.
    pub(super) fn agreement(&self, blocks: &[Block]) -> f64 {
        let (mut n_same, mut n_missing, mut n_strange) = (0, 0, 0);
        for run in runs(&self.spine, Vertebra::digest, blocks) {
            let missing = run.places.clone().filter_map(|at| match &self.spine[at] {
                Vertebra::Block(seen) if seen.is_present => Some(seen.n_bytes),
                _ => None,
            });
            n_missing += missing.sum::<usize>();
            let plain = run.blocks.clone().filter(|&at| !blocks[at].is_clock).map(|at| blocks[at].content.len());
            let slots = run.places.clone().filter_map(|at| match &self.spine[at] {
                Vertebra::Slot(slot) => Some(slot.n_bytes_max * GROWTH_MAX + 256),
                _ => None,
            });
            n_strange += plain.sum::<usize>().saturating_sub(slots.sum());
            n_same += run.anchor.map_or(0, |(_, block_idx)| blocks[block_idx].content.len());
        }
        let n_all = n_same + n_missing.max(n_strange);
        if n_all == 0 { 1.0 } else { n_same as f64 / n_all as f64 }
    }

    /// Counts what changed since the last request.
    pub(super) fn observe(&mut self, blocks: &[Block], now: i64) {
        self.used_at = now;
        let runs = runs(&self.spine, Vertebra::digest, blocks);
        let mut spine: Vec<Vertebra> = Vec::with_capacity(self.spine.len() + 1);
        let mut old = std::mem::take(&mut self.spine).into_iter();
        let mut changed = false;
        for run in runs {
            let in_run: Vec<Vertebra> = old.by_ref().take(run.places.len()).collect();
            changed |= observe_run(in_run, &blocks[run.blocks.clone()], now, &mut spine);
            if let Some((_, block_idx)) = run.anchor
                && let Some(Vertebra::Block(mut seen)) = old.next()
            {
                if !seen.is_present {
                    seen.change(now);
                    seen.is_present = true;
                    changed = true;
                }
                // The same block may stand in another list now.
                seen.list = blocks[block_idx].list;
                spine.push(Vertebra::Block(seen));
            }
        }
        self.spine = spine;
        if changed {
            self.join_siblings(now);
            self.join_neighbours(now);
        }
    }

    pub(super) fn layout(&self, version: u32) -> Option<&Layout> {
        self.layouts.iter().find(|layout| layout.version == version)
    }

    /// The layout for new conversations.
    pub(super) fn current(&self) -> &Layout {
        self.layouts.last().expect("a family has a layout")
    }

    /// Makes what was learnt the layout for new conversations.
    pub(super) fn renew(&mut self) -> &Layout {
        let version = self.current().version + 1;
        let layout = self.cut(version);
        if layout.places != self.current().places {
            self.layouts.push(layout);
            let n_over = self.layouts.len().saturating_sub(N_LAYOUTS_MAX);
            self.layouts.drain(..n_over);
        }
        self.current()
    }

    /// All layouts that conversations have, the newest first.
    pub(super) fn layouts(&self) -> impl Iterator<Item = &Layout> {
        self.layouts.iter().rev()
    }

    /// Whether this text was laid so recently, with these tools first, that both are likely to be held.
    pub(super) fn is_held(&self, text: Digest, tools: &[Digest], now: i64) -> bool {
        self.laid.iter().any(|laid| laid.text == text && laid.tools.starts_with(tools) && now - laid.at <= HELD_S)
    }

    pub(super) fn note_laid(&mut self, text: Digest, tools: &Arc<[Digest]>, now: i64) {
        self.laid.retain(|laid| (laid.text != text || laid.tools != *tools) && now - laid.at <= HELD_S);
        if self.laid.len() == N_LAID_MAX {
            self.laid.remove(0);
        }
        // A house has two or three lists of tools: each is kept once.
        let known = self.laid.iter().find(|laid| laid.tools == *tools).map(|laid| &laid.tools);
        let tools = known.unwrap_or(tools).clone();
        self.laid.push(LaidText { text, tools, at: now });
    }

    pub(super) fn forget_laid(&mut self) {
        self.laid.clear();
    }

    /// What it takes in memory, as last weighed.
    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    pub(super) fn weigh(&mut self) {
        let value = |vertebra: &Vertebra| match vertebra {
            Vertebra::Slot(slot) => size_of_val(&*slot.value),
            _ => 0,
        };
        let tools: HashMap<_, _> =
            self.laid.iter().map(|laid| (laid.tools.as_ptr(), size_of_val(&*laid.tools))).collect();
        self.n_bytes = size_of::<Family>()
            + self.model.len()
            + size_of_val(&*self.spine)
            + self.spine.iter().map(value).sum::<usize>()
            + self.layouts.iter().map(|layout| size_of_val(&*layout.places)).sum::<usize>()
            + size_of_val(&*self.laid)
            + tools.into_values().sum::<usize>();
    }

    /// Whether it can be used: a file may hold anything.
    pub(super) fn is_whole(&self) -> bool {
        !self.layouts.is_empty()
    }

    /// Turns states that stood still for long into text again.
    pub(super) fn forget_still(&mut self, now: i64) {
        let mut spine = Vec::with_capacity(self.spine.len());
        for vertebra in std::mem::take(&mut self.spine) {
            match vertebra {
                Vertebra::Slot(slot) if now - slot.changed_at >= STILL_S => {
                    spine.extend(slot.value.into_iter().map(|seen| Vertebra::Block(seen.still())));
                }
                Vertebra::Block(seen) if now - seen.changed_at >= STILL_S => {
                    if seen.is_present {
                        spine.push(Vertebra::Block(seen.still()));
                    }
                }
                Vertebra::Clock { seen_at } if now - seen_at >= STILL_S => {}
                other => spine.push(other),
            }
        }
        self.spine = spine;
    }

    fn cut(&self, version: u32) -> Layout {
        let place = |vertebra: &Vertebra| match vertebra {
            Vertebra::Block(seen) => seen.is_present.then_some(Place::Stable(seen.digest)),
            Vertebra::Clock { .. } => Some(Place::Clock),
            Vertebra::Slot(slot) => Some(Place::State { holds: slot.holds }),
        };
        Layout { version, places: self.spine.iter().filter_map(place).collect() }
    }

    /// Lists of which enough items were altered become one slot, their heading included.
    fn join_siblings(&mut self, now: i64) {
        let mut at = 0;
        while let Some(start) = (at..self.spine.len()).find(|&at| self.spine[at].list().is_some()) {
            let list = self.spine[start].list();
            let in_list = |vertebra: &&Vertebra| matches!(vertebra, Vertebra::Clock { .. }) || vertebra.list() == list;
            let end = start + self.spine[start..].iter().take_while(in_list).count();
            let n_altered = self.spine[start..end].iter().filter(|vertebra| vertebra.is_altered()).count();
            let is_heading = |vertebra: &Vertebra| matches!(vertebra, Vertebra::Block(seen) if seen.kind == Kind::Heading && Some(seen.digest) == list);
            at = end;
            if n_altered >= N_SIBLINGS_MIN {
                let has_heading = start > 0 && is_heading(&self.spine[start - 1]);
                let start = start - usize::from(has_heading);
                self.join(start..end, now);
                // The slot, and perhaps a clock in front of it.
                at = start + 1;
                while self.spine.get(at).is_some_and(|vertebra| vertebra.list() == list) {
                    at += 1;
                }
            }
        }
    }

    /// Blocks side by side that changed often enough become one slot, with the slots they touch.
    fn join_neighbours(&mut self, now: i64) {
        let mut at = 0;
        while at < self.spine.len() {
            let list = self.spine[at].list();
            let moves = |vertebra: &Vertebra| match vertebra {
                Vertebra::Block(seen) => seen.n_changes > 0 && seen.list == list,
                Vertebra::Clock { .. } => true,
                Vertebra::Slot(slot) => slot.list == list,
            };
            let n = self.spine[at..].iter().take_while(|vertebra| moves(vertebra)).count();
            let n_changes: u32 = self.spine[at..at + n].iter().map(Vertebra::n_changes).sum();
            if n_changes >= N_CHANGES_MIN {
                self.join(at..at + n, now);
            }
            // Joined or not, what stands here is done; at worst clocks are passed one by one.
            at += 1;
        }
    }

    /// Makes one slot of a range; clocks in it stand in front of it.
    fn join(&mut self, range: std::ops::Range<usize>, now: i64) {
        let mut joined = Slot {
            value: Vec::new(),
            list: self.spine[range.clone()].iter().find_map(Vertebra::list),
            holds: Form::Data,
            is_altered: self.spine[range.clone()].iter().any(Vertebra::is_altered),
            n_bytes_max: 0,
            changed_at: now,
        };
        let mut clock = None;
        let mut blocks: Vec<Seen> = Vec::new();
        for vertebra in self.spine.drain(range.clone()) {
            match vertebra {
                Vertebra::Block(seen) => blocks.push(seen),
                Vertebra::Clock { .. } => clock = Some(vertebra),
                Vertebra::Slot(slot) => {
                    joined.holds = joined.holds.max(slot.holds);
                    joined.n_bytes_max += slot.n_bytes_max;
                    blocks.extend(slot.value);
                }
            }
        }
        // An absent block's kind counts, too: it may come back.
        let has_items = blocks.iter().any(|seen| seen.list.is_some());
        joined.holds = joined.holds.max(Form::of(blocks.iter().map(|seen| seen.kind), has_items));
        joined.value = blocks.into_iter().filter(|seen| seen.is_present).collect();
        joined.n_bytes_max = joined.n_bytes_max.max(joined.value.iter().map(|seen| seen.n_bytes).sum());
        self.spine.splice(range.start..range.start, clock.into_iter().chain([Vertebra::Slot(joined)]));
    }
}

/// Counts the changes between two neighbours that stayed; whether there were any.
fn observe_run(in_run: Vec<Vertebra>, blocks: &[Block], now: i64, spine: &mut Vec<Vertebra>) -> bool {
    let plain: Vec<&Block> = blocks.iter().filter(|block| !block.is_clock).collect();
    let mut clock = in_run.iter().find(|vertebra| matches!(vertebra, Vertebra::Clock { .. })).cloned();
    if blocks.len() > plain.len() {
        clock = Some(Vertebra::Clock { seen_at: now });
    }
    spine.extend(clock);
    let takes_blocks = |vertebra: &Vertebra| match vertebra {
        Vertebra::Block(seen) => seen.is_present,
        Vertebra::Clock { .. } => false,
        Vertebra::Slot(_) => true,
    };
    let is_slot: Vec<bool> = in_run
        .iter()
        .filter(|vertebra| takes_blocks(vertebra))
        .map(|vertebra| matches!(vertebra, Vertebra::Slot(_)))
        .collect();
    let mut ranges = assign(&is_slot, plain.len()).into_iter();
    let mut n_taken = 0;
    let mut changed = false;
    for vertebra in in_run {
        let range = if takes_blocks(&vertebra) { ranges.next().unwrap_or(n_taken..n_taken) } else { n_taken..n_taken };
        n_taken = range.end;
        let blocks = &plain[range];
        match vertebra {
            Vertebra::Clock { .. } => {}
            Vertebra::Slot(mut slot) => {
                let stays = slot.value.len() == blocks.len()
                    && slot.value.iter().zip(blocks).all(|(seen, block)| seen.digest == block.digest);
                if !stays {
                    slot.change(blocks, now);
                    changed = true;
                }
                spine.push(Vertebra::Slot(slot));
            }
            Vertebra::Block(seen) if !seen.is_present => spine.push(Vertebra::Block(seen)),
            Vertebra::Block(mut seen) => {
                seen.change(now);
                match blocks.first() {
                    Some(block) => {
                        seen = Seen { n_changes: seen.n_changes, is_altered: true, ..Seen::of(block, 0, now) };
                    }
                    None => seen.is_present = false,
                }
                changed = true;
                spine.push(Vertebra::Block(seen));
            }
        }
    }
    changed |= n_taken < plain.len();
    spine.extend(plain[n_taken..].iter().map(|block| Vertebra::Block(Seen::of(block, 1, now))));
    changed
}

impl Vertebra {
    fn digest(&self) -> Option<Digest> {
        match self {
            Vertebra::Block(seen) => Some(seen.digest),
            _ => None,
        }
    }

    fn list(&self) -> Option<Digest> {
        match self {
            Vertebra::Block(seen) => seen.list,
            Vertebra::Clock { .. } => None,
            Vertebra::Slot(slot) => slot.list,
        }
    }

    fn is_altered(&self) -> bool {
        match self {
            Vertebra::Block(seen) => seen.is_altered,
            Vertebra::Clock { .. } => false,
            Vertebra::Slot(slot) => slot.is_altered,
        }
    }

    fn n_changes(&self) -> u32 {
        match self {
            Vertebra::Block(seen) => seen.n_changes,
            _ => 0,
        }
    }
}

impl Seen {
    fn of(block: &Block, n_changes: u32, now: i64) -> Seen {
        Seen {
            digest: block.digest,
            kind: block.kind,
            n_bytes: block.content.len(),
            list: block.list,
            is_present: true,
            is_altered: false,
            n_changes,
            changed_at: now,
        }
    }

    fn change(&mut self, now: i64) {
        self.n_changes += 1;
        self.changed_at = now;
    }

    fn still(self) -> Seen {
        Seen { n_changes: 0, is_altered: false, ..self }
    }
}

impl Slot {
    fn change(&mut self, blocks: &[&Block], now: i64) {
        let has_items = blocks.iter().any(|block| block.list.is_some());
        self.holds = self.holds.max(Form::of(blocks.iter().map(|block| block.kind), has_items));
        self.n_bytes_max = self.n_bytes_max.max(blocks.iter().map(|block| block.content.len()).sum());
        self.is_altered |= !self.value.is_empty() && !blocks.is_empty();
        self.value = blocks.iter().map(|block| Seen::of(block, 0, now)).collect();
        self.changed_at = now;
    }
}
