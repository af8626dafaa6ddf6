//! The writer: one thread that owns the connection.
//!
//! A *flush* is one transaction with all records that came in since the last one. Between flushes nothing is written, so
//! that disks can sleep; a killed process loses at most one flush. A database that cannot be written costs records, never
//! the daemon.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OpenFlags, named_params};
use tracing::warn;

use super::queries::rows_of;
use super::schema::{TABLES, migrate};
use super::{
    CellsRecord, Command, EvictionRecord, Inbox, MissedRecord, PlanRecord, Record, RequestRecord, RestoreRecord,
    TelemetryError,
};

/// Records of one flush. A busy hour must not fill the memory until its end: about 6 MiB with their plans.
const BATCH_MAX: usize = 4_096;

/// What the write-ahead log may keep on disk after a reader made it grow, in bytes: SQLite's own checkpoint comes at
/// about this size (1,000 pages), so that more would never be used.
const LOG_BYTES: i64 = 4 << 20;

/// Longest wait for another writer, a backup for example. Senders do not notice, their inbox is deeper than that.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// A full disk stays full for long; more often would only fill the journal, too.
const WARN_EVERY: Duration = Duration::from_secs(60 * 60);

pub struct Store {
    connection: Connection,
    keep_days: u32,
    flush_every: Duration,
    /// Each with the time at which it came in, in ms since 1970.
    pending: Vec<(i64, Record)>,
    warned: Option<Instant>,
}

impl Store {
    /// Opens the database at `path`, or makes it, readable for its user alone, and brings it to today's version.
    pub fn open(path: &Path, keep_days: u32, flush_every: Duration) -> Result<Store, TelemetryError> {
        if let Some(folder) = path.parent() {
            crate::private::create_folder(folder)
                .map_err(|source| TelemetryError::Folder { path: folder.to_owned(), source })?;
        }
        let database = |source| TelemetryError::Database { path: path.to_owned(), source };
        // SQLite gives its log the mode of the file, and would give the file the umask's. Should this fail, so does what
        // comes next, with the better message.
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let _ = options.open(path);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags).map_err(database)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(database)?;
        migrate(&mut connection, path)?;
        prepare(&connection).map_err(database)?;
        Ok(Store { connection, keep_days, flush_every, pending: Vec::new(), warned: None })
    }

    /// Stores what comes in until `TelemetryHandle::stop`, or until nobody is left who could send. To be called on a
    /// thread of its own.
    pub fn run(mut self, inbox: Inbox) {
        self.prune(now_ms(), Instant::now());
        let mut prune_at = Instant::now() + DAY;
        let mut flush_at = None;
        loop {
            let wake_at = flush_at.map_or(prune_at, |flush_at| prune_at.min(flush_at));
            match inbox.receiver.recv_timeout(wake_at.saturating_duration_since(Instant::now())) {
                Ok(Command::Record(record)) => {
                    self.pending.push((now_ms(), record));
                    flush_at.get_or_insert(Instant::now() + self.flush_every);
                }
                Ok(Command::Read { wanted, reply }) => {
                    self.flush(Instant::now(), &inbox.n_dropped);
                    flush_at = None;
                    // Who asked may be gone.
                    let _ = reply.send(rows_of(&self.connection, &wanted));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
            let now = Instant::now();
            if self.pending.len() >= BATCH_MAX || flush_at.is_some_and(|flush_at| flush_at <= now) {
                self.flush(now, &inbox.n_dropped);
                flush_at = None;
            }
            if prune_at <= now {
                self.prune(now_ms(), now);
                prune_at = now + DAY;
            }
        }
        self.flush(Instant::now(), &inbox.n_dropped);
    }

    /// Writes what is pending, or drops and counts it: kept, it would grow as long as the disk is full.
    fn flush(&mut self, now: Instant, n_dropped: &Arc<AtomicU64>) {
        if self.pending.is_empty() {
            return;
        }
        if let Err(error) = write(&mut self.connection, &self.pending) {
            let n_lost = self.pending.len();
            n_dropped.fetch_add(n_lost as u64, Ordering::Relaxed);
            if self.may_warn(now) {
                warn!(%error, n_lost, "telemetry cannot be written, records are dropped; next warning in an hour");
            }
        }
        self.pending.clear();
    }

    /// Removes what is older than `keep_days`.
    fn prune(&mut self, now_ms: i64, now: Instant) {
        let oldest_ms = now_ms - i64::from(self.keep_days) * DAY_MS;
        if let Err(error) = remove(&mut self.connection, oldest_ms)
            && self.may_warn(now)
        {
            warn!(%error, "old telemetry cannot be removed");
        }
    }

    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    fn may_warn(&mut self, now: Instant) -> bool {
        let may = self.warned.is_none_or(|warned| now.duration_since(warned) >= WARN_EVERY);
        if may {
            self.warned = Some(now);
        }
        may
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    // With a write-ahead log readers do not stop the writer, and NORMAL waits for the disk at checkpoints only: after a
    // power cut the last flushes may be missing, nothing is damaged.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
    connection.pragma_update(None, "synchronous", "NORMAL")
}

/// All or none of `records`.
fn write(connection: &mut Connection, records: &[(i64, Record)]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for (at_ms, record) in records {
        match record {
            Record::Request(request) => insert_request(&transaction, *at_ms, request)?,
            Record::Eviction(eviction) => insert_eviction(&transaction, *at_ms, eviction)?,
            Record::Restore(restore) => insert_restore(&transaction, *at_ms, restore)?,
            Record::Missed(missed) => insert_missed(&transaction, *at_ms, missed)?,
            Record::Cells(cells) => insert_cells(&transaction, *at_ms, cells)?,
        }
    }
    transaction.commit()
}

fn insert_request(connection: &Connection, at_ms: i64, request: &RequestRecord) -> rusqlite::Result<()> {
    let sql = "INSERT INTO requests (at_ms, id, client, profile, dialect, n_prompt, n_reused_cells, n_reused_ram,
            n_reused_disk, n_computed, n_generated, queue_ms, ttft_ms, prefill_ms, decode_ms, finish, cause, miss_at,
            layout, n_saved, n_offered, plan, n_drafted, n_accepted)
        VALUES (:at_ms, :id, :client, :profile, :dialect, :n_prompt, :n_reused_cells, :n_reused_ram,
            :n_reused_disk, :n_computed, :n_generated, :queue_ms, :ttft_ms, :prefill_ms, :decode_ms, :finish, :cause,
            :miss_at, :layout, :n_saved, :n_offered, :plan, :n_drafted, :n_accepted)";
    let plan = request.label.plan.as_deref();
    let n_reused = request.n_reused_cells + request.n_reused_ram + request.n_reused_disk;
    let n_gained = plan.map_or(0, |plan| plan.n_gained(n_reused));
    let is_observed = plan.is_some_and(PlanRecord::is_observed);
    let written = plan.map(serde_json::to_string).transpose();
    let written = written.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    connection.prepare_cached(sql)?.execute(named_params! {
        ":at_ms": at_ms,
        ":id": request.label.id,
        ":client": request.label.client,
        ":profile": request.label.profile,
        ":dialect": request.label.dialect,
        ":n_prompt": integer(request.n_prompt),
        ":n_reused_cells": integer(request.n_reused_cells),
        ":n_reused_ram": integer(request.n_reused_ram),
        ":n_reused_disk": integer(request.n_reused_disk),
        ":n_computed": integer(request.n_computed),
        ":n_generated": integer(request.n_generated),
        ":queue_ms": milliseconds(request.queue),
        ":ttft_ms": request.ttft.map(milliseconds),
        ":prefill_ms": milliseconds(request.prefill),
        ":decode_ms": milliseconds(request.decode),
        ":finish": request.finish,
        ":cause": plan.map_or(request.cause, |plan| plan.cause(request.cause, request.miss_at)),
        ":miss_at": integer(request.miss_at),
        ":layout": plan.map(|plan| &*plan.layout),
        ":n_saved": integer(if is_observed { 0 } else { n_gained }),
        ":n_offered": integer(if is_observed { n_gained } else { 0 }),
        ":plan": written,
        ":n_drafted": integer(request.n_drafted),
        ":n_accepted": integer(request.n_accepted),
    })?;
    Ok(())
}

fn insert_eviction(connection: &Connection, at_ms: i64, eviction: &EvictionRecord) -> rusqlite::Result<()> {
    let sql = "INSERT INTO evictions (at_ms, tier, cause, n_cells, n_bytes) VALUES (?, ?, ?, ?, ?)";
    let (n_tokens, n_bytes) = (integer(eviction.n_tokens), bytes(eviction.n_bytes));
    connection.prepare_cached(sql)?.execute((at_ms, eviction.tier, eviction.cause, n_tokens, n_bytes))?;
    Ok(())
}

fn insert_restore(connection: &Connection, at_ms: i64, restore: &RestoreRecord) -> rusqlite::Result<()> {
    let sql = "INSERT INTO restores (at_ms, result, n_tokens, n_bytes, time_ms) VALUES (?, ?, ?, ?, ?)";
    let (n_tokens, n_bytes) = (integer(restore.n_tokens), bytes(restore.n_bytes));
    connection.prepare_cached(sql)?.execute((at_ms, restore.result, n_tokens, n_bytes, milliseconds(restore.time)))?;
    Ok(())
}

fn insert_missed(connection: &Connection, at_ms: i64, missed: &MissedRecord) -> rusqlite::Result<()> {
    let sql = "INSERT INTO missed (at_ms, n_tokens, n_more_bytes) VALUES (?, ?, ?)";
    connection.prepare_cached(sql)?.execute((at_ms, integer(missed.n_tokens), bytes(missed.n_more_bytes)))?;
    Ok(())
}

fn insert_cells(connection: &Connection, at_ms: i64, cells: &CellsRecord) -> rusqlite::Result<()> {
    let sql = "INSERT INTO cells (at_ms, n_free, n_evictable, n_pinned, n_held, n_reserved, n_running, n_waiting)
        VALUES (:at_ms, :n_free, :n_evictable, :n_pinned, :n_held, :n_reserved, :n_running, :n_waiting)";
    connection.prepare_cached(sql)?.execute(named_params! {
        ":at_ms": at_ms,
        ":n_free": integer(cells.free),
        ":n_evictable": integer(cells.evictable),
        ":n_pinned": integer(cells.pinned),
        ":n_held": integer(cells.held),
        ":n_reserved": integer(cells.reserved),
        ":n_running": integer(cells.n_running),
        ":n_waiting": integer(cells.n_waiting),
    })?;
    Ok(())
}

fn remove(connection: &mut Connection, oldest_ms: i64) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for table in TABLES {
        transaction.prepare_cached(&format!("DELETE FROM {table} WHERE at_ms < ?"))?.execute([oldest_ms])?;
    }
    transaction.commit()
}

fn integer(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn bytes(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// The wall clock; 0 on a machine that believes to be before 1970.
fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_millis() as i64)
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use rusqlite::types::Value;
    use tempfile::TempDir;

    use super::*;
    use crate::telemetry::plan::tests::plan;
    use crate::telemetry::{GainRecord, INBOX_MAX, Label, Reader, RequestRow, Wanted, inbox};

    pub(in crate::telemetry) fn request() -> RequestRecord {
        RequestRecord {
            label: Label {
                id: "r1".to_owned(),
                client: "127.0.0.1".to_owned(),
                profile: Some("house".to_owned()),
                dialect: "openai",
                plan: None,
            },
            n_prompt: 1_000,
            n_reused_cells: 900,
            n_reused_ram: 0,
            n_reused_disk: 0,
            n_computed: 100,
            n_generated: 11,
            n_drafted: 7,
            n_accepted: 5,
            queue: Duration::from_millis(5),
            ttft: Some(Duration::from_millis(520)),
            prefill: Duration::from_millis(500),
            decode: Duration::from_millis(2_000),
            finish: "stop",
            cause: "appended",
            miss_at: 900,
        }
    }

    pub(in crate::telemetry) fn cells(held: usize) -> CellsRecord {
        CellsRecord { free: 100 - held, evictable: 20, pinned: 30, held, reserved: 7, n_running: 2, n_waiting: 1 }
    }

    pub(in crate::telemetry) fn eviction(cause: &'static str, n_tokens: usize) -> EvictionRecord {
        EvictionRecord { tier: "cells", cause, n_tokens, n_bytes: 0 }
    }

    fn restore() -> RestoreRecord {
        RestoreRecord { result: "restored", n_tokens: 300, n_bytes: 7_000, time: Duration::from_millis(12) }
    }

    pub(in crate::telemetry) fn store() -> (TempDir, PathBuf, Store) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/hob.sqlite");
        let store = Store::open(&path, 90, Duration::from_secs(60)).unwrap();
        (folder, path, store)
    }

    impl Store {
        /// Flushes `records` as if they had come in at `at_ms`; the number dropped.
        pub(in crate::telemetry) fn put(&mut self, at_ms: i64, records: impl IntoIterator<Item = Record>) -> u64 {
            let n_dropped = Arc::default();
            self.pending.extend(records.into_iter().map(|record| (at_ms, record)));
            self.flush(Instant::now(), &n_dropped);
            n_dropped.load(Ordering::Relaxed)
        }
    }

    fn count(path: &Path, table: &str) -> i64 {
        let connection = Connection::open(path).unwrap();
        connection.query_row(&format!("SELECT count(*) FROM {table}"), (), |row| row.get(0)).unwrap()
    }

    #[test]
    fn what_is_recorded_before_the_stop_is_stored() {
        let (_folder, path, store) = store();
        let (handle, inbox) = inbox();
        let writer = std::thread::spawn(move || store.run(inbox));
        handle.record(Record::Request(request()));
        handle.record(Record::Eviction(eviction("cells", 64)));
        handle.record(Record::Cells(cells(40)));
        handle.record(Record::Restore(restore()));
        handle.record(Record::Missed(MissedRecord { n_tokens: 3, n_more_bytes: 99 }));
        handle.stop();
        writer.join().unwrap();
        assert_eq!(TABLES.iter().map(|table| count(&path, table)).collect::<Vec<_>>(), [1, 1, 1, 1, 1]);
        assert_eq!(handle.n_dropped(), 0);
        handle.record(Record::Cells(cells(40)));
        assert_eq!(handle.n_dropped(), 1, "nobody stores it any more");
    }

    #[test]
    fn whoever_asks_for_rows_gets_what_was_recorded_before() {
        let (_folder, path, store) = store();
        let (handle, inbox) = inbox();
        let writer = std::thread::spawn(move || store.run(inbox));
        let planned = |id: &str, layout: &'static str, to| {
            let plan = PlanRecord { layout: layout.into(), gain: Some(GainRecord { from: 100, to }), ..plan() };
            let label = Label { id: id.to_owned(), plan: Some(Arc::new(plan)), ..request().label };
            handle.record(Record::Request(RequestRecord { label, ..request() }));
        };
        planned("a", "safe", None);
        planned("b", "observe", Some(940));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let rows = |wanted| runtime.block_on(handle.rows(wanted)).unwrap();
        let ids = |rows: Vec<RequestRow>| rows.into_iter().map(|row| row.id).collect::<Vec<_>>();
        assert_eq!(ids(rows(Wanted::Newest(9))), ["b", "a"]);
        assert_eq!(ids(rows(Wanted::Newest(1))), ["b"]);
        let [row] = &rows(Wanted::Id("a".to_owned()))[..] else { panic!("one row has this id") };
        assert_eq!(row.plan.as_ref().unwrap().sections, plan().sections);
        assert_eq!(ids(rows(Wanted::Id("c".to_owned()))), [] as [String; 0]);
        let layout = Reader::open(&path).unwrap().stats(0).unwrap().layout;
        assert_eq!((layout.saved, layout.offered), (800, 40));
        handle.stop();
        writer.join().unwrap();
        let error = runtime.block_on(handle.rows(Wanted::Newest(1))).unwrap_err();
        assert_eq!(error.to_string(), "telemetry is off: the log says why");
    }

    #[test]
    fn the_writer_ends_when_nobody_can_send() {
        let (_folder, path, store) = store();
        let (handle, inbox) = inbox();
        handle.record(Record::Request(request()));
        drop(handle);
        store.run(inbox);
        assert_eq!(count(&path, "requests"), 1);
    }

    #[test]
    fn a_full_inbox_drops_and_counts() {
        let (handle, _inbox) = inbox();
        for _ in 0..INBOX_MAX + 5 {
            handle.record(Record::Cells(cells(1)));
        }
        assert_eq!(handle.n_dropped(), 5);
    }

    #[test]
    fn each_column_holds_what_its_comment_says() {
        let (_folder, _path, mut store) = store();
        store.put(1_000, [Record::Request(request()), Record::Cells(cells(40))]);
        store.put(
            2_000,
            [Record::Request(RequestRecord {
                label: Label { profile: None, ..request().label },
                n_generated: 1,
                n_drafted: 0,
                n_accepted: 0,
                ttft: None,
                prefill: Duration::ZERO,
                ..request()
            })],
        );
        let mut rows = String::new();
        for table in TABLES {
            let mut statement = store.connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
            let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
            let mut found = statement.query(()).unwrap();
            while let Some(row) = found.next().unwrap() {
                let value = |index| match row.get::<_, Value>(index).unwrap() {
                    Value::Null => "NULL".to_owned(),
                    Value::Integer(number) => number.to_string(),
                    Value::Real(number) => format!("{number:?}"),
                    Value::Text(text) => text,
                    Value::Blob(_) => unreachable!("there are no blobs"),
                };
                let values: Vec<String> =
                    names.iter().enumerate().map(|(index, name)| format!("{name}={}", value(index))).collect();
                rows.push_str(&format!("{table}: {}\n", values.join(" ")));
            }
        }
        insta::assert_snapshot!(rows, @"
        requests: row=1 at_ms=1000 id=r1 client=127.0.0.1 profile=house dialect=openai n_prompt=1000 n_reused_cells=900 n_reused_ram=0 n_reused_disk=0 n_computed=100 n_generated=11 queue_ms=5.0 ttft_ms=520.0 prefill_ms=500.0 decode_ms=2000.0 prefill_tokens_per_s=200.0 decode_tokens_per_s=5.0 finish=stop cause=appended miss_at=900 layout=NULL n_saved=0 n_offered=0 plan=NULL n_drafted=7 n_accepted=5
        requests: row=2 at_ms=2000 id=r1 client=127.0.0.1 profile=NULL dialect=openai n_prompt=1000 n_reused_cells=900 n_reused_ram=0 n_reused_disk=0 n_computed=100 n_generated=1 queue_ms=5.0 ttft_ms=NULL prefill_ms=0.0 decode_ms=2000.0 prefill_tokens_per_s=NULL decode_tokens_per_s=NULL finish=stop cause=appended miss_at=900 layout=NULL n_saved=0 n_offered=0 plan=NULL n_drafted=0 n_accepted=0
        cells: row=1 at_ms=1000 n_free=60 n_evictable=20 n_pinned=30 n_held=40 n_reserved=7 n_running=2 n_waiting=1
        ");
    }

    #[test]
    fn a_killed_process_loses_at_most_the_last_flush() {
        let (_folder, path, mut store) = store();
        store.put(1, [Record::Request(request())]);
        store.pending.push((2, Record::Request(request())));
        // What a kill leaves behind: no flush, no checkpoint, no closing.
        std::mem::forget(store);
        assert_eq!(count(&path, "requests"), 1);
    }

    #[test]
    fn a_full_disk_costs_records_and_nothing_else() {
        let (_folder, path, mut store) = store();
        let n_pages: i64 = store.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        let limit = |store: &Store, n_pages: i64| {
            store.connection.query_row(&format!("PRAGMA max_page_count = {n_pages}"), (), |_| Ok(())).unwrap();
        };
        let many = || (0..500).map(|_| Record::Request(request()));
        limit(&store, n_pages);
        assert_eq!(store.put(1, many()), 500);
        assert!(store.pending.is_empty());
        limit(&store, 1_000);
        assert_eq!(store.put(1, many()), 0);
        assert_eq!(count(&path, "requests"), 500);
    }

    #[test]
    fn a_locked_database_costs_records_and_nothing_else() {
        let (_folder, path, mut store) = store();
        store.connection.busy_timeout(Duration::ZERO).unwrap();
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert_eq!(store.put(1, [Record::Request(request()), Record::Cells(cells(1))]), 2);
        store.prune(i64::MAX, Instant::now());
        other.execute_batch("COMMIT").unwrap();
        assert_eq!(store.put(1, [Record::Request(request())]), 0);
        assert_eq!(count(&path, "requests"), 1);
    }

    #[test]
    fn there_is_one_warning_an_hour() {
        let (_folder, _path, mut store) = store();
        let start = Instant::now();
        let warned = [0, 1, 3_599, 3_600, 3_601, 7_200].map(|s| store.may_warn(start + Duration::from_secs(s)));
        assert_eq!(warned, [true, false, false, true, false, true]);
    }

    #[test]
    fn records_are_removed_after_their_days() {
        let (_folder, path, mut store) = store();
        let all = || {
            [
                Record::Request(request()),
                Record::Eviction(eviction("ids", 1)),
                Record::Cells(cells(1)),
                Record::Restore(restore()),
                Record::Missed(MissedRecord { n_tokens: 3, n_more_bytes: 99 }),
            ]
        };
        let now_ms = 1_000 * DAY_MS;
        for at_ms in [now_ms - 90 * DAY_MS - 1, now_ms - 90 * DAY_MS, now_ms] {
            store.put(at_ms, all());
        }
        store.prune(now_ms, Instant::now());
        assert_eq!(TABLES.iter().map(|table| count(&path, table)).collect::<Vec<_>>(), [2, 2, 2, 2, 2]);
    }

    #[test]
    fn the_log_shrinks_again_after_a_reader_held_it() {
        let (_folder, path, mut store) = store();
        let log = path.with_extension("sqlite-wal");
        let reader = Connection::open(&path).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM requests").unwrap();
        while log.metadata().unwrap().len() < 3 * LOG_BYTES as u64 {
            assert_eq!(store.put(1, (0..100).map(|_| Record::Request(request()))), 0);
        }
        reader.execute_batch("COMMIT").unwrap();
        // The first write finds the log full and checkpoints, the second begins it anew.
        for _ in 0..2 {
            store.put(1, [Record::Request(request())]);
        }
        assert!(log.metadata().unwrap().len() <= LOG_BYTES as u64);
    }

    #[cfg(unix)]
    #[test]
    fn folder_and_files_are_their_users_alone() {
        use std::os::unix::fs::PermissionsExt;
        let (_folder, path, mut store) = store();
        store.put(1, [Record::Request(request())]);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(&path.with_extension("sqlite-wal")), 0o600);
    }

    #[test]
    fn a_file_that_is_no_database_is_refused_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        std::fs::write(&path, "not a database, and longer than its header of a hundred bytes: ".repeat(10)).unwrap();
        let before = std::fs::read(&path).unwrap();
        assert!(matches!(Store::open(&path, 1, DAY), Err(TelemetryError::Database { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}
