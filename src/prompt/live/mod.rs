//! Live context in clients' own prompts: what changes leaves the system text and stands in front of the question.
//!
//! split into blocks → family → layout → what stays, and the slots' values → the records that fit → the block that is
//! missing. What the house itself says of now is more slots, whose values come from no client's text. *Live* is what changes between requests that are otherwise the same text. What a person, the model or a tool
//! wrote is never changed. One thread owns it; it reads no clock and no template, and counts tokens only of its own words.

mod blocks;
pub(super) mod changes;
mod compose;
mod digest;
mod family;
mod lay;
mod names;
mod records;
mod saved;
mod slots;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

pub(super) use compose::Zone;
pub(super) use digest::Digest;
pub use records::RecordId;
pub(super) use slots::HouseSlot;

pub(super) use crate::request::LayoutMode as Mode;
use crate::request::{Message, Owner, Role};
use blocks::{Block, Clocks};
use family::Family;
use lay::{Prompt, fixed_blocks};
use records::{Record, Records};
use slots::Terms;

/// Stable bytes that must be the same in a family, as a share.
const AGREEMENT_MIN: f64 = 0.75;
/// Families of all owners together; the least used one gives way.
const N_FAMILIES_MAX: usize = 256;
/// Records and evidence; with the tool sets in `seen` they make 32 MiB.
const N_BYTES_MAX: usize = 28 << 20;
/// Evidence has this part of them: 7 MiB are some 200 texts of 150 lines that have changed their layout often.
const FAMILIES_PART: usize = 4;
/// A text of more lines stays as it is: what is kept of it must not be all that is kept.
const N_BLOCKS_MAX: usize = 8192;

/// One request, as far as it matters here.
pub(super) struct Input<'a> {
    pub(super) owner: Owner,
    pub(super) model: &'a str,
    /// The client's own name for the conversation.
    pub(super) conversation: Option<&'a str>,
    /// System text first.
    pub(super) messages: &'a [Message],
    /// What the house itself says in this request, always in the same order; in front of the question in every mode.
    pub(super) house: &'a [HouseSlot],
    /// Bytes of the system messages, one after the other, that are marked for the client's own cache: what begins there stays.
    pub(super) fixed_bytes: Range<usize>,
    /// As they are rendered.
    pub(super) tools: &'a [String],
    pub(super) mode: Mode,
    pub(super) fit: Fit,
    /// Unix time in seconds.
    pub(super) now: i64,
    pub(super) zone: Zone<'a>,
    /// Tokens that the context holds.
    pub(super) n_context_tokens: usize,
    pub(super) count_tokens: &'a dyn Fn(&str) -> usize,
    /// Whether all that a line says is the time, or something made up for one request, at this Unix time.
    pub(super) is_clock: &'a dyn Fn(&str, i64) -> bool,
    /// The sentences of a line that do, in order, with the white space behind them.
    pub(super) clock_sentences: &'a dyn Fn(&str, i64) -> Vec<Range<usize>>,
}

/// How hard to try to be short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    Free,
    /// The prompt was too long: what earlier blocks say is said once, at the end.
    Compact,
}

/// A request laid out.
#[derive(Debug)]
pub(super) struct Laid<'a> {
    pub(super) messages: Cow<'a, [Message]>,
    /// What left the system text, from front to back.
    pub(super) moved: Vec<Moved>,
    /// The live blocks in `messages`, in order.
    pub(super) live: Vec<LiveBlock>,
    /// Bytes at the system text's end that an earlier request left behind and that as sent would be computed again.
    pub(super) n_gained_bytes: usize,
    /// `None`: the text as sent is as likely to be held.
    pub(super) gain: Option<Gain>,
    pub(super) cause: Cause,
    /// Names the turn for `answered`.
    pub(super) record: Option<RecordId>,
}

impl<'a> Laid<'a> {
    pub(super) fn untouched(messages: &'a [Message]) -> Laid<'a> {
        Laid {
            messages: Cow::Borrowed(messages),
            moved: Vec::new(),
            live: Vec::new(),
            n_gained_bytes: 0,
            gain: None,
            cause: Cause::Untouched,
            record: None,
        }
    }
}

/// Where in the leading messages, as they are rendered, the text as sent stops being what was sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gain {
    pub(super) n_bytes_before: usize,
    /// In `observe`: tokens behind it that would not stand there.
    pub(super) n_moved_tokens: Option<usize>,
}

/// The part of a system text that stands in one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub slot: u16,
    pub is_clock: bool,
    /// "clock", "prose", "key", "item", "row", "heading": what its first block is.
    pub kind: &'static str,
    pub text: Arc<str>,
    /// The leading message it is from.
    pub from_message: usize,
    /// Where in it, in bytes, its first block begins.
    pub from_byte: usize,
    /// The message in front of whose content it stands now; `None` in `observe`.
    pub to_message: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LiveBlock {
    pub(super) message_idx: usize,
    pub(super) n_bytes: usize,
    /// Slots and their values there; an empty one says that nothing stands there any more.
    pub(super) entries: Vec<(u16, Arc<str>)>,
}

/// What history was rendered from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Nothing was changed: by mode, or because there is nothing to move or no place for it.
    Untouched,
    /// There is no history.
    New,
    /// From its records.
    Appended,
    /// The same request again.
    Retried,
    /// No record was found: they are lost, or the client trimmed or rewrote its history.
    Trimmed,
    /// Records were found, but the text that stays is another now.
    SystemChanged,
    /// Too much of it was stale, or it had to be shorter.
    Compacted,
}

impl Cause {
    pub fn name(self) -> &'static str {
        match self {
            Cause::Untouched => "untouched",
            Cause::New => "new",
            Cause::Appended => "appended",
            Cause::Retried => "retried",
            Cause::Trimmed => "trimmed",
            Cause::SystemChanged => "system_changed",
            Cause::Compacted => "compacted",
        }
    }
}

/// All families and records. Owned by the planner's thread.
#[derive(Debug)]
pub(super) struct Live {
    families: Vec<Family>,
    next_family: u64,
    records: Records,
    n_bytes_max: usize,
}

impl Default for Live {
    fn default() -> Live {
        Live { families: Vec::new(), next_family: 0, records: Records::new(), n_bytes_max: N_BYTES_MAX }
    }
}

impl Live {
    /// The messages of a request as they are to be rendered. Evidence and records grow; an equal request gets equal
    /// messages.
    pub(super) fn lay<'a>(&mut self, input: &Input<'a>) -> Laid<'a> {
        if input.mode == Mode::Observe && !input.house.is_empty() {
            // The house's own values are laid, the client's text is only looked at.
            let seen = self.lay(&Input { house: &[], fixed_bytes: input.fixed_bytes.clone(), ..*input });
            let laid = self.lay(&Input { mode: Mode::Off, fixed_bytes: input.fixed_bytes.clone(), ..*input });
            return Laid { moved: seen.moved, n_gained_bytes: seen.n_gained_bytes, ..laid };
        }
        self.try_lay(input).unwrap_or(Laid::untouched(input.messages))
    }

    /// Notes what the model said to the turn `record`, so that its history is told from others' with the same words.
    pub(super) fn answered(&mut self, record: RecordId, answer: &Message) {
        self.records.note_answer(record, records::answer(answer));
    }

    /// Forgets what stood still for long, and families and records not used since `since`. For idle times. Whether a family
    /// or a record is gone.
    pub(super) fn idle(&mut self, now: i64, since: i64) -> bool {
        self.families.iter_mut().for_each(|family| family.forget_still(now));
        self.keep(|family| family.used_at >= since, |record| record.used_at >= since)
    }

    /// Forgets families and records of `whose`; `None`: all. Whether there were any.
    pub(super) fn forget(&mut self, whose: Option<Owner>) -> bool {
        let owner = whose.map(owner_digest);
        let is_anothers = |other: Digest| owner.is_some_and(|owner| !owner.is_client_of(other));
        self.keep(|family| is_anothers(family.owner), |record| is_anothers(record.owner))
    }

    /// Whether a family or a record is gone.
    fn keep(&mut self, family: impl Fn(&Family) -> bool, record: impl Fn(&Record) -> bool) -> bool {
        let n_before = (self.families.len(), self.records.len());
        self.families.retain(family);
        self.records.retain(record);
        n_before != (self.families.len(), self.records.len())
    }

    /// Ends above the bound: the least used families give way while they have more than their part, then records.
    fn make_room(&mut self) {
        let n_bytes = |families: &[Family]| families.iter().map(Family::n_bytes).sum::<usize>();
        while n_bytes(&self.families) > self.n_bytes_max / FAMILIES_PART && self.families.len() > 1 {
            let least = self.families.iter().enumerate().min_by_key(|(_, family)| family.used_at);
            let (least_idx, _) = least.expect("there is more than one family");
            self.families.remove(least_idx);
        }
        self.records.make_room(self.n_bytes_max.saturating_sub(n_bytes(&self.families)));
    }

    /// For when the K/V is gone: what was laid is held no longer, and a better layout costs nothing.
    pub(super) fn forget_held(&mut self) {
        self.families.iter_mut().for_each(Family::forget_laid);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.families.is_empty() && self.records.len() == 0
    }

    /// `None`: the messages stay as they are.
    fn try_lay<'a>(&mut self, input: &Input<'a>) -> Option<Laid<'a>> {
        if input.mode == Mode::Off && input.house.is_empty() {
            return None;
        }
        let is_system = |message: &Message| matches!(message.role, Role::System | Role::Developer);
        let n_leading = input.messages.iter().take_while(|message| is_system(message)).count();
        let (leading, turns) = input.messages.split_at(n_leading);
        let is_clock = |line: &str| (input.is_clock)(line, input.now);
        let sentences = |line: &str| (input.clock_sentences)(line, input.now);
        let clocks = Clocks { is_clock: &is_clock, sentences: &sentences };
        let mut blocks = Vec::new();
        // Without blocks nothing is read, and nothing can move.
        for (message_idx, message) in leading.iter().enumerate().filter(|_| input.mode != Mode::Off) {
            blocks::split(&message.content, message_idx, clocks, &mut blocks);
        }
        let place_for_block = turns.iter().rposition(|message| matches!(message.role, Role::User | Role::Tool))?;
        if (blocks.is_empty() && input.house.is_empty()) || blocks.len() > N_BLOCKS_MAX {
            return None;
        }
        let owner = owner_digest(input.owner);
        let tools: Arc<[Digest]> = input.tools.iter().map(|tool| Digest::of(tool.as_bytes())).collect();
        let family_idx = self.family(owner, input, &tools, &blocks);
        let Live { families, records, .. } = self;
        let prompt = Prompt {
            input,
            owner,
            n_leading,
            tools,
            terms: Terms {
                may_move_prose: input.mode != Mode::Safe,
                fixed_blocks: fixed_blocks(&blocks, leading, &input.fixed_bytes),
            },
            blocks,
            turns,
            newest: place_for_block,
            in_loop: turns.last().is_some_and(|message| message.role != Role::User),
        };
        let laid = prompt.lay(&mut families[family_idx], records);
        families[family_idx].weigh();
        // Not before: what is laid stands on records.
        self.make_room();
        laid
    }

    /// The family of a request, which has counted its changes.
    fn family(&mut self, owner: Digest, input: &Input, tools: &[Digest], blocks: &[Block]) -> usize {
        let sent = lay::as_sent(blocks);
        let mut best: Option<(usize, f64)> = None;
        for (family_idx, family) in self.families.iter().enumerate() {
            if family.owner == owner && family.model == input.model {
                // What it learnt from a text may have made another text of it; a retry is the same request all the same.
                let has_seen = family.is_held(sent, tools, input.now);
                let agreement = if has_seen { f64::INFINITY } else { family.agreement(blocks) };
                if agreement >= AGREEMENT_MIN && best.is_none_or(|(_, other)| agreement > other) {
                    best = Some((family_idx, agreement));
                }
            }
        }
        if let Some((family_idx, _)) = best {
            self.families[family_idx].observe(blocks, input.now);
            return family_idx;
        }
        if self.families.len() == N_FAMILIES_MAX
            && let Some((oldest_idx, _)) = self.families.iter().enumerate().min_by_key(|(_, family)| family.used_at)
        {
            self.families.remove(oldest_idx);
        }
        self.families.push(Family::new(self.next_family, owner, input.model, blocks, input.now));
        self.next_family += 1;
        self.families.len() - 1
    }
}

pub(super) fn owner_digest(owner: Owner) -> Digest {
    match owner {
        Owner::Public => Digest::of(b"the house"),
        Owner::Private(key) => Digest::of_owner(&key),
    }
}
