//! The tables, and how a database of an older version gets them.
//!
//! A *migration* leads from one `user_version` to the next. The list only grows: what was released is never changed.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::TelemetryError;

/// The version of today.
pub(super) const VERSION: usize = MIGRATIONS.len();

const MIGRATIONS: &[&str] = &[
    "
CREATE TABLE requests (
    -- Order of arrival.
    row INTEGER PRIMARY KEY,
    -- When the request had ended, in milliseconds since 1970, UTC.
    at_ms INTEGER NOT NULL,
    -- The answer's x-request-id.
    id TEXT NOT NULL,
    -- Who asked: the name of its key, or its address.
    client TEXT NOT NULL,
    -- The profile that answered; NULL: none, the model itself was asked.
    profile TEXT,
    -- The wire format: openai, ollama.
    dialect TEXT NOT NULL,
    -- The whole prompt, in tokens.
    n_prompt INTEGER NOT NULL,
    -- Prompt tokens that were in the cells already.
    n_reused_cells INTEGER NOT NULL,
    -- Prompt tokens that came back from RAM.
    n_reused_ram INTEGER NOT NULL,
    -- Prompt tokens that came back from disk.
    n_reused_disk INTEGER NOT NULL,
    -- Prompt tokens that were computed for this request.
    n_computed INTEGER NOT NULL,
    -- Tokens of the answer.
    n_generated INTEGER NOT NULL,
    -- From submit to admission, in milliseconds.
    queue_ms REAL NOT NULL,
    -- From the request read to its first token, in milliseconds; NULL: there was none.
    ttft_ms REAL,
    -- From admission to the end of the prompt, in milliseconds.
    prefill_ms REAL NOT NULL,
    -- From the first to the last generated token, in milliseconds.
    decode_ms REAL NOT NULL,
    -- Computed prompt tokens per second; NULL: no time was measured.
    prefill_tokens_per_s REAL GENERATED ALWAYS AS (1000.0 * n_computed / nullif(prefill_ms, 0)),
    -- Generated tokens per second, the first one not counted, as its time is prefill's; NULL: there was no second one.
    decode_tokens_per_s REAL GENERATED ALWAYS AS
        (CASE WHEN n_generated > 1 THEN 1000.0 * (n_generated - 1) / nullif(decode_ms, 0) END),
    -- How it ended: stop, length, cancelled, error, refused (never admitted).
    finish TEXT NOT NULL,
    -- Why the first computed token was computed.
    cause TEXT NOT NULL,
    -- Index in the prompt of that token.
    miss_at INTEGER NOT NULL
) STRICT;
CREATE INDEX requests_at_ms ON requests (at_ms);

CREATE TABLE evictions (
    -- Order of arrival.
    row INTEGER PRIMARY KEY,
    -- When cells were taken back, in milliseconds since 1970, UTC.
    at_ms INTEGER NOT NULL,
    -- How many.
    n_cells INTEGER NOT NULL,
    -- For want of what: cells, ids.
    cause TEXT NOT NULL
) STRICT;
CREATE INDEX evictions_at_ms ON evictions (at_ms);

CREATE TABLE cells (
    -- Order of arrival.
    row INTEGER PRIMARY KEY,
    -- When the sample was taken, in milliseconds since 1970, UTC.
    at_ms INTEGER NOT NULL,
    -- Cells that hold nothing.
    n_free INTEGER NOT NULL,
    -- Cells that hold something which nobody uses now.
    n_evictable INTEGER NOT NULL,
    -- Cells of pins.
    n_pinned INTEGER NOT NULL,
    -- Cells of running sequences.
    n_held INTEGER NOT NULL,
    -- Cells promised to running sequences and not filled yet; part of the free and evictable ones.
    n_reserved INTEGER NOT NULL,
    -- Requests admitted.
    n_running INTEGER NOT NULL,
    -- Requests in the queue.
    n_waiting INTEGER NOT NULL
) STRICT;
CREATE INDEX cells_at_ms ON cells (at_ms);
",
    "
CREATE TABLE documents (
    -- The profile that has it.
    profile TEXT NOT NULL,
    -- Its file's name without its ending.
    title TEXT NOT NULL,
    -- BLAKE3 of its text, which is not stored.
    hash TEXT NOT NULL,
    -- When a start first found it, in milliseconds since 1970, UTC.
    first_seen_ms INTEGER NOT NULL,
    -- Starts that found another text than the one before.
    n_changes INTEGER NOT NULL,
    -- When the last of them was, in milliseconds since 1970, UTC; NULL: there was none.
    last_change_ms INTEGER,
    -- Where it stands among its profile's documents, from 0.
    place INTEGER NOT NULL,
    PRIMARY KEY (profile, title)
) STRICT;
",
    "
-- How the prompt was laid out: off, observe, safe, optimise; NULL: written by a hob that did not say.
ALTER TABLE requests ADD COLUMN layout TEXT;
-- Prompt tokens that were reused and as sent would not have been.
ALTER TABLE requests ADD COLUMN n_saved INTEGER NOT NULL DEFAULT 0;
-- Prompt tokens that observe would have saved.
ALTER TABLE requests ADD COLUMN n_offered INTEGER NOT NULL DEFAULT 0;
-- Sections, what moved, where the gain begins: JSON of names, hashes and counts; NULL: written by a hob that kept none.
ALTER TABLE requests ADD COLUMN plan TEXT;
CREATE INDEX requests_id ON requests (id);
",
    "
-- Which tier something left: cells, ram, disk.
ALTER TABLE evictions ADD COLUMN tier TEXT NOT NULL DEFAULT 'cells';
-- What it took there, in bytes; 0 for cells.
ALTER TABLE evictions ADD COLUMN n_bytes INTEGER NOT NULL DEFAULT 0;

CREATE TABLE restores (
    -- Order of arrival.
    row INTEGER PRIMARY KEY,
    -- When it had ended, in milliseconds since 1970, UTC.
    at_ms INTEGER NOT NULL,
    -- What became of it: restored, failed, slower (it was computed instead).
    result TEXT NOT NULL,
    -- Tokens that are back in the cells; of slower ones those that would be.
    n_tokens INTEGER NOT NULL,
    -- What was copied, in bytes.
    n_bytes INTEGER NOT NULL,
    -- From admission to its end, in milliseconds.
    time_ms REAL NOT NULL
) STRICT;
CREATE INDEX restores_at_ms ON restores (at_ms);

CREATE TABLE missed (
    -- Order of arrival.
    row INTEGER PRIMARY KEY,
    -- When a request came back for what was held no more, in milliseconds since 1970, UTC.
    at_ms INTEGER NOT NULL,
    -- Tokens it had to compute for that.
    n_tokens INTEGER NOT NULL,
    -- With so much more RAM they would have been held still, in bytes.
    n_more_bytes INTEGER NOT NULL
) STRICT;
CREATE INDEX missed_at_ms ON missed (at_ms);
",
    "
-- Tokens that were guessed and computed before the model had said them.
ALTER TABLE requests ADD COLUMN n_drafted INTEGER NOT NULL DEFAULT 0;
-- Those of them that it said.
ALTER TABLE requests ADD COLUMN n_accepted INTEGER NOT NULL DEFAULT 0;
",
];

/// The tables that records go to, each with a column `at_ms`.
pub(super) const TABLES: &[&str] = &["requests", "evictions", "cells", "restores", "missed"];

/// Brings the database to `VERSION`; does nothing if it is there already. `path` is for messages.
pub(super) fn migrate(connection: &mut Connection, path: &Path) -> Result<(), TelemetryError> {
    apply(connection, path, MIGRATIONS)
}

/// The database's version.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<usize> {
    connection.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0)).map(|version| version as usize)
}

fn apply(connection: &mut Connection, path: &Path, migrations: &[&str]) -> Result<(), TelemetryError> {
    let database = |source| TelemetryError::Database { path: path.to_owned(), source };
    if version(connection).map_err(database)? == migrations.len() {
        return Ok(());
    }
    // Exclusive, and the version is read again within: another process may have been here meanwhile.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Exclusive).map_err(database)?;
    let found = version(&transaction).map_err(database)?;
    let Some(missing) = migrations.get(found..) else {
        return Err(TelemetryError::Newer { path: path.to_owned(), found, known: migrations.len() });
    };
    let has_tables = "SELECT EXISTS (SELECT 1 FROM sqlite_schema)";
    if found == 0 && transaction.query_row(has_tables, (), |row| row.get(0)).map_err(database)? {
        return Err(TelemetryError::Foreign { path: path.to_owned() });
    }
    for migration in missing {
        transaction.execute_batch(migration).map_err(database)?;
    }
    transaction.pragma_update(None, "user_version", migrations.len() as u32).map_err(database)?;
    transaction.commit().map_err(database)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_version(version: usize, migrations: &[&str]) -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        apply(&mut connection, Path::new("hob.sqlite"), &migrations[..version]).unwrap();
        connection
    }

    /// The names and texts of all tables and indices.
    fn shape(connection: &Connection) -> Vec<(String, Option<String>)> {
        let mut statement = connection.prepare("SELECT name, sql FROM sqlite_schema ORDER BY name").unwrap();
        let rows = statement.query_map((), |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    }

    #[test]
    fn every_older_version_becomes_the_same_database() {
        let longer = [MIGRATIONS, &["CREATE TABLE b (x INTEGER) STRICT", "ALTER TABLE b ADD COLUMN y TEXT"]].concat();
        let expected = shape(&at_version(longer.len(), &longer));
        for start in 0..=longer.len() {
            let mut connection = at_version(start, &longer);
            for _ in 0..2 {
                apply(&mut connection, Path::new("hob.sqlite"), &longer).unwrap();
                assert_eq!(version(&connection).unwrap(), longer.len());
                assert_eq!(shape(&connection), expected, "from version {start}");
            }
        }
    }

    #[test]
    fn rows_of_the_first_version_are_kept_and_can_be_explained() {
        let mut connection = at_version(1, MIGRATIONS);
        connection
            .execute_batch(
                "INSERT INTO requests (at_ms, id, client, dialect, n_prompt, n_reused_cells, n_reused_ram, n_reused_disk,
                    n_computed, n_generated, queue_ms, prefill_ms, decode_ms, finish, cause, miss_at)
                VALUES (7, 'old', 'c', 'openai', 100, 40, 0, 0, 60, 5, 0, 30, 0, 'stop', 'diverged', 40)",
            )
            .unwrap();
        migrate(&mut connection, Path::new("hob.sqlite")).unwrap();
        let rows = super::super::queries::rows_of(&connection, &super::super::Wanted::Id("old".to_owned())).unwrap();
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((row.n_prompt, row.n_reused, row.plan.as_ref()), (100, 40, None));
        let account = super::super::Account::of(row.clone(), 4_096, 0);
        assert_eq!((account.first_computed.unwrap().token, account.lost.tokens, account.plan), (40, 0, None));
    }

    #[test]
    fn a_failed_migration_leaves_the_database_as_it_was() {
        let broken = [MIGRATIONS, &["CREATE TABLE b (x INTEGER) STRICT", "nonsense"]].concat();
        let mut connection = at_version(VERSION, MIGRATIONS);
        let before = shape(&connection);
        apply(&mut connection, Path::new("hob.sqlite"), &broken).unwrap_err();
        assert_eq!(version(&connection).unwrap(), VERSION);
        assert_eq!(shape(&connection), before);
    }

    #[test]
    fn a_newer_database_is_refused() {
        let mut connection = at_version(VERSION, MIGRATIONS);
        connection.pragma_update(None, "user_version", VERSION as u32 + 1).unwrap();
        insta::assert_snapshot!(migrate(&mut connection, Path::new("/var/lib/hob/hob.sqlite")).unwrap_err(), @"telemetry database /var/lib/hob/hob.sqlite has version 6, this hob knows 5; use the hob that wrote it");
    }

    #[test]
    fn another_programs_database_is_left_alone() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE photos (x)").unwrap();
        insta::assert_snapshot!(migrate(&mut connection, Path::new("/srv/photos.db")).unwrap_err(), @"telemetry database /srv/photos.db belongs to another program; telemetry.path must name another file");
        assert_eq!(shape(&connection).len(), 1);
    }

    #[test]
    fn every_table_is_strict_and_every_column_is_explained() {
        let connection = at_version(VERSION, MIGRATIONS);
        for table in TABLES.iter().chain(&["documents"]) {
            let strict: bool = connection
                .query_row("SELECT strict FROM pragma_table_list WHERE name = ?", [table], |row| row.get(0))
                .unwrap();
            assert!(strict, "{table}");
        }
        let lines: Vec<&str> = MIGRATIONS.iter().flat_map(|text| text.lines()).map(str::trim).collect();
        for column in
            lines.windows(2).filter(|pair| ["INTEGER", "REAL", "TEXT"].iter().any(|kind| pair[1].contains(kind)))
        {
            assert!(column[0].starts_with("-- ") && column[0].ends_with('.'), "{column:?}");
        }
    }
}
