//! In which order a profile's documents stand: those that change most rarely first, so that an edit costs only what stands
//! behind it.
//!
//! A *past* is what is known of one document before this start. Nothing is read or remembered here: the order follows from
//! the pasts and the time alone.

/// What is known of a document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Past {
    pub n_bytes: usize,
    /// In Unix time; now, for one that is new.
    pub first_seen: i64,
    /// Changes since then, one that was just found included.
    pub n_changes: u32,
    /// Where it stood last time, from 0; `None`: it is new.
    pub place: Option<usize>,
    /// It is new, or its text is another one than last time: what stands behind it must be computed anew in any case.
    pub is_changed: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Ordered {
    /// Indices of the documents as configured, in the order in which they are to stand.
    pub order: Vec<usize>,
    /// Of each document, as configured.
    pub changes_per_month: Vec<f64>,
}

const MONTH_S: f64 = 30.0 * 24.0 * 3600.0;

/// The order of `documents`, which come as configured.
///
/// Documents that change equally often keep the configured order. The order of last time stays as long as another one
/// would save less in a month than it costs to compute it once.
pub fn order(documents: &[Past], now: i64) -> Ordered {
    let changes_per_month: Vec<f64> = documents.iter().map(|past| past.changes_per_month(now)).collect();
    let mut best: Vec<usize> = (0..documents.len()).collect();
    best.sort_by(|&a, &b| changes_per_month[a].total_cmp(&changes_per_month[b]));
    let order = match held(documents) {
        Some(held) if !pays(&held, &best, documents, &changes_per_month) => held,
        _ => best,
    };
    Ordered { order, changes_per_month }
}

/// The order of last time, new documents at its end; `None`: there was none.
fn held(documents: &[Past]) -> Option<Vec<usize>> {
    documents.iter().any(|past| past.place.is_some()).then(|| {
        let mut held: Vec<usize> = (0..documents.len()).collect();
        held.sort_by_key(|&index| documents[index].place.unwrap_or(usize::MAX));
        held
    })
}

/// Whether `best` saves more bytes in a month than are computed for its sake now.
fn pays(held: &[usize], best: &[usize], documents: &[Past], changes_per_month: &[f64]) -> bool {
    let monthly = |order: &[usize]| -> f64 {
        let cost = |at: usize| changes_per_month[order[at]] * n_bytes(&order[at..], documents) as f64;
        (0..order.len()).map(cost).sum()
    };
    let Some(first_moved) = held.iter().zip(best).position(|(held, best)| held != best) else { return false };
    let first_changed = held.iter().position(|&index| documents[index].is_changed).unwrap_or(held.len());
    // What stands behind a changed document is lost in any order.
    let n_lost = held.get(first_moved..first_changed.max(first_moved)).map_or(0, |lost| n_bytes(lost, documents));
    monthly(held) - monthly(best) > n_lost as f64
}

fn n_bytes(order: &[usize], documents: &[Past]) -> usize {
    order.iter().map(|&index| documents[index].n_bytes).sum()
}

impl Past {
    /// As if the document had been seen unchanged for a month before: one edit on its first day is no habit.
    fn changes_per_month(&self, now: i64) -> f64 {
        let age_s = (now - self.first_seen).max(0) as f64;
        f64::from(self.n_changes) / ((age_s + MONTH_S) / MONTH_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_796_069_170;
    const DAY: i64 = 24 * 3600;

    /// Seen for a year, `n_changes` times changed, at `place` last time.
    fn past(n_bytes: usize, n_changes: u32, place: usize) -> Past {
        Past { n_bytes, first_seen: NOW - 365 * DAY, n_changes, place: Some(place), is_changed: false }
    }

    fn new(n_bytes: usize) -> Past {
        Past { n_bytes, first_seen: NOW, n_changes: 0, place: None, is_changed: true }
    }

    #[test]
    fn without_history_the_configured_order_stays() {
        assert_eq!(order(&[new(5), new(1), new(9)], NOW).order, [0, 1, 2]);
        assert_eq!(order(&[], NOW).order, [0; 0]);
    }

    #[test]
    fn what_changes_more_often_stands_further_back_and_ties_keep_the_configured_order() {
        let documents = [past(1000, 30, 0), past(1000, 0, 1), past(1000, 4, 2), past(1000, 0, 3)];
        let ordered = order(&documents, NOW);
        assert_eq!(ordered.order, [1, 3, 2, 0]);
        let rounded: Vec<f64> = ordered.changes_per_month.iter().map(|rate| (rate * 10.0).round() / 10.0).collect();
        assert_eq!(rounded, [2.3, 0.0, 0.3, 0.0]);
    }

    #[test]
    fn the_order_changes_only_when_it_pays_within_a_month() {
        // 0.3 changes a month times 1,000 bytes behind it are less than the 2,000 bytes to compute now.
        assert_eq!(order(&[past(1000, 4, 0), past(1000, 0, 1)], NOW).order, [0, 1]);
        // 2.3 changes are more.
        assert_eq!(order(&[past(1000, 30, 0), past(1000, 0, 1)], NOW).order, [1, 0]);
    }

    #[test]
    fn a_document_that_is_computed_anyway_is_put_in_its_place_at_once() {
        let changed = Past { is_changed: true, ..past(1000, 4, 0) };
        assert_eq!(order(&[changed, past(1000, 0, 1)], NOW).order, [1, 0]);
        // What stands in front of it is not.
        let behind = Past { is_changed: true, ..past(1000, 0, 1) };
        assert_eq!(order(&[past(1000, 4, 0), behind], NOW).order, [0, 1]);
    }

    #[test]
    fn one_edit_on_the_first_day_is_no_habit() {
        let fresh = Past { first_seen: NOW - DAY, n_changes: 1, ..past(10, 0, 0) };
        assert!((0.9..1.0).contains(&fresh.changes_per_month(NOW)));
        // A clock that was set back makes nobody older.
        assert_eq!(Past { first_seen: NOW + DAY, ..fresh }.changes_per_month(NOW), 1.0);
    }
}
