//! Files: which segments are worth one, what is there at the start, and what is kept whatever happens.

use std::collections::HashMap;

use super::{Entry, FILE_BYTES, File, Gone, GoneCause, Link, Tier, Tiers, WRITE_FROM};
use crate::kv::holder::Holder;
use crate::kv::segment::{Header, Kept, PrefixHash, Segment, SegmentKey};
use crate::kv::value::{Reuse, Speeds};
use crate::request::Token;

impl Tiers {
    /// A segment came from disk: it stays in RAM if there is room that is worth it.
    pub fn bring_back(&mut self, segment: &Segment, speeds: &Speeds) {
        let key = segment.header.key;
        let Some(entry) = self.entries.get(&key) else { return };
        let (reuse, n_bytes, n_tokens) = (entry.reuse, entry.ram_bytes(), entry.header.tokens.len());
        // With its file there it would be given up first and brought back again: only what came back is kept.
        let is_wanted = entry.ram.is_none() && entry.header.tokens == segment.header.tokens && self.budgets.ram > 0;
        if is_wanted && self.make_ram_room(n_bytes, n_tokens, reuse, Some(key), speeds).is_ok() {
            let entry = self.entries.get_mut(&key).expect("its own making room does not take it");
            entry.ram = Some(segment.pieces.clone());
            entry.ram_used = self.ram_clock;
            self.ram += n_bytes;
        }
        self.check();
    }

    /// The bytes of a segment to write now, room made for its file; `None`: it has one, its parent has none, or it is not worth
    /// the room.
    pub fn begin_write(&mut self, key: SegmentKey) -> Option<Segment> {
        let entry = self.entries.get(&key)?;
        let pieces = entry.ram.clone()?;
        let parent_is_there = entry.parent.is_none_or(|parent| self.entries[&parent].file == File::There);
        if entry.file == File::Writing || !parent_is_there {
            return None;
        }
        // A file that is written again, since it is kept for another reason now, is counted already.
        let n_new = if entry.file == File::There { 0 } else { entry.ram_bytes() + FILE_BYTES };
        if self.make_disk_room(n_new, key).is_err() {
            return None;
        }
        let entry = self.entries.get_mut(&key).expect("making room does not take what is written");
        if entry.file == File::None {
            entry.file_bytes = n_new;
            entry.disk_used = self.disk_clock;
            self.disk += n_new;
            if entry.header.kept == Kept::Learned {
                self.learned += n_new;
            }
        }
        entry.file = File::Writing;
        let segment = Segment { header: entry.header.clone(), pieces };
        self.check();
        Some(segment)
    }

    /// The file is there and has this size.
    pub fn written(&mut self, key: SegmentKey, n_file_bytes: u64) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        if entry.file != File::Writing {
            return;
        }
        entry.file = File::There;
        self.is_changed = true;
        self.disk = self.disk - entry.file_bytes + n_file_bytes;
        if entry.header.kept == Kept::Learned {
            self.learned = self.learned - entry.file_bytes + n_file_bytes;
        }
        entry.file_bytes = n_file_bytes;
        if std::mem::take(&mut entry.is_passing) {
            entry.ram = None;
        }
        // Files are a little larger than what was counted for them.
        let _ = self.make_disk_room(0, key);
        self.check();
    }

    /// The file could not be written: what was only passing is gone.
    pub fn write_failed(&mut self, key: SegmentKey) {
        if self.entries.get(&key).is_some_and(|entry| entry.file == File::Writing) {
            self.drop_file(key, GoneCause::Failed);
        }
        self.check();
    }

    /// Takes in what lies on disk at the start, in any order; what stands behind nothing is given up. It may have been computed
    /// and saved again before the disk told of it.
    pub fn take_found(&mut self, found: Vec<(Header, u64)>) {
        let mut found = found;
        found.sort_by_key(|(header, _)| header.start);
        // The prefixes that somebody stands behind, found while the segments they end in are taken in.
        let wanted: Vec<usize> = found.iter().map(|(header, _)| header.start).filter(|&start| start > 0).collect();
        let mut ends: HashMap<(usize, PrefixHash), Vec<SegmentKey>> = HashMap::new();
        for (header, n_file_bytes) in found {
            let (key, start) = (header.key, header.start);
            let candidates = ends.get(&(start, header.prefix)).map_or(&[][..], Vec::as_slice);
            let parent =
                candidates.iter().copied().find(|parent| header.holder.may_see(self.entries[parent].header.holder));
            let is_used = match self.entries.contains_key(&key) {
                true => self.take_found_again(&header, n_file_bytes),
                false => start == 0 || parent.is_some(),
            };
            if !is_used {
                let (holder, n_tokens, n_bytes) = (header.holder, header.tokens.len(), n_file_bytes);
                let tier = Tier::Disk;
                self.gone.push(Gone { key, holder, tier, cause: GoneCause::Removed, n_tokens, n_bytes, lost: None });
                continue;
            }
            let is_whole = header.is_whole;
            if !self.entries.contains_key(&key) {
                self.put(header, parent, Reuse::Once, None);
                self.set_found(key, n_file_bytes);
            }
            if !is_whole {
                let path = self.path(key);
                let header = &self.entries[&key].header;
                let inside = wanted.partition_point(|&at| at <= header.start);
                let mut at_last = 0;
                for &at in wanted[inside..].iter().take_while(|&&at| at <= header.end()).filter(|&&at| {
                    let is_new = at != at_last;
                    at_last = at;
                    is_new
                }) {
                    ends.entry((at, PrefixHash::of(&path[..at]))).or_default().push(key);
                }
            }
        }
        let _ = self.make_disk_room(0, SegmentKey([0; 32]));
        self.check();
    }

    /// Whether a file that was found is of use beside what is held under its key: it serves as its file, or another one is just
    /// being written in its place.
    fn take_found_again(&mut self, found: &Header, n_file_bytes: u64) -> bool {
        let entry = &self.entries[&found.key];
        if entry.has_file() {
            return true;
        }
        let is_same = entry.header.tokens == found.tokens && entry.header.pieces == found.pieces;
        let is_reachable = entry.parent.is_none_or(|parent| self.entries[&parent].has_file());
        // What is kept for another reason by now needs a file that says so.
        if !is_same || !is_reachable || entry.header.kept != found.kept {
            return false;
        }
        self.set_found(found.key, n_file_bytes);
        let entry = self.entries.get_mut(&found.key).expect("it is held");
        if std::mem::take(&mut entry.is_passing) {
            entry.ram = None;
        }
        true
    }

    fn set_found(&mut self, key: SegmentKey, n_file_bytes: u64) {
        let entry = self.entries.get_mut(&key).expect("it is held");
        entry.file = File::There;
        entry.file_bytes = n_file_bytes;
        self.disk += n_file_bytes;
        if entry.header.kept == Kept::Learned {
            self.learned += n_file_bytes;
        }
    }

    /// What is kept as a pin and none of `pins` needs any more is given up.
    pub fn keep_pins(&mut self, pins: &[(Holder, &[Token])]) {
        // A private one may be the beginning of what a conversation of its owner left.
        let private = pins.iter().filter(|(holder, _)| !holder.is_house());
        let used: Vec<SegmentKey> =
            private.flat_map(|(holder, pin)| self.find(*holder, pin).links).map(|link| link.key).collect();
        let is_needed = |tiers: &Tiers, key: SegmentKey| {
            let (path, holder) = (tiers.path(key), tiers.entries[&key].header.holder);
            used.contains(&key) || pins.iter().any(|pin| pin.0 == holder && pin.1.starts_with(&path))
        };
        let pinned = self.entries.iter().filter(|(_, entry)| entry.header.kept == Kept::Pin).map(|(&key, _)| key);
        let (needed, mut unneeded): (Vec<_>, Vec<_>) = pinned.partition(|&key| is_needed(self, key));
        // One that is needed may begin in another that is no pin's any more, and would go with it.
        let stood_on: Vec<SegmentKey> = needed
            .iter()
            .flat_map(|&key| std::iter::successors(self.entries[&key].parent, |above| self.entries[above].parent))
            .collect();
        unneeded.retain(|key| !stood_on.contains(key));
        for key in unneeded {
            self.lose(key, GoneCause::Removed);
        }
    }

    /// Keeps what covers `prefix` as learned, as far as its share of the disk reaches; older learned ones give way. Gives the
    /// segments whose files must be written, or written again, for it.
    pub fn learn(&mut self, holder: Holder, prefix: &[Token]) -> Vec<SegmentKey> {
        let chain = self.find(holder, prefix);
        if chain.n_tokens < prefix.len() {
            return Vec::new();
        }
        let is_new = |key: &SegmentKey| self.entries[key].header.kept == Kept::Private;
        let keys: Vec<SegmentKey> = chain.links.iter().map(|link| link.key).filter(is_new).collect();
        let n_bytes: u64 = keys.iter().map(|key| self.entries[key].ram_bytes() + FILE_BYTES).sum();
        if n_bytes > self.budgets.learned {
            return Vec::new();
        }
        while self.learned + n_bytes > self.budgets.learned {
            let learned = self.entries.iter().filter(|(_, entry)| {
                entry.header.kept == Kept::Learned
                    && entry.has_file()
                    && !entry.children.iter().any(|child| self.entries[child].header.kept == Kept::Learned)
            });
            let Some((&oldest, _)) = learned.min_by_key(|(_, entry)| entry.tick) else { return Vec::new() };
            let entry = self.entries.get_mut(&oldest).expect("it was just found");
            entry.header.kept = Kept::Private;
            self.learned -= entry.file_bytes;
        }
        for key in &keys {
            let entry = self.entries.get_mut(key).expect("links of a chain are held");
            entry.header.kept = Kept::Learned;
            if entry.has_file() {
                self.learned += entry.file_bytes;
            }
        }
        self.check();
        keys
    }

    /// Keeps what covers `prefix` as a pin of `holder`; gives the segments whose files must be written, or written again.
    pub fn keep_as_pin(&mut self, holder: Holder, prefix: &[Token]) -> Vec<SegmentKey> {
        let chain = self.find(holder, prefix);
        if chain.n_tokens < prefix.len() {
            return Vec::new();
        }
        let is_new = |key: &SegmentKey| self.entries[key].header.kept != Kept::Pin;
        let keys: Vec<SegmentKey> = chain.links.iter().map(|link| link.key).filter(is_new).collect();
        for key in &keys {
            let entry = self.entries.get_mut(key).expect("links of a chain are held");
            if std::mem::replace(&mut entry.header.kept, Kept::Pin) == Kept::Learned {
                self.learned -= entry.file_bytes;
            }
        }
        self.check();
        keys
    }

    /// Where `prefix` would come from, if all of it is held: the slowest of its tiers.
    pub fn tier_of(&self, holder: Holder, prefix: &[Token]) -> Option<Tier> {
        let chain = self.find(holder, prefix);
        let is_in_ram = |link: &Link| self.entries[&link.key].ram.is_some();
        (chain.n_tokens == prefix.len() && chain.n_tokens > 0).then(|| match chain.links.iter().all(is_in_ram) {
            true => Tier::Ram,
            false => Tier::Disk,
        })
    }

    /// Whether all that covers `prefix` is kept as a pin or learned.
    pub fn is_learned(&self, holder: Holder, prefix: &[Token]) -> bool {
        let chain = self.find(holder, prefix);
        let is_kept = |link: &Link| self.entries[&link.key].header.kept != Kept::Private;
        chain.n_tokens == prefix.len() && chain.links.iter().all(is_kept)
    }

    /// A segment that was only passing cannot be written: it goes.
    pub fn drop_passing(&mut self, key: SegmentKey) {
        if self.entries.get(&key).is_some_and(|entry| entry.is_passing && entry.file == File::None) {
            self.remove(key, GoneCause::Room);
        }
        self.check();
    }

    /// What should be written now, so that RAM can give way: what came back, is worth least, and has no file. `is_end`: the
    /// daemon stops, so the best first, whether RAM is full or not.
    pub fn next_to_write(&self, speeds: &Speeds, is_end: bool) -> Option<SegmentKey> {
        let is_full = self.is_pressed || self.ram as f64 >= self.budgets.ram as f64 * WRITE_FROM;
        if self.budgets.disk == 0 || !(is_full || is_end) {
            return None;
        }
        let unwritten = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.ram.is_some() && entry.file == File::None && self.is_worth_file(entry));
        let by_value = |(_, a): &(&SegmentKey, &Entry), (_, b): &(&SegmentKey, &Entry)| {
            let (a, b) = (self.ram_priority(a, speeds), self.ram_priority(b, speeds));
            if is_end { b.total_cmp(&a) } else { a.total_cmp(&b) }
        };
        let (&key, _) = unwritten.min_by(by_value)?;
        // Its parents first: a file behind none would be of no use. One whose bytes are not in RAM and not on disk cannot be.
        let mut first = key;
        let mut at = self.entries[&key].parent;
        while let Some(parent) = at {
            if self.entries[&parent].file == File::None {
                first = parent;
            }
            at = self.entries[&parent].parent;
        }
        (self.entries[&first].file == File::None && self.entries[&first].ram.is_some()).then_some(first)
    }
}
