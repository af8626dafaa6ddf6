//! The day that pins show where the template prints one, and the file that it outlives a restart in.
//!
//! In `optimise` pins keep their day, and so do their K/V on disk: a start on another day shows the *kept* day again, finds them
//! warm, and turns to its own day at the next midnight, when nobody waits. What is shown to whom, the planner knows.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::Moment;
use super::store;

pub(super) struct PinnedDay {
    shown: Moment,
    file: Option<PathBuf>,
    is_read: bool,
    /// The day of the start that found another one kept.
    kept_since: Option<i64>,
}

/// As it stands in the file.
#[derive(Default, Serialize, Deserialize)]
struct Stored(Option<(i64, i32, String)>);

impl PinnedDay {
    pub(super) fn of(now: Moment) -> PinnedDay {
        PinnedDay { shown: now, file: None, is_read: false, kept_since: None }
    }

    pub(super) fn in_file(self, file: PathBuf) -> PinnedDay {
        PinnedDay { file: Some(file), ..self }
    }

    pub(super) fn shown(&self) -> &Moment {
        &self.shown
    }

    /// It is `now`, before anybody was shown another day.
    pub(super) fn start_at(&mut self, now: Moment) {
        self.shown = now;
    }

    /// Whether it is one of before the start, to be turned at midnight.
    pub(super) fn is_kept(&self) -> bool {
        self.kept_since.is_some()
    }

    /// Whether midnight has passed since the start that kept it.
    pub(super) fn is_over(&self, now: &Moment) -> bool {
        self.kept_since.is_some_and(|since| since != now.day())
    }

    /// Takes the day from the file, once; a day that is still to come is nobody's.
    pub(super) fn recall(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| !self.is_read) else { return };
        let stored = store::load::<Stored>(file).unwrap_or_else(|error| {
            warn!(%error, "pins show the day of this start");
            Stored::default()
        });
        self.is_read = true;
        let today = self.shown.day();
        let kept = stored.0.map(|(unix_s, offset_s, zone)| Moment { unix_s, offset_s, zone: zone.into() });
        match kept.filter(|kept| kept.day() < today) {
            Some(kept) => {
                self.shown = kept;
                self.kept_since = Some(today);
            }
            None => self.save(),
        }
    }

    pub(super) fn turn(&mut self, now: &Moment) {
        self.shown = now.clone();
        self.kept_since = None;
        self.save();
    }

    fn save(&self) {
        let Some(file) = &self.file else { return };
        let Moment { unix_s, offset_s, zone } = &self.shown;
        if let Err(error) = store::save(file, &Stored(Some((*unix_s, *offset_s, zone.to_string())))) {
            warn!(%error, "the day that pins show is not remembered: a start on another day computes them anew");
        }
    }
}
