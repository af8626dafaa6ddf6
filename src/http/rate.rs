//! How often one client may ask.
//!
//! A *meter* spreads what is allowed in a span of time evenly, and lets the whole of it come at once after a pause (the generic
//! cell rate algorithm, ITU-T I.371). It is one number, so that requests on several threads need no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::config::Rate;

pub(super) struct Meter {
    /// Nanoseconds that one request uses up.
    cost: u64,
    /// How far ahead of the clock requests may run.
    span: u64,
    /// When all that was asked so far would be used up, in nanoseconds since the start.
    used_until: AtomicU64,
}

impl Meter {
    pub(super) fn new(rate: Rate) -> Meter {
        let span = nanoseconds(rate.per);
        Meter { cost: span / u64::from(rate.n_requests), span, used_until: AtomicU64::new(0) }
    }

    /// Takes one request at `now`, or says when to come again.
    pub(super) fn take(&self, now: Duration) -> Result<(), Duration> {
        let now = nanoseconds(now);
        let after = |used_until: u64| used_until.max(now) + self.cost;
        let taken = self.used_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used_until| {
            Some(after(used_until)).filter(|after| *after <= now + self.span)
        });
        taken.map(drop).map_err(|used_until| Duration::from_nanos(after(used_until) - now - self.span))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn so_many_come_at_once_and_then_one_at_a_time() {
        let meter = Meter::new(Rate { n_requests: 3, per: MINUTE });
        let at = |seconds| meter.take(Duration::from_secs(seconds));
        assert_eq!([at(100), at(100), at(100)], [Ok(()); 3]);
        assert_eq!(at(100), Err(Duration::from_secs(20)));
        assert_eq!(at(119), Err(Duration::from_secs(1)));
        assert_eq!(at(120), Ok(()));
        assert_eq!(at(120), Err(Duration::from_secs(20)), "one that was refused uses up nothing");
        assert_eq!([at(500), at(500), at(500)], [Ok(()); 3]);
        assert!(at(500).is_err());
    }
}
