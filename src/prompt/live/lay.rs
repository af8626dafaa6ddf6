//! Laying one request out: which past it has, what of it is still true, and what must be said at its end.
//!
//! *The basis* of a request is the chain of records that its history is rendered from. Families and records come from
//! outside; nothing here outlives the request.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::blocks::Block;
use super::compose::{self, Visible};
use super::digest::Digest;
use super::family::Family;
use super::records::{self, Record, RecordId, Records};
use super::slots::{self, Layout, Placed, Terms};
use super::{Cause, Fit, Gain, Input, Laid, LiveBlock, Mode, Moved};
use crate::request::{Message, Role};

/// An equal request within this time is a retry and gets equal bytes; later its marker would tell an old time.
pub(super) const RETRY_S: i64 = 600;
/// Stale live tokens are compacted above this part of the context.
const STALE_PART: usize = 8;

/// Runs of blocks that move of which each is compared with what was sent before; from the last on they are one.
const N_RUNS_MAX: usize = 8;

/// A request with what was found out about it.
pub(super) struct Prompt<'r, 'a> {
    pub(super) input: &'r Input<'a>,
    pub(super) owner: Digest,
    pub(super) n_leading: usize,
    pub(super) tools: Arc<[Digest]>,
    pub(super) terms: Terms,
    pub(super) blocks: Vec<Block<'a>>,
    /// What follows the leading messages.
    pub(super) turns: &'a [Message],
    /// The newest turn of a user or a tool.
    pub(super) newest: usize,
    /// Something follows the user's message.
    pub(super) in_loop: bool,
}

/// What history is rendered from.
struct Basis {
    version: u32,
    placed: Placed,
    /// Oldest first.
    chain: Vec<RecordId>,
    cause: Cause,
}

impl<'a> Prompt<'_, 'a> {
    pub(super) fn lay(&self, family: &mut Family, records: &mut Records) -> Option<Laid<'a>> {
        let Input { now, zone, conversation, .. } = *self.input;
        if self.input.mode == Mode::Observe {
            let (_, placed) = self.place_anew(family)?;
            let mut laid = Laid::untouched(self.input.messages);
            laid.moved = self.moved(&placed, |_| None);
            (laid.n_gained_bytes, laid.gain) = self.gain(family, &placed);
            return Some(laid);
        }
        let conversation = conversation.map(|name| Digest::of(name.as_bytes()));
        let family_id = family.id.to_le_bytes();
        let mut seed: Vec<&[u8]> = vec![self.owner.bytes(), self.input.model.as_bytes(), &family_id];
        // Slots are numbers: with other ones of the house they mean something else.
        seed.extend(self.input.house.iter().map(|slot| slot.name.as_bytes()));
        let keys = records::keys(&seed, self.turns);
        let mut basis = self.basis(family, records, &keys, conversation)?;
        let (n_gained_bytes, gain) = self.gain(family, &basis.placed);

        if basis.cause == Cause::Retried {
            let id = basis.chain.last_mut().expect("a retry has a record");
            let record = records.get(*id).expect("it was just found");
            // Another conversation's bytes, but from now on this one's past.
            if record.conversation != conversation {
                *id = records.insert(Record { conversation, answers: Vec::new(), ..record.clone() });
            }
        } else {
            let mut visible = self.visible(&basis, records);
            let mut slots = visible.differing(&basis.placed, self.in_loop, now);
            if !self.in_loop && self.must_compact(&basis, records, &slots) {
                basis.chain.clear();
                basis.cause = Cause::Compacted;
                visible = Visible::default();
                slots = visible.differing(&basis.placed, false, now);
            }
            let values = &basis.placed.values;
            // Without its past, a block stands in front of the question, where the next turn will look for it.
            let question = self.turns.iter().rposition(|message| message.role == Role::User);
            let at = question.filter(|_| basis.chain.is_empty()).unwrap_or(self.newest);
            let parent = basis.chain.last().copied();
            let texts = records::texts(values);
            let shared = parent.and_then(|id| Some(records.get(id)?.values.clone())).filter(|shared| *shared == texts);
            let id = records.insert(Record {
                key: keys[at].expect("a user's or a tool's message has a key"),
                parent,
                owner: self.owner,
                family: family.id,
                version: basis.version,
                system: basis.placed.digest,
                conversation,
                answers: Vec::new(),
                values: shared.unwrap_or(texts),
                written: visible.write(&slots, values, now, zone, self.input.count_tokens),
                laid_at: now,
                used_at: now,
            });
            basis.chain.push(id);
        }
        for &id in &basis.chain {
            records.get_mut(id).expect("a chain is of records that are held").used_at = now;
        }
        family.note_laid(basis.placed.digest, &self.tools, now);
        Some(Laid { n_gained_bytes, gain, ..self.render(&basis, records, &keys) })
    }

    /// The records that history and, if it was laid before, this request are rendered from.
    fn basis(
        &self,
        family: &mut Family,
        records: &mut Records,
        keys: &[Option<Digest>],
        conversation: Option<Digest>,
    ) -> Option<Basis> {
        let mut placed = PlacedByVersion { prompt: self, known: Vec::new() };
        let mut was_changed = false;
        // Another conversation's turn that this request repeats word for word. It is a past only for one that has none of its
        // own: what a conversation was given stays as it was.
        let mut repeated: Option<RecordId> = None;
        for at in (0..=self.newest).rev() {
            let Some(key) = keys[at] else { continue };
            let answer = self.turns.get(at + 1).filter(|next| next.role == Role::Assistant).map(records::answer);
            // In a tool loop two conversations have the same words up to here; the states tell them apart.
            let in_this_turn = self.turns[at + 1..].iter().all(|message| message.role != Role::User);
            let mut best = None;
            let mut n_found = 0;
            for (id, record) in records.of(key) {
                let Some(placed) = family.layout(record.version).and_then(|layout| placed.get(layout)) else {
                    continue;
                };
                if record.system != placed.digest {
                    was_changed = true;
                    continue;
                }
                let states = differences(record, placed);
                if at == self.newest && !self.is_retry(record, &states, records, id, placed) {
                    continue;
                }
                n_found += 1;
                let same_conversation = conversation.is_some() && record.conversation == conversation;
                let same_answer = match answer {
                    Some(answer) if record.answers.contains(&answer) => 2,
                    Some(_) if !record.answers.is_empty() => 0,
                    _ => 1,
                };
                let (first, second) =
                    if in_this_turn { (states.0 as u8, same_answer) } else { (same_answer, states.0 as u8) };
                best = best.max(Some((same_conversation, first, second, id)));
            }
            let is_own = best.is_some_and(|(same_conversation, ..)| same_conversation);
            if at == self.newest && conversation.is_some() && !is_own {
                repeated = best.map(|(.., id)| id);
                continue;
            }
            if repeated.is_some() && !is_own {
                continue;
            }
            if let Some((.., id)) = best {
                let record = records.get(id).expect("it was just found");
                let version = record.version;
                // Of several it is not known which one the answer followed.
                let learns = n_found == 1 && record.answers.is_empty();
                let placed = placed.take(version).expect("it was just placed");
                if let Some(answer) = answer.filter(|_| learns) {
                    records.note_answer(id, answer);
                }
                let cause = if at == self.newest { Cause::Retried } else { Cause::Appended };
                return Some(Basis { version, placed, chain: records.chain(id), cause });
            }
        }
        if let Some(id) = repeated {
            let version = records.get(id).expect("it was just found").version;
            let placed = placed.take(version).expect("it was just placed");
            return Some(Basis { version, placed, chain: records.chain(id), cause: Cause::Retried });
        }
        let (version, placed) = self.place_anew(family)?;
        let has_history = self.turns[..self.newest].iter().any(|message| message.role != Role::System);
        let cause = match (was_changed, has_history) {
            (true, _) => Cause::SystemChanged,
            (false, true) => Cause::Trimmed,
            (false, false) => Cause::New,
        };
        Some(Basis { version, placed, chain: Vec::new(), cause })
    }

    /// Whether `record` was made by this request.
    fn is_retry(
        &self,
        record: &Record,
        &(_, all_equal): &(bool, bool),
        records: &Records,
        id: RecordId,
        placed: &Placed,
    ) -> bool {
        let age = self.input.now - record.laid_at;
        if self.input.fit == Fit::Compact || !all_equal || !(0..RETRY_S).contains(&age) {
            return false;
        }
        // Some of its past may be lost, and with it what it relied on.
        let chain = records.chain(id);
        let visible = Visible::of(chain.iter().filter_map(|&id| records.get(id)));
        visible.differing(placed, self.in_loop, record.laid_at).is_empty()
    }

    /// A layout for a conversation without a past.
    ///
    /// New evidence costs what stands behind its place once. It is used where that is computed anyway: a text that was laid
    /// lately, and with these tools, is likely to be held, in whichever layout that was.
    fn place_anew(&self, family: &mut Family) -> Option<(u32, Placed)> {
        let held = family.layouts().find_map(|layout| {
            let placed = self.place(layout)?;
            family.is_held(placed.digest, &self.tools, self.input.now).then_some((layout.version, placed))
        });
        if held.is_some() {
            return held;
        }
        let layout = family.renew();
        Some((layout.version, self.place(layout)?))
    }

    fn place(&self, layout: &Layout) -> Option<Placed> {
        let placed = slots::place(layout, &self.blocks, self.n_leading, &self.terms);
        if self.input.house.is_empty() {
            return placed;
        }
        let leading = &self.input.messages[..self.n_leading];
        Some(placed.unwrap_or_else(|| Placed::untouched(layout, leading)).with_house(self.input.house))
    }

    fn visible(&self, basis: &Basis, records: &Records) -> Visible {
        Visible::of(basis.chain.iter().filter_map(|&id| records.get(id)))
    }

    fn must_compact(&self, basis: &Basis, records: &Records, slots: &[u16]) -> bool {
        let chain: Vec<&Record> = basis.chain.iter().filter_map(|&id| records.get(id)).collect();
        self.input.fit == Fit::Compact
            || compose::n_stale_tokens(&chain, slots) > self.input.n_context_tokens / STALE_PART
    }

    fn render(&self, basis: &Basis, records: &Records, keys: &[Option<Digest>]) -> Laid<'a> {
        let leading = &self.input.messages[..self.n_leading];
        let mut messages: Vec<Message> = Vec::with_capacity(self.input.messages.len());
        for (message, text) in leading.iter().zip(&basis.placed.texts) {
            match text {
                Some(text) => messages.push(Message { content: text.clone(), ..message.clone() }),
                // It was empty before.
                None if message.content.trim().is_empty() => messages.push(message.clone()),
                None => {}
            }
        }
        let n_before = messages.len();
        messages.extend_from_slice(self.turns);
        let mut live = Vec::new();
        let mut at = 0;
        for record in basis.chain.iter().filter_map(|&id| records.get(id)) {
            // Rising, since each key is over what was said before, too.
            let Some(n) = keys[at..].iter().position(|key| *key == Some(record.key)) else { continue };
            at += n;
            let Some(written) = &record.written else { continue };
            let message_idx = n_before + at;
            messages[message_idx].content.insert_str(0, &written.text);
            live.push(LiveBlock { message_idx, n_bytes: written.text.len(), entries: written.entries.clone() });
        }
        let shown_at = |slot| live.iter().rev().find(|block| block.entries.iter().any(|(other, _)| *other == slot));
        Laid {
            moved: self.moved(&basis.placed, |slot| shown_at(slot).map(|block| block.message_idx)),
            messages: Cow::Owned(messages),
            live,
            n_gained_bytes: 0,
            gain: None,
            cause: basis.cause,
            record: basis.chain.last().copied(),
        }
    }

    fn moved(&self, placed: &Placed, to_message: impl Fn(u16) -> Option<usize>) -> Vec<Moved> {
        let mut moved: Vec<Moved> = Vec::new();
        let (mut message_idx, mut n_bytes) = (0, 0);
        for (block, slot) in self.blocks.iter().zip(&placed.to) {
            if block.message_idx != message_idx {
                (message_idx, n_bytes) = (block.message_idx, 0);
            }
            let from_byte = n_bytes;
            n_bytes += block.content.len() + block.gap.len();
            let Some(slot) = *slot else { continue };
            if moved.iter().all(|other| other.slot != slot) {
                moved.push(Moved {
                    slot,
                    is_clock: block.is_clock,
                    kind: if block.is_clock { "clock" } else { block.kind.name() },
                    text: placed.values[usize::from(slot)].text.clone(),
                    from_message: message_idx,
                    from_byte,
                    to_message: to_message(slot),
                });
            }
        }
        moved
    }

    /// Bytes behind the first place where the text as sent was not sent before, if the text without what moves is held;
    /// and that place.
    fn gain(&self, family: &mut Family, placed: &Placed) -> (usize, Option<Gain>) {
        let now = self.input.now;
        let is_observing = self.input.mode == Mode::Observe;
        // Up to the end of each run of blocks that move: what an earlier request sent alike is held as sent, too.
        let mut hasher = blake3::Hasher::new_derive_key(AS_SENT);
        let mut sent: Vec<(usize, Digest)> = Vec::new();
        let (mut run_start, mut text) = (None, String::new());
        for (block_idx, block) in self.blocks.iter().enumerate() {
            let moves = placed.to[block_idx].is_some();
            if let Some(start) = run_start.filter(|_| !moves && sent.len() < N_RUNS_MAX) {
                hasher.update(text.as_bytes());
                text.clear();
                sent.push((start, Digest::so_far(&hasher)));
            }
            run_start = moves.then(|| run_start.unwrap_or(block_idx));
            text.extend([block.content, block.gap]);
        }
        hasher.update(text.as_bytes());
        let whole = Digest::so_far(&hasher);
        sent.extend(run_start.map(|start| (start, whole)));
        let first = sent.iter().find(|(_, text)| !family.is_held(*text, &self.tools, now)).map(|(start, _)| *start);
        sent.iter().for_each(|(_, text)| family.note_laid(*text, &self.tools, now));
        // By it a retry finds its family again.
        family.note_laid(whole, &self.tools, now);
        let is_placed_held = family.is_held(placed.digest, &self.tools, now);
        if is_observing {
            family.note_laid(placed.digest, &self.tools, now);
        }

        let Some(first) = first else { return (0, None) };
        let stays = |(block, to): (&Block, &Option<u16>)| if to.is_none() { block.content.len() } else { 0 };
        let n_behind: usize = self.blocks[first..].iter().zip(&placed.to[first..]).map(stays).sum();
        let before = self.blocks[..first].iter().zip(&placed.to[..first]);
        let before = before.filter(|(_, to)| is_observing || to.is_none());
        let gain = Gain {
            n_bytes_before: before.map(|(block, _)| block.content.len() + block.gap.len()).sum(),
            n_moved_tokens: is_observing.then(|| {
                let moves = self.blocks.iter().zip(&placed.to).skip(first).filter(|(_, to)| to.is_some());
                moves.map(|(block, _)| (self.input.count_tokens)(block.content)).sum()
            }),
        };
        (if is_placed_held { n_behind } else { 0 }, Some(gain).filter(|_| is_placed_held || !is_observing))
    }
}

/// The request's system text in each layout that a record names.
struct PlacedByVersion<'p, 'r, 'a> {
    prompt: &'p Prompt<'r, 'a>,
    known: Vec<(u32, Option<Placed>)>,
}

impl PlacedByVersion<'_, '_, '_> {
    fn get(&mut self, layout: &Layout) -> Option<&Placed> {
        let known_idx = self.known.iter().position(|(version, _)| *version == layout.version);
        let known_idx = known_idx.unwrap_or_else(|| {
            self.known.push((layout.version, self.prompt.place(layout)));
            self.known.len() - 1
        });
        self.known[known_idx].1.as_ref()
    }

    fn take(self, version: u32) -> Option<Placed> {
        self.known.into_iter().find(|(known, _)| *known == version)?.1
    }
}

/// Over the system text as the client sent it.
pub(super) fn as_sent(blocks: &[Block]) -> Digest {
    // In one run, which BLAKE3 reads many times as fast as the same in pieces.
    let text: String = blocks.iter().flat_map(|block| [block.content, block.gap]).collect();
    Digest::so_far(blake3::Hasher::new_derive_key(AS_SENT).update(text.as_bytes()))
}

const AS_SENT: &str = "hob live: system text as sent";

/// Whether the record's states are the request's, and whether all its values are.
fn differences(record: &Record, placed: &Placed) -> (bool, bool) {
    let (mut states_equal, mut all_equal) = (true, record.values.len() == placed.values.len());
    for (slot, (was, is)) in record.values.iter().zip(&placed.values).enumerate() {
        if *was != is.text {
            all_equal = false;
            states_equal &= placed.clocks.contains(&(slot as u16));
        }
    }
    (states_equal, all_equal)
}

/// Blocks that begin within `fixed_bytes` of the leading messages, one message after the other.
pub(super) fn fixed_blocks(blocks: &[Block], leading: &[Message], fixed_bytes: &Range<usize>) -> Range<usize> {
    let mut begin = 0;
    let mut message_idx = 0;
    let mut begins = Vec::with_capacity(blocks.len());
    for block in blocks {
        // What stands in front of a message's first block, and behind its last one, is no block.
        while message_idx < block.message_idx {
            begin = leading[..=message_idx].iter().map(|message| message.content.len()).sum();
            message_idx += 1;
        }
        begins.push(begin);
        begin += block.content.len() + block.gap.len();
    }
    begins.partition_point(|&begin| begin < fixed_bytes.start)..begins.partition_point(|&begin| begin < fixed_bytes.end)
}
