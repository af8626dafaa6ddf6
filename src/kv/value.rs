//! What a held run of tokens is worth: expected reuse × cost to get it back ÷ size, with ageing
//! (GreedyDual-Size-Frequency, Cherkasova 1998).
//!
//! *Cost* is time, told in tokens: how many could be computed meanwhile. So what can only be computed costs the same on a busy
//! machine as on a quiet one, and what goes first among it does not depend on when a speed was measured.
//!
//! A *priority* orders what could be given up in one tier: the lowest goes first. It is the tier's clock at the last use plus the
//! value; the clock moves up to the priority of whatever went, so that what is never used again falls behind what came later,
//! however often it was used once. Nothing here knows tokens or bytes: sizes are in the tier's own unit.

/// Of the texts seen once, this many are expected to come again. A fraction, so that what did come again outlives several
/// generations of one-shots; not zero, or the first turn of a conversation would be worth nothing.
const FIRST_REUSE: f64 = 0.25;

/// How often a run is expected to be used again.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Reuse {
    /// Seen once.
    #[default]
    Once,
    /// This many times so far.
    Hits(u32),
    /// Not at all: it was a job's in the background, or its client is to be forgotten.
    Never,
}

impl Reuse {
    pub fn expected(self) -> f64 {
        match self {
            Reuse::Once => FIRST_REUSE,
            Reuse::Never => 0.0,
            Reuse::Hits(n) => f64::from(n),
        }
    }

    /// It was used once more.
    pub fn hit(&mut self) {
        *self = match *self {
            Reuse::Once | Reuse::Never => Reuse::Hits(1),
            Reuse::Hits(n) => Reuse::Hits(n.saturating_add(1)),
        };
    }

    /// What goes on from text of this reuse: a conversation that came back is expected to come back once more.
    pub fn continued(self) -> Reuse {
        match self {
            Reuse::Hits(_) => Reuse::Hits(1),
            Reuse::Once => Reuse::Once,
            Reuse::Never => Reuse::Once,
        }
    }
}

/// A tier's clock, in its own unit: cost per cell or per byte.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default)]
pub struct Clock(f64);

impl Clock {
    /// Something of this priority was given up, or not even taken in.
    pub fn advance(&mut self, priority: f64) {
        self.0 = self.0.max(priority);
    }

    /// The priority of what was last used at this time. `size` > 0.
    pub fn priority(self, reuse: Reuse, cost: f64, size: f64) -> f64 {
        self.0 + reuse.expected() * cost / size
    }
}

/// Measured speeds: how long something takes that is not done yet.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Speeds {
    /// Prompt tokens computed per second; 0: not measured yet.
    pub prefill: f64,
    /// Bytes per second from RAM into cells.
    pub ram: Rate,
    /// Bytes per second from a file, verified, into RAM.
    pub disk: Rate,
}

/// Until it is measured: one core copies some GiB/s, and a cheap disk reads some 100 MiB/s.
const RAM_GUESS: f64 = 2e9;
const DISK_GUESS: f64 = 2e8;

impl Speeds {
    /// The cost of bringing bytes back: those that lie in RAM, and those on disk, which then come through RAM.
    pub fn restore(&self, in_ram: u64, on_disk: u64) -> f64 {
        let seconds = self.ram.seconds(in_ram + on_disk, RAM_GUESS) + self.disk.seconds(on_disk, DISK_GUESS);
        // Before anything was measured: as fast as a small machine.
        seconds * if self.prefill > 0.0 { self.prefill } else { 100.0 }
    }

    /// Whether `n_tokens` are sooner restored than computed. What was never measured is tried.
    pub fn restores_faster(&self, n_tokens: usize, in_ram: u64, on_disk: u64) -> bool {
        let is_known = self.prefill > 0.0 && self.ram.is_known() && (on_disk == 0 || self.disk.is_known());
        !is_known || self.restore(in_ram, on_disk) < compute(n_tokens)
    }

    /// It was not tried because it seemed slow: a disk that slept once must not be called slow for ever.
    pub fn doubt(&mut self, on_disk: u64) {
        self.ram.doubt();
        if on_disk > 0 {
            self.disk.doubt();
        }
    }
}

/// The cost of computing `n_tokens`.
pub fn compute(n_tokens: usize) -> f64 {
    n_tokens as f64
}

/// Bytes per second of one way, as it is when nothing disturbs it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Rate(f64);

impl Rate {
    /// A tenth is forgotten with each measurement: what disturbs one copy in a while changes no decision, and twenty slow ones
    /// in a row do.
    const KEPT: f64 = 0.9;

    pub fn measure(&mut self, n_bytes: u64, time: std::time::Duration) {
        let now = n_bytes as f64 / time.as_secs_f64().max(1e-6);
        self.0 = now.max(self.0 * Self::KEPT);
    }

    fn is_known(self) -> bool {
        self.0 > 0.0
    }

    fn seconds(self, n_bytes: u64, guess: f64) -> f64 {
        n_bytes as f64 / if self.is_known() { self.0 } else { guess }
    }

    fn doubt(&mut self) {
        self.0 *= 1.05;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_came_back_outlives_generations_of_one_shots_and_not_for_ever() {
        let mut clock = Clock::default();
        let reused = clock.priority(Reuse::Hits(2), 1.0, 1.0);
        let mut n_generations = 0;
        loop {
            let one_shot = clock.priority(Reuse::Once, 1.0, 1.0);
            if one_shot > reused {
                break;
            }
            clock.advance(one_shot);
            n_generations += 1;
        }
        assert_eq!(n_generations, 8);
    }

    #[test]
    fn the_cost_saved_for_each_byte_decides() {
        let clock = Clock::default();
        let priority = |cost, size| clock.priority(Reuse::Once, cost, size);
        assert!(priority(2.0, 100.0) > priority(1.0, 100.0));
        assert!(priority(1.0, 100.0) > priority(1.0, 200.0));
        assert!(clock.priority(Reuse::Hits(1), 1.0, 100.0) > priority(1.0, 100.0));
    }

    #[test]
    fn a_conversation_that_came_back_is_expected_again_once() {
        let mut reuse = Reuse::Once;
        assert_eq!(reuse.continued(), Reuse::Once);
        reuse.hit();
        reuse.hit();
        assert_eq!((reuse, reuse.continued()), (Reuse::Hits(2), Reuse::Hits(1)));
    }

    #[test]
    fn the_faster_way_is_taken_and_the_unknown_one_is_tried() {
        let mut speeds = Speeds::default();
        assert!(speeds.restores_faster(100, 1_000, 1_000), "nothing is known");
        speeds.prefill = 100.0;
        assert!(speeds.restores_faster(100, 1_000, 1_000), "the tiers are not known");
        speeds.ram.measure(1_000, Duration::from_millis(100));
        assert!(speeds.restores_faster(100, 9_000, 0), "0.9 s against 1 s");
        assert!(!speeds.restores_faster(100, 11_000, 0), "1.1 s against 1 s");
        speeds.disk.measure(1_000, Duration::from_secs(1));
        assert!(!speeds.restores_faster(100, 0, 1_000), "1.1 s against 1 s");
        for _ in 0..10 {
            speeds.doubt(1_000);
        }
        assert!(speeds.restores_faster(100, 0, 1_000), "it is tried again in the end");
    }

    #[test]
    fn one_disturbed_copy_changes_little_and_many_do() {
        let mut rate = Rate::default();
        rate.measure(1_000, Duration::from_secs(1));
        rate.measure(10, Duration::from_secs(1));
        assert!((rate.seconds(900, 1.0) - 1.0).abs() < 1e-9);
        for _ in 0..60 {
            rate.measure(10, Duration::from_secs(1));
        }
        assert!((rate.seconds(10, 1.0) - 1.0).abs() < 1e-9);
    }
}
