//! Room: who gives way when a tier is full. What is worth least goes first, leaves before what they stand behind.

use super::{Entry, FILE_BYTES, File, Gone, GoneCause, NoRoom, Tier, Tiers};
use crate::kv::segment::{Kept, SegmentKey};
use crate::kv::value::{Reuse, Speeds, compute};
use crate::request::Token;

impl Tiers {
    /// Sets `n_bytes` of RAM aside for a segment of `n_tokens` behind `parent`, giving up what is worth less; `release` ends it.
    pub fn reserve(
        &mut self,
        n_bytes: u64,
        n_tokens: usize,
        parent: Option<SegmentKey>,
        reuse: Reuse,
        speeds: &Speeds,
    ) -> Result<(), NoRoom> {
        self.make_ram_room(n_bytes, n_tokens, reuse, parent, speeds)?;
        self.reserved += n_bytes;
        self.check();
        Ok(())
    }

    pub fn release(&mut self, n_bytes: u64) {
        self.reserved = self.reserved.checked_sub(n_bytes).expect("what is released was reserved");
        self.check();
    }

    /// Gives up what is worth less than the newcomer until `n_bytes` more fit into RAM. `parent` stays.
    pub(super) fn make_ram_room(
        &mut self,
        n_bytes: u64,
        n_tokens: usize,
        reuse: Reuse,
        spared: Option<SegmentKey>,
        speeds: &Speeds,
    ) -> Result<(), NoRoom> {
        if n_bytes > self.budgets.ram {
            return Err(NoRoom::TooLarge);
        }
        let priority = self.ram_clock.priority(reuse, compute(n_tokens), n_bytes as f64);
        while self.ram + self.reserved + n_bytes > self.budgets.ram {
            let candidates = self.entries.iter().filter(|(key, entry)| {
                let is_free = entry.ram.is_some() && !entry.is_passing && entry.file != File::Writing;
                // Leaves first; a pin is never lost.
                let is_elsewhere = entry.file == File::There;
                let is_leaf = entry.children.is_empty() && entry.header.kept != Kept::Pin;
                is_free && (is_elsewhere || is_leaf) && Some(**key) != spared
            });
            // What is worth a file and has none yet goes last: it will have one in a moment.
            let least = candidates
                .map(|(&key, entry)| {
                    let has_none = entry.file == File::None && self.is_worth_file(entry);
                    (has_none, self.ram_priority(entry, speeds), entry.tick, key)
                })
                .min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
            self.is_pressed = true;
            self.is_changed = true;
            let Some((_, least, _, key)) = least.filter(|(_, least, ..)| *least <= priority) else {
                // It counts as taken in and given up: those who refuse everybody grow old by it.
                self.ram_clock.advance(priority);
                return Err(NoRoom::WorthLess);
            };
            self.ram_clock.advance(least);
            self.drop_ram(key, GoneCause::Room);
        }
        Ok(())
    }

    pub(super) fn make_disk_room(&mut self, n_bytes: u64, for_key: SegmentKey) -> Result<(), NoRoom> {
        if n_bytes > self.budgets.disk {
            return Err(NoRoom::TooLarge);
        }
        let priority = self.entries.get(&for_key).map_or(f64::INFINITY, |entry| match entry.header.kept {
            Kept::Private => {
                self.disk_clock.priority(entry.reuse, compute(entry.header.tokens.len()), entry.ram_bytes() as f64)
            }
            Kept::Pin | Kept::Learned => f64::INFINITY,
        });
        let spared = self.ancestors(for_key);
        while self.disk + n_bytes > self.budgets.disk {
            let candidates = self.entries.iter().filter(|(key, entry)| {
                entry.file == File::There
                    && entry.header.kept == Kept::Private
                    && !entry.children.iter().any(|child| self.entries[child].has_file() || entry.ram.is_none())
                    && !spared.contains(key)
            });
            let least = candidates
                .map(|(&key, entry)| (self.disk_priority(entry), entry.tick, key))
                .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let Some((least, _, key)) = least.filter(|(least, ..)| *least <= priority) else {
                if priority.is_finite() {
                    self.disk_clock.advance(priority);
                }
                return Err(NoRoom::WorthLess);
            };
            self.disk_clock.advance(least);
            self.drop_file(key, GoneCause::Room);
        }
        Ok(())
    }

    /// What came back, or is kept whatever happens; a one-shot is not worth the disk's wear.
    pub(super) fn is_worth_file(&self, entry: &Entry) -> bool {
        let is_worth_it = matches!(entry.reuse, Reuse::Hits(_)) || entry.header.kept != Kept::Private;
        is_worth_it && entry.ram_bytes() + FILE_BYTES <= self.budgets.disk
    }

    fn ancestors(&self, key: SegmentKey) -> Vec<SegmentKey> {
        let mut path = Vec::new();
        let mut at = Some(key).filter(|key| self.entries.contains_key(key));
        while let Some(key) = at {
            path.push(key);
            at = self.entries[&key].parent;
        }
        path
    }

    pub(super) fn ram_priority(&self, entry: &Entry, speeds: &Speeds) -> f64 {
        let n_bytes = entry.header.n_bytes() as u64;
        let cost = match entry.file {
            File::There => speeds.restore(0, n_bytes).min(compute(entry.header.tokens.len())),
            File::None | File::Writing => compute(entry.header.tokens.len()),
        };
        entry.ram_used.priority(entry.reuse, cost, entry.ram_bytes() as f64)
    }

    fn disk_priority(&self, entry: &Entry) -> f64 {
        let cost = compute(entry.header.tokens.len());
        entry.disk_used.priority(entry.reuse, cost, entry.file_bytes.max(1) as f64)
    }

    /// Takes the bytes out of RAM; without a file the segment is gone.
    pub(super) fn drop_ram(&mut self, key: SegmentKey, cause: GoneCause) {
        if self.entries[&key].file == File::None {
            return self.remove(key, cause);
        }
        let entry = self.entries.get_mut(&key).expect("what is dropped is held");
        if entry.ram.take().is_some() && !std::mem::take(&mut entry.is_passing) {
            let n_bytes = entry.ram_bytes();
            self.ram -= n_bytes;
            let (holder, n_tokens) = (entry.header.holder, entry.header.tokens.len());
            self.gone.push(Gone { key, holder, tier: Tier::Ram, cause, n_tokens, n_bytes, lost: None });
        }
    }

    /// Takes the file away, and those of what stands behind it; without bytes in RAM that can stay, the segment is gone.
    pub(super) fn drop_file(&mut self, key: SegmentKey, cause: GoneCause) {
        let entry = &self.entries[&key];
        if entry.ram.is_none() || entry.is_passing {
            return self.remove(key, cause);
        }
        for child in entry.children.clone() {
            if self.entries.get(&child).is_some_and(Entry::has_file) {
                self.drop_file(child, cause);
            }
        }
        self.uncount_file(key, cause, None);
    }

    fn uncount_file(&mut self, key: SegmentKey, cause: GoneCause, lost: Option<Vec<Token>>) {
        let entry = self.entries.get_mut(&key).expect("what is dropped is held");
        if entry.file == File::None {
            return;
        }
        entry.file = File::None;
        let n_bytes = std::mem::take(&mut entry.file_bytes);
        self.disk -= n_bytes;
        if entry.header.kept == Kept::Learned {
            self.learned -= n_bytes;
        }
        let (holder, n_tokens) = (entry.header.holder, entry.header.tokens.len());
        self.gone.push(Gone { key, holder, tier: Tier::Disk, cause, n_tokens, n_bytes, lost });
    }

    /// Takes a segment out of all tiers, and those behind it first.
    pub(super) fn remove(&mut self, key: SegmentKey, cause: GoneCause) {
        for child in self.entries[&key].children.clone() {
            self.remove(child, cause);
        }
        let mut lost = self.path(key);
        lost.truncate(self.entries[&key].header.start + 1);
        let mut lost = Some(lost);
        let entry = self.entries.get_mut(&key).expect("what is removed is held");
        if entry.ram.take().is_some() && !entry.is_passing {
            let n_bytes = entry.ram_bytes();
            self.ram -= n_bytes;
            let (holder, n_tokens) = (entry.header.holder, entry.header.tokens.len());
            let lost = lost.take().filter(|_| !entry.has_file());
            self.gone.push(Gone { key, holder, tier: Tier::Ram, cause, n_tokens, n_bytes, lost });
        }
        self.uncount_file(key, cause, lost);
        let entry = self.entries.remove(&key).expect("what is removed is held");
        let siblings = match entry.parent {
            Some(parent) => &mut self.entries.get_mut(&parent).expect("a parent is held").children,
            None => &mut self.roots,
        };
        siblings.retain(|&sibling| sibling != key);
    }
}
