//! Puts profiles' documents in order by what telemetry remembers of them.
//!
//! A *history* is what is known of all documents after this start has looked at them. Nothing is written here: a start that
//! is refused leaves no trace.

use std::collections::HashMap;
use std::path::Path;

use tracing::warn;

use crate::prompt::{Moment, Past, Profile, order_documents};
use crate::telemetry::{DocumentRow, read_documents};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// To be kept for the next start.
    pub rows: Vec<DocumentRow>,
    /// Of each profile's documents, in their new order; `None`: it is new.
    pub changes_per_month: Vec<Vec<Option<f64>>>,
}

/// Orders the documents of all `profiles` by the history in the database at `path`. Without one the configured order
/// stays; a database that cannot be read is told of.
pub fn order(path: &Path, profiles: &mut [Profile], now: &Moment) -> History {
    let known = read_documents(path).unwrap_or_else(|error| {
        warn!(error = %super::chain(&error), "documents stand as configured");
        Vec::new()
    });
    let known: HashMap<(&str, &str), &DocumentRow> =
        known.iter().map(|row| ((row.profile.as_str(), row.title.as_str()), row)).collect();
    let mut history = History::default();
    for profile in profiles {
        let (mut rows, pasts): (Vec<DocumentRow>, Vec<Past>) = titles(profile)
            .into_iter()
            .zip(&profile.documents)
            .map(|(title, document)| {
                let row = look(profile, title, &document.text, &known, now.unix_s * 1000);
                let last = known.get(&(row.profile.as_str(), row.title.as_str()));
                let past = Past {
                    n_bytes: document.text.len(),
                    first_seen: row.first_seen_ms / 1000,
                    n_changes: row.n_changes,
                    place: last.map(|last| last.place),
                    is_changed: last.is_none_or(|last| last.hash != row.hash),
                };
                (row, past)
            })
            .unzip();
        let ordered = order_documents(&pasts, now.unix_s);
        for (place, &index) in ordered.order.iter().enumerate() {
            rows[index].place = place;
        }
        profile.documents = ordered.order.iter().map(|&index| profile.documents[index].clone()).collect();
        let changes = |&index: &usize| pasts[index].place.map(|_| ordered.changes_per_month[index]);
        history.changes_per_month.push(ordered.order.iter().map(changes).collect());
        history.rows.extend(rows);
    }
    history
}

/// What is known of a document after a look at its text.
fn look(
    profile: &Profile,
    title: String,
    text: &str,
    known: &HashMap<(&str, &str), &DocumentRow>,
    now_ms: i64,
) -> DocumentRow {
    let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
    match known.get(&(profile.name.as_str(), title.as_str())) {
        Some(last) if last.hash == hash => (*last).clone(),
        Some(last) => {
            DocumentRow { hash, n_changes: last.n_changes + 1, last_change_ms: Some(now_ms), ..(*last).clone() }
        }
        None => DocumentRow {
            profile: profile.name.clone(),
            title,
            hash,
            first_seen_ms: now_ms,
            n_changes: 0,
            last_change_ms: None,
            place: 0,
        },
    }
}

/// A name of its own for each document: files in different folders may have one title.
fn titles(profile: &Profile) -> Vec<String> {
    let mut n_seen: HashMap<&str, usize> = HashMap::new();
    let title = |title: &'_ str, n: usize| if n == 1 { title.to_owned() } else { format!("{title} ({n})") };
    profile
        .documents
        .iter()
        .map(|document| {
            let n = n_seen.entry(document.title.as_str()).or_default();
            *n += 1;
            title(&document.title, *n)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::prompt::Document;
    use crate::telemetry::Store;

    const MONTH: i64 = 30 * 24 * 3600;

    fn profile(texts: [(&str, &str); 3]) -> Profile {
        let documents = texts.map(|(title, text)| Document { title: title.into(), text: text.into() });
        Profile { name: "house".into(), documents: documents.into(), ..Profile::default() }
    }

    fn shown(profiles: &[Profile]) -> Vec<(&str, &str)> {
        profiles[0].documents.iter().map(|document| (document.title.as_str(), document.text.as_str())).collect()
    }

    #[test]
    fn a_document_that_was_edited_stands_behind_the_others_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hob.sqlite");
        let start = |now, calendar: &str| {
            let mut profiles = [profile([("bins", calendar), ("house", "The key is under the mat."), ("bins", "b")])];
            let history = order(&path, &mut profiles, &Moment::utc(now));
            Store::open(&path, 1, Duration::from_secs(1)).unwrap().keep_documents(&history.rows).unwrap();
            let texts = shown(&profiles).into_iter().map(|(_, text)| text.to_owned()).collect::<Vec<_>>();
            (texts, history)
        };
        let (texts, history) = start(0, "Paper: Monday.");
        assert_eq!(texts, ["Paper: Monday.", "The key is under the mat.", "b"]);
        let names: Vec<&str> = history.rows.iter().map(|row| row.title.as_str()).collect();
        assert_eq!(names, ["bins", "house", "bins (2)"], "two of one title are two");

        let (texts, history) = start(MONTH, "Paper: Tuesday.");
        assert_eq!(texts, ["The key is under the mat.", "b", "Paper: Tuesday."]);
        assert_eq!(history.changes_per_month, [[Some(0.0), Some(0.0), Some(0.5)]]);
        assert_eq!((history.rows[0].n_changes, history.rows[0].last_change_ms), (1, Some(MONTH * 1000)));

        let (texts, history) = start(2 * MONTH, "Paper: Tuesday.");
        assert_eq!(texts, ["The key is under the mat.", "b", "Paper: Tuesday."]);
        assert_eq!((history.rows[0].n_changes, history.rows[0].place), (1, 2), "nothing changed, nothing is counted");
    }
}
