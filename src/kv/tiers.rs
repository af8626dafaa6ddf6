//! The tiers below the cells: which token runs lie saved in RAM and on disk, so that a prompt finds the longest one it begins with.
//!
//! A *segment* stands behind its parent: at its end, or anywhere inside it, where another text begins to differ. Segments are
//! never split. With its parents a segment spells a prefix, so a *chain* of them, parent first, brings a prefix back:
//!
//! ```text
//!   "policy tools documents "  0..900        RAM and disk, public, a pin
//!     ├── at 900  "question one, answer"     RAM and disk
//!     │     └── at 930  "question two"       RAM
//!     └── at 400  "other documents"          disk: begins inside its parent
//!
//!   wholes stand alone: the state of a memory that cannot be cut, found at its very end only
//! ```
//!
//! Here are the budgets, and nothing exceeds them: room is made before bytes are allocated, by giving up what is worth least
//! (`value`), leaves first. What lies on disk has its parent there, too, or a restart could not use it. This file is pure: it
//! copies nothing out of cells and writes no file; what has to leave the disk it tells (`take_gone`). `room` says who gives way,
//! `files` what lies on disk.

mod files;
mod room;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::holder::Holder;
use super::segment::{Header, Kept, Piece, Segment, SegmentKey};
use super::tree::common_len;
use super::value::{Clock, Reuse, Speeds};
use crate::request::{Owner, Token};

/// Bytes that each tier may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Budgets {
    pub ram: u64,
    pub disk: u64,
    /// Of `disk`, what learned pins may hold.
    pub learned: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    Ram,
    Disk,
}

impl Tier {
    pub fn name(self) -> &'static str {
        match self {
            Tier::Ram => "ram",
            Tier::Disk => "disk",
        }
    }
}

/// What a segment costs beside its bytes and 4 bytes a token: its place in the index and the heads of its allocations.
const OVERHEAD_BYTES: u64 = 512;

/// What a file takes beside what a segment takes in RAM, at most: the container's own header.
const FILE_BYTES: u64 = 4096;

/// The part of the RAM budget from which on segments are written to disk, so that RAM can give way without losing them.
const WRITE_FROM: f64 = 0.75;

/// A copy on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum File {
    None,
    /// Being written: the bytes stay in RAM until then.
    Writing,
    There,
}

#[derive(Debug)]
struct Entry {
    header: Header,
    parent: Option<SegmentKey>,
    children: Vec<SegmentKey>,
    reuse: Reuse,
    ram: Option<Arc<[Piece]>>,
    /// The bytes are in RAM on their way to disk only, beside the budget: one segment at a time.
    is_passing: bool,
    file: File,
    file_bytes: u64,
    ram_used: Clock,
    disk_used: Clock,
    /// Tick of the last use: of equals the older goes first.
    tick: u64,
}

impl Entry {
    fn ram_bytes(&self) -> u64 {
        ram_bytes(&self.header)
    }

    fn has_file(&self) -> bool {
        self.file != File::None
    }
}

/// What a segment takes of the RAM budget.
pub fn ram_bytes(header: &Header) -> u64 {
    header.n_bytes() as u64 + 4 * header.tokens.len() as u64 + OVERHEAD_BYTES
}

/// The longest saved prefix of some tokens, parent first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    pub links: Vec<Link>,
    pub n_tokens: usize,
}

/// One segment's part of a chain: the positions `start..upto`, which may end before the segment does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    pub key: SegmentKey,
    pub start: usize,
    pub upto: usize,
}

/// One piece of a chain: the positions it was saved from, and where it lies.
#[derive(Clone, Debug)]
pub struct Place {
    pub key: SegmentKey,
    pub index: usize,
    pub range: std::ops::Range<usize>,
    /// How far the chain uses it: within `range`, or its end.
    pub upto: usize,
    pub n_bytes: usize,
    /// `None`: it lies on disk only.
    pub pieces: Option<Arc<[Piece]>>,
}

/// Something left a tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gone {
    pub key: SegmentKey,
    pub holder: Holder,
    pub tier: Tier,
    pub cause: GoneCause,
    pub n_tokens: usize,
    pub n_bytes: u64,
    /// The prefix up to and with its first token, if it is in no tier any more.
    pub lost: Option<Vec<Token>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GoneCause {
    /// Something worth more came.
    Room,
    /// It could not be written, read or restored.
    Failed,
    /// Its pin is configured no more, or its owner is to be forgotten.
    Removed,
}

impl GoneCause {
    pub fn name(self) -> &'static str {
        match self {
            GoneCause::Room => "room",
            GoneCause::Failed => "failed",
            GoneCause::Removed => "removed",
        }
    }
}

/// Why something was not taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRoom {
    /// Larger than the tier.
    TooLarge,
    /// All that is there is worth more.
    WorthLess,
}

/// What the tiers hold, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    pub ram: u64,
    pub disk: u64,
    pub learned: u64,
    pub n_segments: usize,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Tiers {
    budgets: Budgets,
    entries: BTreeMap<SegmentKey, Entry>,
    /// Segments without a parent.
    roots: Vec<SegmentKey>,
    ram: u64,
    reserved: u64,
    disk: u64,
    learned: u64,
    ram_clock: Clock,
    disk_clock: Clock,
    tick: u64,
    /// RAM had to give way once.
    is_pressed: bool,
    /// Something came, went or was used since somebody looked.
    is_changed: bool,
    gone: Vec<Gone>,
}

impl Tiers {
    pub fn new(budgets: Budgets) -> Tiers {
        Tiers { budgets, ..Tiers::default() }
    }

    pub fn budgets(&self) -> Budgets {
        self.budgets
    }

    pub fn held(&self) -> Held {
        Held { ram: self.ram, disk: self.disk, learned: self.learned, n_segments: self.entries.len() }
    }

    pub fn contains(&self, key: SegmentKey) -> bool {
        self.entries.contains_key(&key)
    }

    /// Whether a segment is in RAM on its way to disk only: there is room for one.
    pub fn is_any_passing(&self) -> bool {
        self.entries.values().any(|entry| entry.is_passing)
    }

    pub fn header(&self, key: SegmentKey) -> Option<&Header> {
        self.entries.get(&key).map(|entry| &entry.header)
    }

    /// Longest prefix of `tokens` that is saved and visible to `holder`: token ids are compared, never hashes. Changes nothing.
    pub fn find(&self, holder: Holder, tokens: &[Token]) -> Chain {
        self.find_where(tokens, |held_by| holder.may_see(held_by))
    }

    /// How many of `tokens` `holder` could use under other adapters.
    pub fn n_under_others(&self, holder: Holder, tokens: &[Token]) -> usize {
        self.find_where(tokens, |held_by| holder.would_see(held_by)).n_tokens
    }

    fn find_where(&self, tokens: &[Token], sees: impl Fn(Holder) -> bool) -> Chain {
        let mut best: Option<(usize, SegmentKey)> = None;
        let mut open = self.roots.clone();
        while let Some(key) = open.pop() {
            let entry = &self.entries[&key];
            let Header { start, tokens: run, is_whole, .. } = &entry.header;
            if !sees(entry.header.holder) || *start >= tokens.len() {
                continue;
            }
            let n_common = common_len(run, &tokens[*start..]);
            if n_common == 0 || (*is_whole && n_common < run.len()) {
                continue;
            }
            let reached = start + n_common;
            if best.is_none_or(|(n, _)| reached > n) {
                best = Some((reached, key));
            }
            open.extend(entry.children.iter().filter(|child| self.entries[*child].header.start <= reached));
        }
        let Some((n_tokens, last)) = best else { return Chain::default() };
        let (mut links, mut upto, mut at) = (Vec::new(), n_tokens, Some(last));
        while let Some(key) = at {
            let entry = &self.entries[&key];
            links.push(Link { key, start: entry.header.start, upto });
            upto = entry.header.start;
            at = entry.parent;
        }
        links.reverse();
        Chain { links, n_tokens }
    }

    /// The longest prefix that any whole shares with `tokens`: what would be reused if the memory could be cut.
    pub fn common_len(&self, holder: Holder, tokens: &[Token]) -> usize {
        let visible =
            self.roots.iter().map(|key| &self.entries[key].header).filter(|header| holder.may_see(header.holder));
        visible.map(|header| common_len(&header.tokens, tokens)).max().unwrap_or(0)
    }

    /// The piece of `chain` that holds position `pos`.
    pub fn place(&self, chain: &Chain, pos: usize) -> Option<Place> {
        let link = chain.links.iter().find(|link| link.start <= pos && pos < link.upto)?;
        let entry = self.entries.get(&link.key)?;
        let mut start = link.start;
        for (index, size) in entry.header.pieces.iter().enumerate() {
            let range = start..start + size.n_tokens;
            if range.contains(&pos) {
                let upto = range.end.min(link.upto);
                let pieces = entry.ram.clone();
                return Some(Place { key: link.key, index, range, upto, n_bytes: size.n_bytes, pieces });
            }
            start = range.end;
        }
        None
    }

    /// Bytes to copy for the positions of `chain` from `from` on: those in RAM, and those on disk, which are read as whole files.
    pub fn bytes_behind(&self, chain: &Chain, from: usize) -> (u64, u64) {
        let (mut in_ram, mut on_disk) = (0, 0);
        for link in chain.links.iter().filter(|link| link.upto > from) {
            let entry = &self.entries[&link.key];
            let mut start = link.start;
            for size in entry.header.pieces.iter() {
                let is_used = start + size.n_tokens > from && start < link.upto;
                match entry.ram {
                    Some(_) if is_used => in_ram += size.n_bytes as u64,
                    Some(_) => {}
                    None => on_disk += size.n_bytes as u64,
                }
                start += size.n_tokens;
            }
        }
        (in_ram, on_disk)
    }

    /// Positions of `chain` from `from` on that lie on disk only.
    #[cfg(test)]
    fn n_on_disk(&self, chain: &Chain, from: usize) -> usize {
        let on_disk = chain.links.iter().filter(|link| self.entries[&link.key].ram.is_none());
        on_disk.map(|link| link.upto.saturating_sub(link.start.max(from))).sum()
    }

    /// Marks a chain as used now; gives the files in it.
    pub fn touch(&mut self, chain: &Chain) -> Vec<SegmentKey> {
        self.tick += 1;
        self.is_changed = true;
        let mut files = Vec::new();
        for link in &chain.links {
            let Some(entry) = self.entries.get_mut(&link.key) else { continue };
            // A segment of which others share the beginning is not what they came back for.
            if 2 * (link.upto - link.start) >= entry.header.tokens.len() {
                entry.reuse.hit();
            }
            entry.tick = self.tick;
            entry.ram_used = self.ram_clock;
            entry.disk_used = self.disk_clock;
            if entry.file == File::There {
                files.push(link.key);
            }
        }
        files
    }

    /// Takes in what was just saved; `path` is all tokens from 0 to its end. `false`: it stands behind nothing that is held, or
    /// there is no room.
    ///
    /// `is_passing`: beside the RAM budget, until it is on disk (`begin_write` comes next).
    pub fn insert(
        &mut self,
        path: &[Token],
        segment: Segment,
        reuse: Reuse,
        is_passing: bool,
        speeds: &Speeds,
    ) -> bool {
        let Segment { header, pieces } = segment;
        debug_assert_eq!(path[header.start..], header.tokens[..], "a segment is the end of its path");
        let (key, n_bytes, n_tokens) = (header.key, ram_bytes(&header), header.tokens.len());
        if !is_passing && self.make_ram_room(n_bytes, n_tokens, reuse, parent_of(self, &header, path), speeds).is_err()
        {
            return false;
        }
        if let Some(entry) = self.entries.get_mut(&key) {
            // Held already, on disk: now it lies in RAM, too. Another one under an equal key stays out.
            if entry.header.tokens != header.tokens || entry.header.pieces != header.pieces || entry.ram.is_some() {
                return false;
            }
            entry.ram = Some(pieces);
            entry.is_passing = is_passing;
            self.ram += if is_passing { 0 } else { n_bytes };
            self.check();
            return true;
        }
        let parent = parent_of(self, &header, path);
        if parent.is_none() && header.start > 0 {
            return false;
        }
        self.put(header, parent, reuse, Some(pieces));
        let entry = self.entries.get_mut(&key).expect("it was just put");
        entry.is_passing = is_passing;
        self.ram += if is_passing { 0 } else { n_bytes };
        self.check();
        true
    }

    /// What can no longer be had from this segment, and from all behind it, is given up, files and all.
    pub fn lose(&mut self, key: SegmentKey, cause: GoneCause) {
        if self.entries.contains_key(&key) {
            self.remove(key, cause);
        }
        self.check();
    }

    /// Gives up all that `is_meant` says of its owner.
    pub fn forget(&mut self, is_meant: impl Fn(Owner) -> bool) {
        let meant = self.entries.iter().filter(|(_, entry)| is_meant(entry.header.holder.owner));
        for key in meant.map(|(&key, _)| key).collect::<Vec<_>>() {
            self.lose(key, GoneCause::Removed);
        }
    }

    /// Keeps at most the `n` longest wholes of `holder` that `path` goes through behind `from`.
    pub fn thin_wholes(&mut self, holder: Holder, path: &[Token], from: usize, n: usize) {
        let on_path = self.roots.iter().map(|key| &self.entries[key].header).filter(|header| {
            header.is_whole && header.holder == holder && header.end() > from && path.starts_with(&header.tokens)
        });
        let mut on_path: Vec<(usize, SegmentKey)> = on_path.map(|header| (header.end(), header.key)).collect();
        on_path.sort_unstable();
        for &(_, key) in on_path.iter().rev().skip(n) {
            self.lose(key, GoneCause::Room);
        }
    }

    /// What left a tier since the last call. Files of what left the disk have to be removed.
    pub fn take_gone(&mut self) -> Vec<Gone> {
        std::mem::take(&mut self.gone)
    }

    /// All tokens from 0 to the segment's end.
    fn path(&self, key: SegmentKey) -> Vec<Token> {
        let (mut runs, mut upto, mut at) = (Vec::new(), usize::MAX, Some(key));
        while let Some(key) = at {
            let Entry { header, parent, .. } = &self.entries[&key];
            runs.push(&header.tokens[..header.tokens.len().min(upto.saturating_sub(header.start))]);
            upto = header.start;
            at = *parent;
        }
        runs.into_iter().rev().flatten().copied().collect()
    }

    /// Whether anything came, went or was used since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    fn put(&mut self, header: Header, parent: Option<SegmentKey>, reuse: Reuse, ram: Option<Arc<[Piece]>>) {
        self.tick += 1;
        self.is_changed = true;
        let key = header.key;
        match parent {
            Some(parent) => self.entries.get_mut(&parent).expect("a parent is held").children.push(key),
            None => self.roots.push(key),
        }
        let entry = Entry {
            header,
            parent,
            children: Vec::new(),
            reuse,
            ram,
            is_passing: false,
            file: File::None,
            file_bytes: 0,
            ram_used: self.ram_clock,
            disk_used: self.disk_clock,
            tick: self.tick,
        };
        self.entries.insert(key, entry);
    }

    /// Panics unless every invariant holds. Runs after each operation in debug builds and tests.
    pub fn check(&self) {
        if !cfg!(any(debug_assertions, test)) {
            return;
        }
        let (mut ram, mut disk, mut learned) = (0, 0, 0);
        for (key, entry) in &self.entries {
            let header = &entry.header;
            assert!(entry.ram.is_some() || entry.file == File::There, "a segment is in some tier");
            assert!(!entry.is_passing || entry.ram.is_some(), "what passes is in RAM");
            assert_eq!(entry.header.pieces.iter().map(|piece| piece.n_tokens).sum::<usize>(), header.tokens.len());
            if let Some(pieces) = &entry.ram {
                let held = pieces.iter().map(|piece| (piece.n_tokens, piece.bytes.len()));
                assert!(held.eq(header.pieces.iter().map(|size| (size.n_tokens, size.n_bytes))), "sizes are true");
                ram += if entry.is_passing { 0 } else { entry.ram_bytes() };
            }
            disk += entry.file_bytes;
            assert_eq!(entry.has_file(), entry.file_bytes > 0, "a file has bytes");
            if header.kept == Kept::Learned {
                learned += entry.file_bytes;
            }
            let siblings = match entry.parent {
                None => {
                    assert_eq!(header.start, 0, "without a parent it begins at 0");
                    &self.roots
                }
                Some(parent) => {
                    let parent = &self.entries[&parent];
                    let inside = parent.header.start + 1..=parent.header.end();
                    assert!(inside.contains(&header.start), "a child begins in its parent or at its end");
                    assert!(header.holder.may_see(parent.header.holder), "a child sees its parent");
                    assert!(!entry.has_file() || parent.has_file(), "the parent of a file has one");
                    &parent.children
                }
            };
            assert_eq!(siblings.iter().filter(|sibling| *sibling == key).count(), 1, "a parent knows its child once");
            assert!(entry.children.iter().all(|child| self.entries[child].parent == Some(*key)));
        }
        assert_eq!((ram, disk, learned), (self.ram, self.disk, self.learned), "bytes counted are bytes held");
        assert!(self.ram + self.reserved <= self.budgets.ram, "RAM stays in its budget");
    }
}

/// The held segment that `path[..start]` ends in, if it is all held.
fn parent_of(tiers: &Tiers, header: &Header, path: &[Token]) -> Option<SegmentKey> {
    if header.start == 0 {
        return None;
    }
    let chain = tiers.find(header.holder, &path[..header.start]);
    chain.links.last().filter(|_| chain.n_tokens == header.start).map(|link| link.key)
}

#[cfg(test)]
mod tests;
