//! What the records say: the numbers behind `hob stats`.
//!
//! A *reader* has a connection of its own that can only read, so it works while the daemon writes, and without it. Rates
//! are made of sums over tokens, never of averages of rates, so that long prompts count as what they are.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension, Params, Row};
use serde::Serialize;

use super::schema::{VERSION, version};
use super::{RequestRow, TelemetryError, Wanted};

/// A request is called warm if at least this share of its prompt was reused.
const WARM: f64 = 0.5;

/// Computed tokens of a request whose prefill speed counts for the median: fewer are slowed down by what every batch
/// costs, and would make the saved seconds look many.
const MEASURED_TOKENS_MIN: i64 = 64;

/// What happened since a time. Requests that were refused count in `requests` only.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// Since when, in milliseconds since 1970.
    pub since_ms: i64,
    pub requests: Vec<FinishCount>,
    pub tokens: Tokens,
    pub ttft: Ttft,
    pub speed: Speed,
    /// Reused tokens ÷ `speed.prefill_median`: what computing them would have taken, in seconds. `None`: no speed yet.
    pub seconds_saved: Option<f64>,
    pub layout: LayoutStats,
    pub causes: Vec<CauseCount>,
    pub evictions: Vec<EvictionCount>,
    pub restores: Vec<RestoreCount>,
    /// What would not have been computed with more RAM; rising.
    pub more_ram: Vec<MoreRam>,
    /// The sample with the most cells in use.
    pub busiest: Option<CellsSample>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FinishCount {
    pub finish: String,
    pub n_requests: u64,
}

/// Sums over all requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tokens {
    pub prompt: u64,
    /// From any tier.
    pub reused: u64,
    pub computed: u64,
    pub generated: u64,
    /// Guessed and computed before the model had said them.
    pub drafted: u64,
    /// Of those, the ones that it said.
    pub accepted: u64,
    /// `reused` ÷ `prompt`; `None`: there was no prompt.
    pub hit_rate: Option<f64>,
}

/// Time to first token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ttft {
    pub all: Percentiles,
    /// Of requests that reused at least half of their prompt.
    pub warm: Percentiles,
    /// Of the others.
    pub cold: Percentiles,
}

/// In milliseconds; `None`: nothing was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    pub n_requests: u64,
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
}

/// In tokens per second; `None`: nothing was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Speed {
    /// All computed tokens ÷ the time of all prefills.
    pub prefill: Option<f64>,
    /// Of the requests that computed enough to tell.
    pub prefill_median: Option<f64>,
    /// All generated tokens but each first ÷ the time of all decodes.
    pub decode: Option<f64>,
}

/// What moving what changes behind what stays was worth.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LayoutStats {
    /// Of the reused tokens, those that as sent would have been computed.
    pub saved: u64,
    /// Their part of `Stats::seconds_saved`.
    pub seconds_saved: Option<f64>,
    /// Tokens that `observe` would have saved.
    pub offered: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CauseCount {
    pub cause: String,
    pub n_requests: u64,
    /// Tokens that those requests computed.
    pub n_computed: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EvictionCount {
    pub tier: String,
    pub cause: String,
    pub n_evictions: u64,
    /// Tokens whose K/V left the tier.
    pub n_tokens: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RestoreCount {
    pub result: String,
    pub n_restores: u64,
    pub n_tokens: u64,
    /// All of them together, in milliseconds.
    pub time_ms: f64,
}

/// With `n_bytes` more, `n_tokens` would have been there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MoreRam {
    pub n_bytes: u64,
    pub n_tokens: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CellsSample {
    pub at_ms: i64,
    pub free: u64,
    pub evictable: u64,
    pub pinned: u64,
    pub held: u64,
    pub reserved: u64,
    pub n_running: u64,
    pub n_waiting: u64,
}

pub struct Reader {
    connection: Connection,
    path: std::path::PathBuf,
}

impl Reader {
    /// Opens the database at `path`, which must be there and of today's version.
    pub fn open(path: &Path) -> Result<Reader, TelemetryError> {
        let path = path.to_owned();
        if !path.exists() {
            return Err(TelemetryError::Missing { path });
        }
        let open = || {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(&path, flags)?;
            // For the moment in which a starting daemon changes the tables.
            connection.busy_timeout(std::time::Duration::from_secs(2))?;
            let found = version(&connection)?;
            Ok((connection, found))
        };
        match open() {
            Err(source) => Err(TelemetryError::Database { path, source }),
            Ok((_, found)) if found < VERSION => Err(TelemetryError::Older { path, found, known: VERSION }),
            Ok((_, found)) if found > VERSION => Err(TelemetryError::Newer { path, found, known: VERSION }),
            Ok((connection, _)) => Ok(Reader { connection, path }),
        }
    }

    /// What happened at `since_ms` or later, all of it as of one moment.
    pub fn stats(&mut self, since_ms: i64) -> Result<Stats, TelemetryError> {
        let database = |source| TelemetryError::Database { path: self.path.clone(), source };
        let snapshot = self.connection.transaction().map_err(database)?;
        stats(&snapshot, since_ms).map_err(database)
    }

    /// The rows of requests that are `wanted`, newest first.
    pub fn rows(&self, wanted: &Wanted) -> Result<Vec<RequestRow>, TelemetryError> {
        rows_of(&self.connection, wanted).map_err(|source| TelemetryError::Database { path: self.path.clone(), source })
    }
}

/// See `Reader::rows`.
pub(super) fn rows_of(connection: &Connection, wanted: &Wanted) -> rusqlite::Result<Vec<RequestRow>> {
    let columns =
        "id, at_ms, client, profile, dialect, finish, n_prompt, n_reused_cells + n_reused_ram + n_reused_disk,
        n_computed, n_generated, queue_ms, ttft_ms, prefill_ms, decode_ms, cause, miss_at, plan";
    let read = |row: &Row<'_>| {
        let number = |index| count(row, index).map(|count| count as usize);
        let plan: Option<String> = row.get(16)?;
        Ok(RequestRow {
            id: row.get(0)?,
            at_ms: row.get(1)?,
            client: row.get(2)?,
            profile: row.get(3)?,
            dialect: row.get(4)?,
            finish: row.get(5)?,
            n_prompt: number(6)?,
            n_reused: number(7)?,
            n_computed: number(8)?,
            n_generated: number(9)?,
            queue_ms: row.get(10)?,
            ttft_ms: row.get(11)?,
            prefill_ms: row.get(12)?,
            decode_ms: row.get(13)?,
            cause: row.get(14)?,
            miss_at: number(15)?,
            // What a later hob wrote may not be read by this one; the rest of the row is as true without it.
            plan: plan.and_then(|plan| serde_json::from_str(&plan).ok()),
        })
    };
    match wanted {
        Wanted::Newest(n_max) => {
            let n_max = i64::try_from(*n_max).unwrap_or(i64::MAX);
            rows(connection, &format!("SELECT {columns} FROM requests ORDER BY row DESC LIMIT ?"), [n_max], read)
        }
        Wanted::Id(id) => {
            rows(connection, &format!("SELECT {columns} FROM requests WHERE id = ? ORDER BY row DESC"), [id], read)
        }
    }
}

fn stats(connection: &Connection, since_ms: i64) -> rusqlite::Result<Stats> {
    let tokens = tokens(connection, since_ms)?;
    let speed = speed(connection, since_ms)?;
    Ok(Stats {
        since_ms,
        requests: rows(
            connection,
            "SELECT finish, count(*) FROM requests WHERE at_ms >= ? GROUP BY finish ORDER BY count(*) DESC, finish",
            [since_ms],
            |row| Ok(FinishCount { finish: row.get(0)?, n_requests: count(row, 1)? }),
        )?,
        ttft: ttft(connection, since_ms)?,
        seconds_saved: speed.prefill_median.map(|speed| tokens.reused as f64 / speed),
        layout: layout(connection, since_ms, speed.prefill_median)?,
        tokens,
        speed,
        causes: rows(
            connection,
            "SELECT cause, count(*), sum(n_computed) FROM requests WHERE at_ms >= ? AND finish <> 'refused'
            GROUP BY cause ORDER BY sum(n_computed) DESC, cause",
            [since_ms],
            |row| Ok(CauseCount { cause: row.get(0)?, n_requests: count(row, 1)?, n_computed: count(row, 2)? }),
        )?,
        evictions: rows(
            connection,
            "SELECT tier, cause, count(*), sum(n_cells) FROM evictions WHERE at_ms >= ?
            GROUP BY tier, cause ORDER BY tier = 'disk', tier, sum(n_cells) DESC, cause",
            [since_ms],
            |row| {
                let (n_evictions, n_tokens) = (count(row, 2)?, count(row, 3)?);
                Ok(EvictionCount { tier: row.get(0)?, cause: row.get(1)?, n_evictions, n_tokens })
            },
        )?,
        restores: rows(
            connection,
            "SELECT result, count(*), sum(n_tokens), sum(time_ms) FROM restores WHERE at_ms >= ?
            GROUP BY result ORDER BY sum(n_tokens) DESC, result",
            [since_ms],
            |row| {
                let (n_restores, n_tokens) = (count(row, 1)?, count(row, 2)?);
                Ok(RestoreCount { result: row.get(0)?, n_restores, n_tokens, time_ms: row.get(3)? })
            },
        )?,
        more_ram: more_ram(connection, since_ms)?,
        busiest: busiest(connection, since_ms)?,
    })
}

fn tokens(connection: &Connection, since_ms: i64) -> rusqlite::Result<Tokens> {
    let sql = "SELECT total(n_prompt), total(n_reused_cells + n_reused_ram + n_reused_disk), total(n_computed),
            total(n_generated), total(n_drafted), total(n_accepted)
        FROM requests WHERE at_ms >= ? AND finish <> 'refused'";
    let [prompt, reused, computed, generated, drafted, accepted] = connection.query_row(sql, [since_ms], |row| {
        let sum = |index| row.get::<_, f64>(index).map(|sum| sum as u64);
        Ok([sum(0)?, sum(1)?, sum(2)?, sum(3)?, sum(4)?, sum(5)?])
    })?;
    let hit_rate = (prompt > 0).then(|| reused as f64 / prompt as f64);
    Ok(Tokens { prompt, reused, computed, generated, drafted, accepted, hit_rate })
}

fn layout(connection: &Connection, since_ms: i64, median: Option<f64>) -> rusqlite::Result<LayoutStats> {
    let sql = "SELECT total(n_saved), total(n_offered) FROM requests WHERE at_ms >= ? AND finish <> 'refused'";
    let sums = |row: &Row<'_>| Ok((row.get::<_, f64>(0)?, row.get::<_, f64>(1)?));
    let (saved, offered) = connection.query_row(sql, [since_ms], sums)?;
    let seconds_saved = median.filter(|_| saved > 0.0).map(|speed| saved / speed);
    Ok(LayoutStats { saved: saved as u64, seconds_saved, offered: offered as u64 })
}

fn ttft(connection: &Connection, since_ms: i64) -> rusqlite::Result<Ttft> {
    let sql = "SELECT ttft_ms, (n_reused_cells + n_reused_ram + n_reused_disk) >= ? * n_prompt FROM requests
        WHERE at_ms >= ? AND finish <> 'refused' AND ttft_ms IS NOT NULL ORDER BY ttft_ms";
    let all: Vec<(f64, bool)> = rows(connection, sql, (WARM, since_ms), |row| Ok((row.get(0)?, row.get(1)?)))?;
    let of = |is_wanted: &dyn Fn(bool) -> bool| {
        let sorted: Vec<f64> = all.iter().filter(|(_, is_warm)| is_wanted(*is_warm)).map(|(ms, _)| *ms).collect();
        Percentiles {
            n_requests: sorted.len() as u64,
            p50_ms: percentile(&sorted, 50),
            p95_ms: percentile(&sorted, 95),
        }
    };
    Ok(Ttft { all: of(&|_| true), warm: of(&|is_warm| is_warm), cold: of(&|is_warm| !is_warm) })
}

fn speed(connection: &Connection, since_ms: i64) -> rusqlite::Result<Speed> {
    // A sum over nothing is NULL, and so is what is divided by it.
    let prefill = "SELECT 1000.0 * sum(n_computed) / sum(prefill_ms) FROM requests
        WHERE at_ms >= ? AND finish <> 'refused' AND prefill_tokens_per_s IS NOT NULL";
    let decode = "SELECT 1000.0 * sum(n_generated - 1) / sum(decode_ms) FROM requests
        WHERE at_ms >= ? AND finish <> 'refused' AND decode_tokens_per_s IS NOT NULL";
    let measured = "SELECT prefill_tokens_per_s FROM requests
        WHERE at_ms >= ? AND finish <> 'refused' AND n_computed >= ? AND prefill_tokens_per_s IS NOT NULL
        ORDER BY prefill_tokens_per_s";
    let measured: Vec<f64> = rows(connection, measured, (since_ms, MEASURED_TOKENS_MIN), |row| row.get(0))?;
    Ok(Speed {
        prefill: connection.query_row(prefill, [since_ms], |row| row.get(0))?,
        prefill_median: percentile(&measured, 50),
        decode: connection.query_row(decode, [since_ms], |row| row.get(0))?,
    })
}

/// The curve of misses against RAM, at sizes that people buy; a size that saves no more than the one before is left out.
fn more_ram(connection: &Connection, since_ms: i64) -> rusqlite::Result<Vec<MoreRam>> {
    let sql = "SELECT total(n_tokens) FROM missed WHERE at_ms >= ? AND n_more_bytes <= ?";
    let mut points: Vec<MoreRam> = Vec::new();
    for n_bytes in (0..7).map(|power| (64_u64 << 20) << (2 * power)) {
        let n_tokens = connection.query_row(sql, (since_ms, n_bytes as i64), |row| row.get::<_, f64>(0))? as u64;
        if n_tokens > points.last().map_or(0, |last| last.n_tokens) {
            points.push(MoreRam { n_bytes, n_tokens });
        }
    }
    Ok(points)
}

fn busiest(connection: &Connection, since_ms: i64) -> rusqlite::Result<Option<CellsSample>> {
    let sql = "SELECT at_ms, n_free, n_evictable, n_pinned, n_held, n_reserved, n_running, n_waiting FROM cells
        WHERE at_ms >= ? ORDER BY n_pinned + n_held + n_reserved DESC, n_running DESC, row LIMIT 1";
    let sample = |row: &Row<'_>| {
        Ok(CellsSample {
            at_ms: row.get(0)?,
            free: count(row, 1)?,
            evictable: count(row, 2)?,
            pinned: count(row, 3)?,
            held: count(row, 4)?,
            reserved: count(row, 5)?,
            n_running: count(row, 6)?,
            n_waiting: count(row, 7)?,
        })
    };
    connection.query_row(sql, [since_ms], sample).optional()
}

/// The smallest of `sorted` that at least `percent` of them do not exceed (nearest rank): always a measured value.
fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

fn rows<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare(sql)?.query_map(params, read)?.collect()
}

/// Counts are never negative: this hob wrote them.
fn count(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(index).map(|count| count.max(0) as u64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::store::tests::{cells, eviction, request, store};
    use super::super::{MissedRecord, Record, RequestRecord, RestoreRecord};
    use super::*;

    fn answered(n_reused: usize, n_prompt: usize, ttft_ms: u64, tokens_per_s: f64) -> Record {
        let n_computed = n_prompt - n_reused;
        Record::Request(RequestRecord {
            n_prompt,
            n_reused_cells: n_reused,
            n_computed,
            ttft: Some(Duration::from_millis(ttft_ms)),
            prefill: Duration::from_secs_f64(n_computed as f64 / tokens_per_s),
            cause: if n_reused == 0 { "cold" } else { "diverged" },
            ..request()
        })
    }

    #[test]
    fn totals_are_those_of_a_known_day() {
        let (_folder, path, mut store) = store();
        store.put(999, [answered(0, 50_000, 90_000, 1.0), Record::Cells(cells(90))]);
        store.put(
            1_000,
            [
                answered(0, 1_000, 5_000, 200.0),
                answered(900, 1_000, 600, 250.0),
                answered(960, 1_000, 400, 10.0),
                answered(499, 1_000, 3_000, 300.0),
                answered(500, 1_000, 2_500, 400.0),
                Record::Request(RequestRecord { finish: "refused", cause: "cold", ttft: None, ..request() }),
                Record::Request(RequestRecord {
                    finish: "cancelled",
                    cause: "cold",
                    n_reused_cells: 0,
                    n_computed: 0,
                    n_generated: 0,
                    n_drafted: 0,
                    n_accepted: 0,
                    ttft: None,
                    prefill: Duration::ZERO,
                    ..request()
                }),
                Record::Eviction(eviction("cells", 64)),
                Record::Eviction(eviction("ids", 200)),
                Record::Eviction(eviction("cells", 32)),
                Record::Restore(RestoreRecord {
                    result: "restored",
                    n_tokens: 300,
                    n_bytes: 7_000,
                    time: Duration::from_millis(12),
                }),
                Record::Missed(MissedRecord { n_tokens: 30, n_more_bytes: 1 << 20 }),
                Record::Missed(MissedRecord { n_tokens: 12, n_more_bytes: 1 << 30 }),
                Record::Cells(cells(40)),
                Record::Cells(cells(41)),
                Record::Cells(cells(3)),
            ],
        );
        let stats = Reader::open(&path).unwrap().stats(1_000).unwrap();
        insta::assert_debug_snapshot!(stats, @r#"
        Stats {
            since_ms: 1000,
            requests: [
                FinishCount {
                    finish: "stop",
                    n_requests: 5,
                },
                FinishCount {
                    finish: "cancelled",
                    n_requests: 1,
                },
                FinishCount {
                    finish: "refused",
                    n_requests: 1,
                },
            ],
            tokens: Tokens {
                prompt: 6000,
                reused: 2859,
                computed: 2141,
                generated: 55,
                drafted: 35,
                accepted: 25,
                hit_rate: Some(
                    0.4765,
                ),
            },
            ttft: Ttft {
                all: Percentiles {
                    n_requests: 5,
                    p50_ms: Some(
                        2500.0,
                    ),
                    p95_ms: Some(
                        5000.0,
                    ),
                },
                warm: Percentiles {
                    n_requests: 3,
                    p50_ms: Some(
                        600.0,
                    ),
                    p95_ms: Some(
                        2500.0,
                    ),
                },
                cold: Percentiles {
                    n_requests: 2,
                    p50_ms: Some(
                        3000.0,
                    ),
                    p95_ms: Some(
                        5000.0,
                    ),
                },
            },
            speed: Speed {
                prefill: Some(
                    173.78246753246754,
                ),
                prefill_median: Some(
                    250.0,
                ),
                decode: Some(
                    5.0,
                ),
            },
            seconds_saved: Some(
                11.436,
            ),
            layout: LayoutStats {
                saved: 0,
                seconds_saved: None,
                offered: 0,
            },
            causes: [
                CauseCount {
                    cause: "diverged",
                    n_requests: 4,
                    n_computed: 1141,
                },
                CauseCount {
                    cause: "cold",
                    n_requests: 2,
                    n_computed: 1000,
                },
            ],
            evictions: [
                EvictionCount {
                    tier: "cells",
                    cause: "ids",
                    n_evictions: 1,
                    n_tokens: 200,
                },
                EvictionCount {
                    tier: "cells",
                    cause: "cells",
                    n_evictions: 2,
                    n_tokens: 96,
                },
            ],
            restores: [
                RestoreCount {
                    result: "restored",
                    n_restores: 1,
                    n_tokens: 300,
                    time_ms: 12.0,
                },
            ],
            more_ram: [
                MoreRam {
                    n_bytes: 67108864,
                    n_tokens: 30,
                },
                MoreRam {
                    n_bytes: 1073741824,
                    n_tokens: 42,
                },
            ],
            busiest: Some(
                CellsSample {
                    at_ms: 1000,
                    free: 59,
                    evictable: 20,
                    pinned: 30,
                    held: 41,
                    reserved: 7,
                    n_running: 2,
                    n_waiting: 1,
                },
            ),
        }
        "#);
    }

    #[test]
    fn an_empty_database_has_no_rates() {
        let (_folder, path, _store) = store();
        let stats = Reader::open(&path).unwrap().stats(0).unwrap();
        assert_eq!(stats.tokens, Tokens::default());
        assert_eq!(stats.speed, Speed::default());
        assert_eq!((stats.seconds_saved, stats.busiest), (None, None));
        assert_eq!(stats.ttft.all, Percentiles { n_requests: 0, p50_ms: None, p95_ms: None });
    }

    #[test]
    fn a_percentile_is_a_measured_value() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        for (sorted, percent, expected) in [
            (&hundred[..], 50, Some(50.0)),
            (&hundred[..], 95, Some(95.0)),
            (&hundred[..3], 50, Some(2.0)),
            (&hundred[..2], 50, Some(1.0)),
            (&hundred[..2], 95, Some(2.0)),
            (&hundred[..1], 95, Some(1.0)),
            (&[], 50, None),
        ] {
            assert_eq!(percentile(sorted, percent), expected, "p{percent} of {}", sorted.len());
        }
    }

    #[test]
    fn readers_come_and_go_while_the_writer_writes() {
        let (_folder, path, mut store) = store();
        let writer = std::thread::spawn(move || {
            let n_dropped: u64 = (0..200).map(|_| store.put(1, [Record::Request(request())])).sum();
            (store, n_dropped)
        });
        let mut before = 0;
        for _ in 0..20 {
            let tokens = Reader::open(&path).unwrap().stats(0).unwrap().tokens;
            assert!(tokens.prompt >= before && tokens.prompt.is_multiple_of(1_000));
            before = tokens.prompt;
        }
        let (mut store, n_dropped) = writer.join().unwrap();
        assert_eq!(n_dropped + store.put(1, [Record::Request(request())]), 0);
        assert_eq!(Reader::open(&path).unwrap().stats(0).unwrap().tokens.prompt, 201_000);
    }

    #[test]
    fn a_daemon_that_is_off_leaves_a_readable_database() {
        let (_folder, path, mut store) = store();
        store.put(1, [Record::Request(request())]);
        drop(store);
        assert_eq!(Reader::open(&path).unwrap().stats(0).unwrap().tokens.prompt, 1_000);
    }

    #[test]
    fn a_reader_cannot_write() {
        let (_folder, path, _store) = store();
        let reader = Reader::open(&path).unwrap();
        reader.connection.execute("DELETE FROM requests", ()).unwrap_err();
    }

    #[test]
    fn what_cannot_be_read_is_told_in_a_line() {
        let error = Reader::open(Path::new("/missing/hob.sqlite")).err().unwrap();
        insta::assert_snapshot!(error, @"no telemetry database at /missing/hob.sqlite; `hob serve` makes it when it starts");

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hob.sqlite");
        let connection = Connection::open(&path).unwrap();
        for (version, expected) in [(0, "Older"), (VERSION as u32 + 1, "Newer")] {
            connection.pragma_update(None, "user_version", version).unwrap();
            let error = Reader::open(&path).err().unwrap();
            assert!(format!("{error:?}").starts_with(expected), "{error:?}");
        }
    }
}
