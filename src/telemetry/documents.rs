//! The history of profiles' documents: how often each has changed, by its hash.
//!
//! A *row* is what is known of one document of one profile. Read before the daemon writes anything, written when it stands.
//! No text is stored, and what follows from a history is decided elsewhere.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::schema::version;
use super::{Store, TelemetryError};

/// The version that brought the table.
const SINCE_VERSION: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentRow {
    pub profile: String,
    /// Titles that occur more than once are told apart by a number.
    pub title: String,
    /// BLAKE3 of its text, in hexadecimal.
    pub hash: String,
    /// In milliseconds since 1970, UTC.
    pub first_seen_ms: i64,
    pub n_changes: u32,
    /// When its last change was found; `None`: it never changed.
    pub last_change_ms: Option<i64>,
    /// Where it stood among its profile's documents, from 0.
    pub place: usize,
}

/// All rows in the database at `path`; none if there is no database, or one from before there were rows.
pub fn read_documents(path: &Path) -> Result<Vec<DocumentRow>, TelemetryError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    read(path).map_err(|source| TelemetryError::Database { path: path.to_owned(), source })
}

fn read(path: &Path) -> rusqlite::Result<Vec<DocumentRow>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    if version(&connection)? < SINCE_VERSION {
        return Ok(Vec::new());
    }
    let sql = "SELECT profile, title, hash, first_seen_ms, n_changes, last_change_ms, place FROM documents";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map((), |row| {
        Ok(DocumentRow {
            profile: row.get(0)?,
            title: row.get(1)?,
            hash: row.get(2)?,
            first_seen_ms: row.get(3)?,
            n_changes: row.get(4)?,
            last_change_ms: row.get(5)?,
            place: usize::try_from(row.get::<_, i64>(6)?).unwrap_or(0),
        })
    })?;
    rows.collect()
}

impl Store {
    /// Keeps `rows` in place of all that were kept: what no profile names any more is forgotten.
    pub fn keep_documents(&mut self, rows: &[DocumentRow]) -> rusqlite::Result<()> {
        let transaction = self.connection().transaction()?;
        transaction.execute("DELETE FROM documents", ())?;
        let sql = "INSERT INTO documents (profile, title, hash, first_seen_ms, n_changes, last_change_ms, place)
            VALUES (?, ?, ?, ?, ?, ?, ?)";
        for row in rows {
            let place = i64::try_from(row.place).unwrap_or(i64::MAX);
            transaction.prepare_cached(sql)?.execute((
                &row.profile,
                &row.title,
                &row.hash,
                row.first_seen_ms,
                row.n_changes,
                row.last_change_ms,
                place,
            ))?;
        }
        transaction.commit()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_kept_is_read_back_and_what_is_named_no_more_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hob.sqlite");
        assert_eq!(read_documents(&path).unwrap(), []);
        let row = |title: &str, place| DocumentRow {
            profile: "house".into(),
            title: title.into(),
            hash: "0f".into(),
            first_seen_ms: 5,
            n_changes: 2,
            last_change_ms: (place > 0).then_some(7),
            place,
        };
        let mut store = Store::open(&path, 1, Duration::from_secs(1)).unwrap();
        for rows in [vec![row("a", 0), row("b", 1)], vec![row("b", 0)], vec![]] {
            store.keep_documents(&rows).unwrap();
            assert_eq!(read_documents(&path).unwrap(), rows);
        }
    }

    #[test]
    fn a_database_from_before_has_no_history_and_one_that_is_none_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hob.sqlite");
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE requests (x)").unwrap();
        assert_eq!(read_documents(&path).unwrap(), []);
        std::fs::write(&path, "no database at all, but long enough to look like one").unwrap();
        assert!(read_documents(&path).is_err());
    }
}
