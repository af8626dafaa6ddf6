//! What is kept of clients' prompts: families and records, tool sets, and when they go to the file and out of memory.
//!
//! *Keeping* is loading at the start, saving when no request came for a moment, and forgetting what is old. Without the file
//! prompts cost more tokens and are as true. What is kept, `live` and `seen` know; how the file is written, `store`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::live::Live;
use super::seen::SeenTools;
use super::store;
use crate::request::Owner;

/// Long enough that a tool loop is written once, short enough that a power cut costs no conversation.
const SAVE_AFTER: Duration = Duration::from_secs(5);
const FORGET_EVERY_S: i64 = 3600;
/// Private text does not outlive its last use for longer; that of a household away for a week is learnt anew.
const KEPT_S: i64 = 7 * 24 * 3600;

pub(super) struct Kept {
    learnt: Learnt,
    file: Option<PathBuf>,
    has_changed: bool,
    /// Unix time.
    forgot_at: i64,
    /// A full disk is told of once, not with each request.
    save_failed: bool,
}

/// As it stands in the file.
#[derive(Default, Serialize, Deserialize)]
struct Learnt {
    live: Live,
    tools: SeenTools,
}

impl Kept {
    /// What lies in `file`, or nothing. A file that cannot be used is told of and ignored.
    pub(super) fn load(file: Option<PathBuf>) -> Kept {
        let mut learnt = Learnt::default();
        if let Some(file) = &file {
            match store::load(file) {
                Ok(loaded) => learnt = loaded,
                Err(error) => warn!(%error, "what changes in prompts is learnt anew"),
            }
        }
        // Cells do not outlive a restart.
        learnt.live.forget_held();
        Kept { learnt, file, has_changed: false, forgot_at: 0, save_failed: false }
    }

    /// To be changed.
    pub(super) fn live(&mut self) -> &mut Live {
        self.has_changed = true;
        &mut self.learnt.live
    }

    /// To be changed.
    pub(super) fn tools(&mut self) -> &mut SeenTools {
        self.has_changed = true;
        &mut self.learnt.tools
    }

    /// How long to wait for a request before `rest`; `None`: there is nothing to do.
    pub(super) fn rest_after(&self) -> Option<Duration> {
        if self.learnt.is_empty() {
            None
        } else if self.has_changed && self.file.is_some() {
            Some(SAVE_AFTER)
        } else {
            Some(Duration::from_secs(FORGET_EVERY_S as u64))
        }
    }

    /// Forgets what is old, once an hour, and saves what changed.
    pub(super) fn rest(&mut self, now: i64) {
        if now - self.forgot_at >= FORGET_EVERY_S {
            self.forgot_at = now;
            self.has_changed |= self.learnt.live.idle(now, now - KEPT_S);
            self.has_changed |= self.learnt.tools.idle(now - KEPT_S);
        }
        self.save();
    }

    /// Forgets what was learnt of the prompts of `whose` client, in the file, too; `None`: of all.
    pub(super) fn forget(&mut self, whose: Option<Owner>) {
        self.has_changed |= self.learnt.live.forget(whose);
        self.has_changed |= self.learnt.tools.forget(whose);
        self.save();
    }

    /// Whether what is in memory is not in the file, and should be.
    pub(super) fn has_failed(&self) -> bool {
        self.save_failed
    }

    pub(super) fn save(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.has_changed) else { return };
        let saved = store::save(file, &self.learnt);
        if let Err(error) = &saved
            && !self.save_failed
        {
            warn!(%error, "what was learnt of changes in prompts is not saved");
        }
        self.save_failed = saved.is_err();
        self.has_changed = false;
    }
}

impl Learnt {
    fn is_empty(&self) -> bool {
        self.live.is_empty() && self.tools.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::live::{Fit, Input, Mode, Zone};
    use super::*;
    use crate::request::{Message, Role};

    const NOW: i64 = 1_796_069_170;

    fn talk(kept: &mut Kept) {
        let messages = [Message::text(Role::System, "A rule.\nnonce 1"), Message::text(Role::User, "Hi")];
        kept.live().lay(&Input {
            owner: Owner::Public,
            model: "model",
            conversation: None,
            messages: &messages,
            house: &[],
            fixed_bytes: 0..0,
            tools: &[],
            mode: Mode::Safe,
            fit: Fit::Free,
            now: NOW,
            zone: Zone { offset_s: 0, name: "UTC" },
            n_context_tokens: 1 << 20,
            count_tokens: &|text| text.len(),
            is_clock: &|line, _| line.starts_with("nonce"),
            clock_sentences: &|_, _| Vec::new(),
        });
    }

    #[test]
    fn it_wakes_only_where_there_is_something_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let hour = Some(Duration::from_secs(3600));
        let mut kept = Kept::load(Some(folder.path().join("layout")));
        assert_eq!(kept.rest_after(), None);
        talk(&mut kept);
        assert_eq!(kept.rest_after(), Some(SAVE_AFTER));
        kept.rest(NOW);
        assert_eq!(kept.rest_after(), hour);
        assert_eq!(Kept::load(Some(folder.path().join("layout"))).rest_after(), hour);
        let mut fleeting = Kept::load(None);
        talk(&mut fleeting);
        assert_eq!(fleeting.rest_after(), hour);
    }

    #[test]
    fn what_is_old_leaves_memory_and_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("layout");
        let mut kept = Kept::load(Some(file.clone()));
        talk(&mut kept);
        kept.rest(NOW);
        assert!(!Kept::load(Some(file.clone())).learnt.is_empty());
        kept.rest(NOW + KEPT_S + 1);
        assert!(kept.learnt.is_empty() && kept.rest_after().is_none());
        assert!(Kept::load(Some(file)).learnt.is_empty());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_tried_again_with_the_next_change() {
        let folder = tempfile::tempdir().unwrap();
        let in_the_way = folder.path().join("state");
        std::fs::write(&in_the_way, "").unwrap();
        let file = in_the_way.join("layout");
        let mut kept = Kept::load(None);
        kept.file = Some(file.clone());
        talk(&mut kept);
        kept.rest(NOW);
        assert!(kept.save_failed);
        std::fs::remove_file(&in_the_way).unwrap();
        talk(&mut kept);
        kept.rest(NOW);
        assert!(!kept.save_failed && file.exists());
    }
}
