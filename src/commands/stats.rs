//! `hob stats`: what the cache did for the house in the last hours.
//!
//! The numbers are `telemetry::Stats`; this file only says them, as a table or as JSON. The daemon may be on or off.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::format::{Format, grouped, milliseconds};
use crate::config::{Config, write_duration, write_size};
use crate::telemetry::{Reader, Stats, TelemetryError};

#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("cannot write the statistics")]
    Write(#[from] io::Error),
}

/// Prints what happened since `since` ago.
pub fn stats(config: &Config, since: Duration, format: Format, out: &mut impl Write) -> Result<(), StatsError> {
    let since_time = SystemTime::now().checked_sub(since).unwrap_or(UNIX_EPOCH);
    let since_ms = since_time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let stats = Reader::open(&config.telemetry.path)?.stats(since_ms)?;
    match format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, &stats).map_err(io::Error::from)?;
            writeln!(out)?;
        }
        Format::Plain | Format::Coloured => write_table(&stats, since, format, out)?,
    }
    Ok(())
}

fn write_table(stats: &Stats, since: Duration, format: Format, out: &mut impl Write) -> io::Result<()> {
    let n_requests: u64 = stats.requests.iter().map(|count| count.n_requests).sum();
    let finishes: Vec<String> =
        stats.requests.iter().map(|count| format!("{} {}", grouped(count.n_requests), count.finish)).collect();
    let since = write_duration(since);
    if n_requests == 0 {
        writeln!(out, "no requests in the last {since}")?;
    } else {
        writeln!(out, "{} in the last {since}: {}", format.bold(counted(n_requests, "request")), finishes.join(", "))?;
    }
    for (index, (head, lines)) in sections(stats).into_iter().enumerate() {
        if index == 0 {
            writeln!(out)?;
        }
        for (index, line) in lines.iter().enumerate() {
            let head = if index == 0 { head } else { "" };
            // Padded before it is painted: a colour has no width.
            writeln!(out, "{} {line}", format.bold(format_args!("{head:<10}")))?;
        }
    }
    Ok(())
}

/// Each head with its lines; a section without anything to say has none.
fn sections(stats: &Stats) -> Vec<(&'static str, Vec<String>)> {
    let Stats { tokens, ttft, speed, .. } = stats;
    let mut sections = Vec::new();
    if let Some(hit_rate) = tokens.hit_rate {
        let [prompt, reused, computed] = [tokens.prompt, tokens.reused, tokens.computed].map(grouped);
        sections.push((
            "reuse",
            vec![
                format!("{:.1} % of all prompt tokens", hit_rate * 100.0),
                format!("{prompt} in prompts, {reused} reused, {computed} computed"),
                format!("{} generated", grouped(tokens.generated)),
            ],
        ));
    }
    if tokens.drafted > 0 {
        let share = 100.0 * tokens.accepted as f64 / tokens.drafted as f64;
        let [drafted, accepted] = [tokens.drafted, tokens.accepted].map(grouped);
        sections.push(("drafts", vec![format!("{share:.1} % accepted: {drafted} tokens guessed, {accepted} right")]));
    }
    let rows = [("all", &ttft.all), ("warm", &ttft.warm), ("cold", &ttft.cold)];
    let ttft = rows.into_iter().filter_map(|(name, percentiles)| {
        let (p50, p95) = (milliseconds(percentiles.p50_ms?), milliseconds(percentiles.p95_ms?));
        let n_requests = grouped(percentiles.n_requests);
        Some(format!("{name:<5} p50 {p50:>9}   p95 {p95:>9}   of {n_requests}"))
    });
    sections.push(("TTFT", ttft.collect()));
    let speeds = [("prefill", speed.prefill), ("decode", speed.decode)];
    let speeds = speeds.into_iter().filter_map(|(name, speed)| Some(format!("{name:<8} {:>8.1} tokens/s", speed?)));
    sections.push(("speed", speeds.collect()));
    if let (Some(seconds), Some(median)) = (stats.seconds_saved, speed.prefill_median) {
        let saved = format!("{seconds:.1} s: the reused tokens at the median prefill speed, {median:.1} tokens/s");
        sections.push(("saved", vec![saved]));
    }
    let layout = &stats.layout;
    let mut lines = Vec::new();
    if layout.saved > 0 {
        let seconds = layout.seconds_saved.map(|seconds| format!(", {seconds:.1} s of the saved ones"));
        let n_saved = grouped(layout.saved);
        lines.push(format!("{n_saved} of the reused tokens as sent would be computed{}", seconds.unwrap_or_default()));
    }
    if layout.offered > 0 {
        lines.push(format!("{} more would be reused if what changes might move (observed)", grouped(layout.offered)));
    }
    sections.push(("layout", lines));
    let causes = stats.causes.iter().map(|count| {
        let (n_computed, requests) = (grouped(count.n_computed), counted(count.n_requests, "request"));
        format!("{:<12} {n_computed:>10} tokens computed in {requests}", count.cause)
    });
    sections.push(("causes", causes.collect()));
    let evictions = stats.evictions.iter().map(|count| {
        let (n_tokens, evictions) = (grouped(count.n_tokens), counted(count.n_evictions, "eviction"));
        let what = format!("{}, {}", count.tier, count.cause);
        format!("{what:<15} {n_tokens:>7} tokens in {evictions}")
    });
    sections.push(("evictions", evictions.collect()));
    let restores = stats.restores.iter().map(|count| {
        let (n_tokens, restores) = (grouped(count.n_tokens), counted(count.n_restores, "restore"));
        let time = match count.result.as_str() {
            "slower" => "computing them was faster".to_owned(),
            _ => milliseconds(count.time_ms),
        };
        format!("{:<15} {n_tokens:>7} tokens in {restores}, {time}", count.result)
    });
    sections.push(("restores", restores.collect()));
    let more_ram = stats.more_ram.iter().map(|point| {
        let more = format!("{} more", write_size(point.n_bytes));
        format!("{more:<15} {:>7} tokens would not have been computed", grouped(point.n_tokens))
    });
    sections.push(("with RAM", more_ram.collect()));
    if let Some(busiest) = &stats.busiest {
        let total = busiest.free + busiest.evictable + busiest.pinned + busiest.held;
        let [total, pinned, held, reserved] = [total, busiest.pinned, busiest.held, busiest.reserved].map(grouped);
        sections.push((
            "busiest",
            vec![format!(
                "{pinned} cells pinned, {held} held, {reserved} reserved, of {total}; {} running, {} waiting",
                busiest.n_running, busiest.n_waiting
            )],
        ));
    }
    sections
}

fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tempfile::TempDir;

    use super::*;
    use crate::telemetry::{
        CellsRecord, EvictionRecord, GainRecord, Label, MissedRecord, PlanRecord, Record, RequestRecord, RestoreRecord,
        Store, TelemetryHandle, inbox,
    };

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    /// A house's configuration, with these records in its database.
    fn house(record: impl FnOnce(&TelemetryHandle)) -> (TempDir, Config) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(&file, "telemetry.path = \"hob.sqlite\"").unwrap();
        let config = Config::load(&file).unwrap();
        let store = Store::open(&config.telemetry.path, 90, DAY).unwrap();
        let (handle, inbox) = inbox();
        record(&handle);
        handle.stop();
        store.run(inbox);
        (folder, config)
    }

    fn busy_day(handle: &TelemetryHandle) {
        for (n_reused_cells, ttft_ms, cause) in
            [(0, 12_000, "cold"), (2_300, 480, "appended"), (2_310, 450, "appended")]
        {
            let n_computed = 2_402 - n_reused_cells;
            let (layout, gain) = match n_reused_cells {
                0 => ("off", None),
                2_300 => ("observe", Some(GainRecord { from: 1_000, to: Some(2_440) })),
                _ => ("safe", Some(GainRecord { from: 1_000, to: None })),
            };
            let plan = PlanRecord { layout: layout.into(), gain, ..PlanRecord::default() };
            handle.record(Record::Request(RequestRecord {
                label: Label {
                    id: "r".to_owned(),
                    client: "127.0.0.1".to_owned(),
                    profile: None,
                    dialect: "openai",
                    plan: Some(Arc::new(plan)),
                },
                n_prompt: 2_402,
                n_reused_cells,
                n_reused_ram: 0,
                n_reused_disk: 0,
                n_computed,
                n_generated: 41,
                n_drafted: if n_reused_cells == 0 { 0 } else { 20 },
                n_accepted: if n_reused_cells == 0 { 0 } else { 17 },
                queue: Duration::ZERO,
                ttft: Some(Duration::from_millis(ttft_ms)),
                prefill: Duration::from_millis(5 * n_computed as u64),
                decode: Duration::from_secs(2),
                finish: if n_reused_cells == 0 { "length" } else { "stop" },
                cause,
                miss_at: n_reused_cells,
            }));
        }
        for (tier, cause, n_tokens) in [("cells", "cells", 1_234), ("cells", "idle", 600), ("ram", "room", 410)] {
            handle.record(Record::Eviction(EvictionRecord { tier, cause, n_tokens, n_bytes: 9_999 }));
        }
        let time = Duration::from_millis(31);
        handle.record(Record::Restore(RestoreRecord { result: "restored", n_tokens: 600, n_bytes: 9_999, time }));
        handle.record(Record::Restore(RestoreRecord { result: "slower", n_tokens: 40, n_bytes: 0, time }));
        handle.record(Record::Missed(MissedRecord { n_tokens: 410, n_more_bytes: 200 << 20 }));
        handle.record(Record::Cells(CellsRecord {
            free: 1_000,
            evictable: 24,
            pinned: 2_300,
            held: 772,
            reserved: 256,
            n_running: 2,
            n_waiting: 1,
        }));
    }

    fn printed(config: &Config, format: Format) -> String {
        let mut out = Vec::new();
        stats(config, DAY, format, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_busy_day_is_a_table() {
        let (_folder, config) = house(busy_day);
        insta::assert_snapshot!(printed(&config, Format::Plain), @"
        3 requests in the last 1d: 2 stop, 1 length

        reuse      64.0 % of all prompt tokens
                   7,206 in prompts, 4,610 reused, 2,596 computed
                   123 generated
        drafts     85.0 % accepted: 40 tokens guessed, 34 right
        TTFT       all   p50    480 ms   p95    12.0 s   of 3
                   warm  p50    450 ms   p95    480 ms   of 2
                   cold  p50    12.0 s   p95    12.0 s   of 1
        speed      prefill     200.0 tokens/s
                   decode       20.0 tokens/s
        saved      23.1 s: the reused tokens at the median prefill speed, 200.0 tokens/s
        layout     1,310 of the reused tokens as sent would be computed, 6.5 s of the saved ones
                   140 more would be reused if what changes might move (observed)
        causes     cold              2,402 tokens computed in 1 request
                   appended            194 tokens computed in 2 requests
        evictions  cells, cells      1,234 tokens in 1 eviction
                   cells, idle         600 tokens in 1 eviction
                   ram, room           410 tokens in 1 eviction
        restores   restored            600 tokens in 1 restore, 31 ms
                   slower               40 tokens in 1 restore, computing them was faster
        with RAM   256MiB more         410 tokens would not have been computed
        busiest    2,300 cells pinned, 772 held, 256 reserved, of 4,096; 2 running, 1 waiting
        ");
    }

    #[test]
    fn colours_change_no_letter() {
        let (_folder, config) = house(busy_day);
        let coloured = printed(&config, Format::Coloured);
        assert!(coloured.contains("\x1b[1m"));
        assert_eq!(coloured.replace("\x1b[1m", "").replace("\x1b[0m", ""), printed(&config, Format::Plain));
    }

    #[test]
    fn json_keeps_its_names() {
        let (_folder, config) = house(busy_day);
        let mut json: serde_json::Value = serde_json::from_str(&printed(&config, Format::Json)).unwrap();
        json["since_ms"] = 0.into();
        json["busiest"]["at_ms"] = 0.into();
        insta::assert_snapshot!(json, @r#"{"since_ms":0,"requests":[{"finish":"stop","n_requests":2},{"finish":"length","n_requests":1}],"tokens":{"prompt":7206,"reused":4610,"computed":2596,"generated":123,"drafted":40,"accepted":34,"hit_rate":0.639744657230086},"ttft":{"all":{"n_requests":3,"p50_ms":480.0,"p95_ms":12000.0},"warm":{"n_requests":2,"p50_ms":450.0,"p95_ms":480.0},"cold":{"n_requests":1,"p50_ms":12000.0,"p95_ms":12000.0}},"speed":{"prefill":200.0,"prefill_median":200.0,"decode":20.0},"seconds_saved":23.05,"layout":{"saved":1310,"seconds_saved":6.55,"offered":140},"causes":[{"cause":"cold","n_requests":1,"n_computed":2402},{"cause":"appended","n_requests":2,"n_computed":194}],"evictions":[{"tier":"cells","cause":"cells","n_evictions":1,"n_tokens":1234},{"tier":"cells","cause":"idle","n_evictions":1,"n_tokens":600},{"tier":"ram","cause":"room","n_evictions":1,"n_tokens":410}],"restores":[{"result":"restored","n_restores":1,"n_tokens":600,"time_ms":31.0},{"result":"slower","n_restores":1,"n_tokens":40,"time_ms":31.0}],"more_ram":[{"n_bytes":268435456,"n_tokens":410}],"busiest":{"at_ms":0,"free":1000,"evictable":24,"pinned":2300,"held":772,"reserved":256,"n_running":2,"n_waiting":1}}"#);
    }

    #[test]
    fn a_quiet_day_is_a_line() {
        let (_folder, config) = house(|_| {});
        assert_eq!(printed(&config, Format::Plain).lines().next(), Some("no requests in the last 1d"));
    }

    #[test]
    fn a_house_that_never_served_is_told_so() {
        let (_folder, config) = house(|_| {});
        std::fs::remove_file(&config.telemetry.path).unwrap();
        let error = stats(&config, DAY, Format::Plain, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.starts_with("no telemetry database at "), "{error}");
    }
}
