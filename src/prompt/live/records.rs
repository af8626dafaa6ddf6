//! Records: what was written in front of which message, so that a conversation's past is rendered as it was.
//!
//! A *record* belongs to one message of one conversation, named by what was said up to it; its chain is the records
//! in front of it, back to the conversation's first. Private text: bounded, never logged. Lost records cost tokens,
//! never truth: what no record shows as visible is written again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::slots::{SlotIdx, Value};
use crate::prompt::canonical::{self, add};
use crate::request::{Message, Role, ToolCall};

/// Answers remembered for one record: a client that asks again keeps one of them, in practice the last.
const N_ANSWERS_MAX: usize = 8;

/// Rises with time; never given twice.
pub type RecordId = u64;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// What was said up to its message.
    pub(super) key: Digest,
    /// The record before it in its conversation.
    pub(super) parent: Option<RecordId>,
    pub(super) owner: Digest,
    pub(super) family: u64,
    pub(super) version: u32,
    /// Over the system text as laid.
    pub(super) system: Digest,
    /// The client's own name for the conversation.
    pub(super) conversation: Option<Digest>,
    /// What the model said to it.
    pub(super) answers: Vec<Digest>,
    /// All slots' values in the request, written or not.
    pub(super) values: Arc<[Arc<str>]>,
    /// What stands in front of the message; `None`: nothing.
    pub(super) written: Option<Written>,
    pub(super) laid_at: i64,
    pub(super) used_at: i64,
}

/// A live block.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) text: Arc<str>,
    pub(super) n_tokens: usize,
    /// The slots in it; an empty text says that nothing stands there any more.
    pub(super) entries: Vec<(SlotIdx, Arc<str>)>,
}

/// The texts of a record whose values these are.
pub(super) fn texts(values: &[Value]) -> Arc<[Arc<str>]> {
    values.iter().map(|value| value.text.clone()).collect()
}

#[derive(Debug)]
pub(super) struct Records {
    by_id: BTreeMap<RecordId, Record>,
    by_key: HashMap<Digest, Vec<RecordId>>,
    next_id: RecordId,
    n_bytes: usize,
}

impl Records {
    pub(super) fn new() -> Records {
        Records { by_id: BTreeMap::new(), by_key: HashMap::new(), next_id: 0, n_bytes: 0 }
    }

    /// All records with their ids, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RecordId, &Record)> {
        self.by_id.iter().map(|(&id, record)| (id, record))
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn get(&self, id: RecordId) -> Option<&Record> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: RecordId) -> Option<&mut Record> {
        self.by_id.get_mut(&id)
    }

    /// The records of one message, oldest first.
    pub(super) fn of(&self, key: Digest) -> impl Iterator<Item = (RecordId, &Record)> {
        self.by_key.get(&key).into_iter().flatten().filter_map(|&id| Some((id, self.by_id.get(&id)?)))
    }

    /// Keeps `record`. May exceed the bound until `make_room`.
    pub(super) fn insert(&mut self, record: Record) -> RecordId {
        let id = self.next_id;
        self.restore(id, record);
        id
    }

    /// Puts back a record that had `id`.
    pub(super) fn restore(&mut self, id: RecordId, record: Record) {
        self.n_bytes += record.n_bytes();
        self.by_key.entry(record.key).or_default().push(id);
        self.by_id.insert(id, record);
        self.next_id = self.next_id.max(id + 1);
    }

    pub(super) fn remove(&mut self, id: RecordId) {
        let Some(record) = self.by_id.remove(&id) else { return };
        self.n_bytes -= record.n_bytes();
        if let Some(ids) = self.by_key.get_mut(&record.key) {
            ids.retain(|&other| other != id);
            if ids.is_empty() {
                self.by_key.remove(&record.key);
            }
        }
    }

    pub(super) fn retain(&mut self, keeps: impl Fn(&Record) -> bool) {
        let gone: Vec<RecordId> = self.iter().filter(|(_, record)| !keeps(record)).map(|(id, _)| id).collect();
        gone.into_iter().for_each(|id| self.remove(id));
    }

    /// The record `id` with what of its past is held, oldest first.
    pub(super) fn chain(&self, id: RecordId) -> Vec<RecordId> {
        let mut chain: Vec<RecordId> = std::iter::successors(Some(id), |&id| self.by_id.get(&id)?.parent)
            .take_while(|id| self.by_id.contains_key(id))
            .collect();
        chain.reverse();
        chain
    }

    pub(super) fn note_answer(&mut self, id: RecordId, answer: Digest) {
        if let Some(record) = self.by_id.get_mut(&id)
            && !record.answers.contains(&answer)
        {
            if record.answers.len() == N_ANSWERS_MAX {
                record.answers.remove(0);
                self.n_bytes -= size_of::<Digest>();
            }
            record.answers.push(answer);
            self.n_bytes += size_of::<Digest>();
        }
    }

    #[cfg(test)]
    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Ends above `n_bytes_max`: the least used give way, down to seven eighths, so that the search for them is rare.
    pub(super) fn make_room(&mut self, n_bytes_max: usize) {
        if self.n_bytes <= n_bytes_max {
            return;
        }
        let mut by_use: Vec<(i64, RecordId)> = self.iter().map(|(id, record)| (record.used_at, id)).collect();
        by_use.sort_unstable();
        for (_, id) in by_use {
            if self.n_bytes <= n_bytes_max / 8 * 7 {
                break;
            }
            self.remove(id);
        }
    }
}

impl Record {
    fn n_bytes(&self) -> usize {
        let values: usize = self.values.iter().map(|value| value.len() + size_of::<Arc<str>>()).sum();
        let written = self.written.as_ref().map_or(0, |written| {
            let entries: usize = written.entries.iter().map(|(_, text)| text.len() + 2 * size_of::<Arc<str>>()).sum();
            written.text.len() + entries
        });
        // Its places in both maps.
        let maps = 2 * (size_of::<Digest>() + size_of::<RecordId>());
        size_of::<Record>() + maps + self.answers.len() * size_of::<Digest>() + values + written
    }
}

/// What was said up to each message, `None` where no block can stand in front of it.
///
/// Counted are who said what, trimmed, and calls by name and arguments; of a tool's result only that there was one; of
/// system messages nothing.
pub(super) fn keys(seed: &[&[u8]], messages: &[Message]) -> Vec<Option<Digest>> {
    let mut hasher = blake3::Hasher::new();
    for part in seed {
        add(&mut hasher, part);
    }
    let mut key = |message: &Message| {
        match message.role {
            Role::System | Role::Developer => return None,
            Role::User => {
                hasher.update(b"u");
                add(&mut hasher, message.content.trim().as_bytes());
            }
            Role::Assistant => {
                hasher.update(b"a");
                add(&mut hasher, answer(message).bytes());
            }
            Role::Tool => {
                hasher.update(b"t");
            }
        }
        (message.role != Role::Assistant).then(|| Digest::so_far(&hasher))
    };
    messages.iter().map(&mut key).collect()
}

/// What an assistant's message says: text and calls, neither reasoning nor ids.
pub(super) fn answer(message: &Message) -> Digest {
    let mut hasher = blake3::Hasher::new();
    add(&mut hasher, message.content.trim().as_bytes());
    for ToolCall { name, arguments, .. } in &message.tool_calls {
        add(&mut hasher, name.as_bytes());
        hasher.update(canonical::arguments(arguments).as_bytes());
    }
    Digest::so_far(&hasher)
}
