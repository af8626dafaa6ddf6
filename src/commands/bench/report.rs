//! What was measured, and how it is printed.
//!
//! A *report* is all numbers of one run with the machine and the settings they belong to. Times are wall-clock on a machine that
//! may be busy, so its load stands beside them. Exact counts come before times; a missed goal is shown as missed.

use std::io::{self, Write};

use serde::Serialize;

use super::bound::Bound;
use super::drafts::Drafts;
use super::lookup::N_HELD;
use super::outside::Outside;
use super::threads::ThreadRow;
use crate::commands::format::Format;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub settings: Settings,
    #[serde(flatten)]
    pub house: Option<House>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside: Option<Vec<Outside>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<Vec<ThreadRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drafts: Option<Vec<Drafts>>,
    pub bound: Option<Bound>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct House {
    pub ttft: Ttft,
    pub lookup: Lookup,
    pub speed: Speed,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Hardware threads that this process may use.
    pub cpus: usize,
    pub cpu_model: Option<String>,
    /// Of the last minute, before and after; `None` where the system does not tell.
    pub load_before: Option<f64>,
    pub load_after: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    pub model: String,
    pub kv_type: &'static str,
    pub context: usize,
    /// Threads that decode.
    pub threads: usize,
    pub prefill_threads: usize,
    /// The environment's `GOMP_SPINCOUNT` and `OMP_WAIT_POLICY`: how llama.cpp's threads wait for each other.
    pub gomp_spincount: Option<String>,
    pub omp_wait_policy: Option<String>,
}

/// Time to first token, as a client sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ttft {
    pub profile: String,
    pub cold: Asking,
    pub warm: Asking,
    /// The first question after a restart.
    pub restarted: Asking,
    /// Stop, start, and until the profile is warm again; the weights stay loaded.
    pub restart_ms: f64,
    pub restarted_by_warm: f64,
    pub restarted_goal: Goal,
    pub cold_by_warm: f64,
    /// The engine's time for the same suffixes, behind the same cells.
    pub alone_ms: f64,
    pub alone_runs_ms: Vec<f64>,
    pub warm_by_alone: f64,
    pub goal: Goal,
}

/// Questions of one kind. Counts are the first question's, times are medians.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Asking {
    pub reused: usize,
    pub of: usize,
    pub ttft_ms: f64,
    /// By the daemon's own clock.
    pub inside_ms: f64,
    pub runs: Vec<Run>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    pub reused: usize,
    pub of: usize,
    pub ttft_ms: f64,
    pub inside_ms: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lookup {
    pub held_tokens: usize,
    pub us: f64,
    pub goal: Goal,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    pub prefill_tokens_per_second: f64,
    pub decode_tokens_per_second: f64,
    /// K/V out of the cells and back.
    pub save_bytes_per_second: f64,
    pub restore_bytes_per_second: f64,
    /// How many times faster than computing the same tokens.
    pub restore_by_prefill: f64,
}

/// An upper number, and whether what was measured keeps to it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goal {
    pub at_most: f64,
    pub is_met: bool,
}

impl Goal {
    pub(super) fn at_most(at_most: f64, measured: f64) -> Goal {
        Goal { at_most, is_met: measured <= at_most }
    }
}

/// A lower number, and whether what was measured reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Floor {
    pub at_least: f64,
    pub is_met: bool,
}

impl Floor {
    pub(super) fn at_least(at_least: f64, measured: f64) -> Floor {
        Floor { at_least, is_met: measured >= at_least }
    }

    fn text(self, format: Format) -> String {
        format!("   goal ≥ {}: {}", self.at_least, verdict(self.is_met, format))
    }
}

impl Report {
    pub fn write(&self, format: Format, mut out: impl Write) -> io::Result<()> {
        if format == Format::Json {
            serde_json::to_writer_pretty(&mut out, self)?;
            return writeln!(out);
        }
        self.write_head(format, &mut out)?;
        if let Some(House { ttft, lookup, speed }) = &self.house {
            for (title, lines) in [ttft.section(), lookup.section(), speed.section()] {
                write_section(format, &title, &lines, &mut out)?;
            }
        }
        if let Some(rows) = &self.outside {
            write_outside(format, rows, &mut out)?;
        }
        if let Some(rows) = &self.threads {
            write_threads(format, rows, &mut out)?;
        }
        if let Some(rows) = &self.drafts {
            write_drafts(format, rows, &mut out)?;
        }
        if let Some(bound) = &self.bound {
            write_bound(format, bound, &mut out)?;
        }
        Ok(())
    }

    fn write_head(&self, format: Format, out: &mut impl Write) -> io::Result<()> {
        let Report { machine, settings, .. } = self;
        let load = |load: Option<f64>| load.map_or("unknown".to_owned(), |load| format!("{load:.2}"));
        let variable = |name: &str, value: &Option<String>| match value {
            Some(value) => format!("{name}={value}"),
            None => format!("{name} unset"),
        };
        let cpu = machine.cpu_model.as_deref().unwrap_or("unknown processor");
        writeln!(out, "{}, {} cells, context {}", settings.model, settings.kv_type, settings.context)?;
        writeln!(
            out,
            "{} CPUs ({cpu}), load {} before and {} after; {} thread(s) decode, {} prefill, {}, {}",
            machine.cpus,
            load(machine.load_before),
            load(machine.load_after),
            settings.threads,
            settings.prefill_threads,
            variable("GOMP_SPINCOUNT", &settings.gomp_spincount),
            variable("OMP_WAIT_POLICY", &settings.omp_wait_policy),
        )?;
        let what = "Wall-clock times on whatever else this machine was doing; medians.";
        writeln!(out, "{}", format.dim(what))
    }
}

/// A line of a section: what, how much, what it should be.
struct Line {
    label: String,
    value: String,
    goal: Option<(Goal, &'static str)>,
}

fn line(label: impl Into<String>, value: String) -> Line {
    Line { label: label.into(), value, goal: None }
}

fn goal_line(label: impl Into<String>, value: String, goal: Goal, unit: &'static str) -> Line {
    Line { label: label.into(), value, goal: Some((goal, unit)) }
}

impl Goal {
    fn text(self, format: Format, unit: &str) -> String {
        format!("   goal ≤ {}{unit}: {}", self.at_most, verdict(self.is_met, format))
    }
}

fn verdict(is_met: bool, format: Format) -> String {
    if is_met { format.green("met") } else { format.red("missed") }
}

impl Ttft {
    fn section(&self) -> (String, Vec<Line>) {
        let Ttft { cold, warm, restarted, .. } = self;
        let counts = |asking: &Asking| format!("reused {} of {} tokens", asking.reused, asking.of);
        let inside = "  by the daemon's own clock";
        let lines = vec![
            line(format!("cold: {}", counts(cold)), format!("{:.1} ms", cold.ttft_ms)),
            line(inside, format!("{:.1} ms", cold.inside_ms)),
            line(format!("warm: {}", counts(warm)), format!("{:.1} ms", warm.ttft_ms)),
            line(inside, format!("{:.1} ms", warm.inside_ms)),
            line(format!("restarted: {}", counts(restarted)), format!("{:.1} ms", restarted.ttft_ms)),
            line(inside, format!("{:.1} ms", restarted.inside_ms)),
            line("stop, start and warm again, weights loaded", format!("{:.1} ms", self.restart_ms)),
            line("cold / warm", format!("{:.1}", self.cold_by_warm)),
            goal_line("restarted / warm", format!("{:.2}", self.restarted_by_warm), self.restarted_goal, ""),
            line("the same suffixes on the engine alone", format!("{:.1} ms", self.alone_ms)),
            goal_line("warm / alone", format!("{:.2}", self.warm_by_alone), self.goal, ""),
        ];
        (format!("Time to first token, profile {}", self.profile), lines)
    }
}

impl Lookup {
    fn section(&self) -> (String, Vec<Line>) {
        let value = format!("{:.1} µs", self.us);
        ("Prefix tree".to_owned(), vec![goal_line(format!("lookup, {N_HELD} tokens held"), value, self.goal, " µs")])
    }
}

impl Speed {
    fn section(&self) -> (String, Vec<Line>) {
        let speed = |tokens_per_second: f64| format!("{tokens_per_second:.1} tokens/s");
        let lines = vec![
            line("prefill, 256 tokens at once", speed(self.prefill_tokens_per_second)),
            line("decode, 30 steps", speed(self.decode_tokens_per_second)),
            line("save K/V", format!("{:.1} GB/s", self.save_bytes_per_second / 1e9)),
            line("restore it", format!("{:.1} GB/s", self.restore_bytes_per_second / 1e9)),
            line("restore / prefill, the same tokens", format!("{:.0} times", self.restore_by_prefill)),
        ];
        ("Engine alone, short context".to_owned(), lines)
    }
}

fn write_section(format: Format, title: &str, lines: &[Line], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{}", format.bold(title))?;
    for Line { label, value, goal } in lines {
        let goal = goal.map(|(goal, unit)| goal.text(format, unit)).unwrap_or_default();
        writeln!(out, "  {label:<42}{value:>16}{goal}")?;
    }
    Ok(())
}

fn write_outside(format: Format, rows: &[Outside], out: &mut impl Write) -> io::Result<()> {
    let n_tools = rows.first().map_or(0, |row| row.n_tools);
    writeln!(out, "\n{}", format.bold(format!("CPU outside the engine in ms, {n_tools} tools")))?;
    writeln!(out, "{:<30}tokens   parse   plan render tokenise  match    all", "")?;
    for row in rows {
        write!(
            out,
            "  {:<28}{:>6} {:>7.2} {:>6.2} {:>6.2} {:>8.2} {:>6.3} {:>6.2}",
            row.what, row.n_tokens, row.parse_ms, row.plan_ms, row.render_ms, row.tokenise_ms, row.match_ms, row.all_ms
        )?;
        writeln!(out, "{}", row.goal.map(|goal| goal.text(format, " ms")).unwrap_or_default())?;
    }
    Ok(())
}

fn write_threads(format: Format, rows: &[ThreadRow], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{}", format.bold("Threads, ms: median (worst)"))?;
    writeln!(out, "  {:<24}{:>22}{:>22}", "", "prefill 256 tokens", "decode 30 steps")?;
    for row in rows {
        let label = format!("{} {}", row.threads, if row.is_busy { "beside a busy thread" } else { "quiet" });
        let pair = |usual: f64, worst: f64| format!("{usual:.0} ({worst:.0})");
        let prefill = pair(row.prefill_ms, row.prefill_worst_ms);
        let decode = pair(row.decode_ms, row.decode_worst_ms);
        let mark = if row.is_configured { "   configured" } else { "" };
        writeln!(out, "  {label:<24}{prefill:>22}{decode:>22}{mark}")?;
    }
    Ok(())
}

fn write_drafts(format: Format, rows: &[Drafts], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{}", format.bold("Drafts, tokens/s"))?;
    writeln!(out, "  {:<24}{:>10}{:>10}{:>8}   accepted of drafted", "", "plain", "drafting", "ratio")?;
    for row in rows {
        writeln!(
            out,
            "  {:<24}{:>10.1}{:>10.1}{:>8.2}   {} of {}, {} said{}",
            row.text,
            row.plain_tokens_per_second,
            row.drafting_tokens_per_second,
            row.drafting_by_plain,
            row.n_accepted,
            row.n_drafted,
            row.n_tokens,
            row.goal.text(format)
        )?;
    }
    Ok(())
}

fn write_bound(format: Format, bound: &Bound, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{}", format.bold(format!("Answers that must call one of {} tools", bound.n_tools)))?;
    for (label, ms) in [
        ("from the tools to the grammar, first time", bound.rules_ms),
        ("a sampler under a known grammar", bound.sampler_ms),
        ("a step that nothing binds", bound.free_step_ms),
        ("a step whose choice fits", bound.fitting_step_ms),
        ("a step whose choice is refused", bound.refused_step_ms),
    ] {
        writeln!(out, "  {label:<42}{:>16}", format!("{ms:.2} ms"))?;
    }
    let label =
        format!("bound / free where 95 % fit ({} of {} did)", bound.n_fitting, bound.n_fitting + bound.n_refused);
    writeln!(out, "  {label:<48}{:>10.2}{}", bound.bound_by_free, bound.goal.text(format))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(reused: usize, ttft_ms: f64) -> Asking {
        let run = Run { reused, of: 3_390, ttft_ms, inside_ms: ttft_ms - 1.0 };
        Asking { reused, of: 3_390, ttft_ms, inside_ms: ttft_ms - 1.0, runs: vec![run] }
    }

    fn report() -> Report {
        let outside = |what, all_ms, goal: Option<f64>| Outside {
            what,
            n_tokens: 5_012,
            n_tools: 30,
            n_bytes: 18_000,
            parse_ms: 0.21,
            plan_ms: 0.04,
            render_ms: 3.5,
            tokenise_ms: 0.3,
            match_ms: 0.0042,
            all_ms,
            goal: goal.map(|goal| Goal::at_most(goal, all_ms)),
        };
        let threads = |threads, is_busy| ThreadRow {
            threads,
            is_busy,
            is_configured: threads == 1,
            prefill_ms: 600.4,
            prefill_worst_ms: 650.0,
            decode_ms: 450.0,
            decode_worst_ms: 11_400.0,
        };
        Report {
            machine: Machine {
                cpus: 2,
                cpu_model: Some("Some CPU".to_owned()),
                load_before: Some(0.42),
                load_after: None,
            },
            settings: Settings {
                model: "smol".to_owned(),
                kv_type: "f16",
                context: 8_192,
                threads: 1,
                prefill_threads: 2,
                gomp_spincount: Some("2000".to_owned()),
                omp_wait_policy: None,
            },
            outside: Some(vec![
                outside("first time", 40.0, None),
                outside("seen before, new at its end", 4.1, Some(15.0)),
                outside("tool-loop continuation", 5.2, Some(5.0)),
            ]),
            threads: Some(vec![threads(1, false), threads(2, true)]),
            drafts: Some(vec![Drafts {
                text: "prose",
                n_tokens: 576,
                n_drafted: 9,
                n_accepted: 4,
                plain_tokens_per_second: 100.0,
                drafting_tokens_per_second: 99.0,
                drafting_by_plain: 0.99,
                goal: Floor::at_least(0.97, 0.99),
            }]),
            bound: Some(Bound {
                n_tools: 12,
                rules_ms: 21.5,
                sampler_ms: 0.25,
                free_step_ms: 10.0,
                n_fitting: 190,
                fitting_step_ms: 10.0,
                n_refused: 10,
                refused_step_ms: 12.0,
                bound_by_free: 0.99,
                goal: Floor::at_least(0.9, 0.99),
            }),
            house: Some(House {
                ttft: Ttft {
                    profile: "house".to_owned(),
                    cold: asking(0, 11_200.0),
                    warm: asking(3_371, 80.0),
                    restarted: asking(3_371, 100.0),
                    restart_ms: 310.0,
                    restarted_by_warm: 1.25,
                    restarted_goal: Goal::at_most(2.0, 1.25),
                    cold_by_warm: 140.0,
                    alone_ms: 70.0,
                    alone_runs_ms: vec![70.0],
                    warm_by_alone: 80.0 / 70.0,
                    goal: Goal::at_most(1.1, 80.0 / 70.0),
                },
                lookup: Lookup { held_tokens: N_HELD, us: 8.25, goal: Goal::at_most(50.0, 8.25) },
                speed: Speed {
                    prefill_tokens_per_second: 430.0,
                    decode_tokens_per_second: 66.6,
                    save_bytes_per_second: 1.6e9,
                    restore_bytes_per_second: 12.3e9,
                    restore_by_prefill: 1_241.4,
                },
            }),
        }
    }

    fn printed(format: Format) -> String {
        let mut out = Vec::new();
        report().write(format, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn people_see_counts_then_times_and_what_was_missed() {
        insta::assert_snapshot!(printed(Format::Plain), @r#"
        smol, f16 cells, context 8192
        2 CPUs (Some CPU), load 0.42 before and unknown after; 1 thread(s) decode, 2 prefill, GOMP_SPINCOUNT=2000, OMP_WAIT_POLICY unset
        Wall-clock times on whatever else this machine was doing; medians.

        Time to first token, profile house
          cold: reused 0 of 3390 tokens                   11200.0 ms
            by the daemon's own clock                     11199.0 ms
          warm: reused 3371 of 3390 tokens                   80.0 ms
            by the daemon's own clock                        79.0 ms
          restarted: reused 3371 of 3390 tokens             100.0 ms
            by the daemon's own clock                        99.0 ms
          stop, start and warm again, weights loaded        310.0 ms
          cold / warm                                          140.0
          restarted / warm                                      1.25   goal ≤ 2: met
          the same suffixes on the engine alone              70.0 ms
          warm / alone                                          1.14   goal ≤ 1.1: missed

        Prefix tree
          lookup, 100000 tokens held                          8.2 µs   goal ≤ 50 µs: met

        Engine alone, short context
          prefill, 256 tokens at once                 430.0 tokens/s
          decode, 30 steps                             66.6 tokens/s
          save K/V                                          1.6 GB/s
          restore it                                       12.3 GB/s
          restore / prefill, the same tokens              1241 times

        CPU outside the engine in ms, 30 tools
                                      tokens   parse   plan render tokenise  match    all
          first time                    5012    0.21   0.04   3.50     0.30  0.004  40.00
          seen before, new at its end   5012    0.21   0.04   3.50     0.30  0.004   4.10   goal ≤ 15 ms: met
          tool-loop continuation        5012    0.21   0.04   3.50     0.30  0.004   5.20   goal ≤ 5 ms: missed

        Threads, ms: median (worst)
                                      prefill 256 tokens       decode 30 steps
          1 quiet                              600 (650)           450 (11400)   configured
          2 beside a busy thread               600 (650)           450 (11400)

        Drafts, tokens/s
                                       plain  drafting   ratio   accepted of drafted
          prose                        100.0      99.0    0.99   4 of 9, 576 said   goal ≥ 0.97: met

        Answers that must call one of 12 tools
          from the tools to the grammar, first time         21.50 ms
          a sampler under a known grammar                    0.25 ms
          a step that nothing binds                         10.00 ms
          a step whose choice fits                          10.00 ms
          a step whose choice is refused                    12.00 ms
          bound / free where 95 % fit (190 of 200 did)          0.99   goal ≥ 0.9: met
        "#);
    }

    #[test]
    fn what_is_missed_is_red() {
        let text = printed(Format::Coloured);
        assert_eq!((text.matches("\x1b[31mmissed").count(), text.matches("\x1b[32mmet").count()), (2, 5));
    }

    #[test]
    fn programs_get_every_number_under_a_stable_name() {
        insta::assert_snapshot!(printed(Format::Json), @r#"
        {
          "machine": {
            "cpus": 2,
            "cpu_model": "Some CPU",
            "load_before": 0.42,
            "load_after": null
          },
          "settings": {
            "model": "smol",
            "kv_type": "f16",
            "context": 8192,
            "threads": 1,
            "prefill_threads": 2,
            "gomp_spincount": "2000",
            "omp_wait_policy": null
          },
          "ttft": {
            "profile": "house",
            "cold": {
              "reused": 0,
              "of": 3390,
              "ttft_ms": 11200.0,
              "inside_ms": 11199.0,
              "runs": [
                {
                  "reused": 0,
                  "of": 3390,
                  "ttft_ms": 11200.0,
                  "inside_ms": 11199.0
                }
              ]
            },
            "warm": {
              "reused": 3371,
              "of": 3390,
              "ttft_ms": 80.0,
              "inside_ms": 79.0,
              "runs": [
                {
                  "reused": 3371,
                  "of": 3390,
                  "ttft_ms": 80.0,
                  "inside_ms": 79.0
                }
              ]
            },
            "restarted": {
              "reused": 3371,
              "of": 3390,
              "ttft_ms": 100.0,
              "inside_ms": 99.0,
              "runs": [
                {
                  "reused": 3371,
                  "of": 3390,
                  "ttft_ms": 100.0,
                  "inside_ms": 99.0
                }
              ]
            },
            "restart_ms": 310.0,
            "restarted_by_warm": 1.25,
            "restarted_goal": {
              "at_most": 2.0,
              "is_met": true
            },
            "cold_by_warm": 140.0,
            "alone_ms": 70.0,
            "alone_runs_ms": [
              70.0
            ],
            "warm_by_alone": 1.1428571428571428,
            "goal": {
              "at_most": 1.1,
              "is_met": false
            }
          },
          "lookup": {
            "held_tokens": 100000,
            "us": 8.25,
            "goal": {
              "at_most": 50.0,
              "is_met": true
            }
          },
          "speed": {
            "prefill_tokens_per_second": 430.0,
            "decode_tokens_per_second": 66.6,
            "save_bytes_per_second": 1600000000.0,
            "restore_bytes_per_second": 12300000000.0,
            "restore_by_prefill": 1241.4
          },
          "outside": [
            {
              "what": "first time",
              "tokens": 5012,
              "tools": 30,
              "bytes": 18000,
              "parse_ms": 0.21,
              "plan_ms": 0.04,
              "render_ms": 3.5,
              "tokenise_ms": 0.3,
              "match_ms": 0.0042,
              "all_ms": 40.0,
              "goal": null
            },
            {
              "what": "seen before, new at its end",
              "tokens": 5012,
              "tools": 30,
              "bytes": 18000,
              "parse_ms": 0.21,
              "plan_ms": 0.04,
              "render_ms": 3.5,
              "tokenise_ms": 0.3,
              "match_ms": 0.0042,
              "all_ms": 4.1,
              "goal": {
                "at_most": 15.0,
                "is_met": true
              }
            },
            {
              "what": "tool-loop continuation",
              "tokens": 5012,
              "tools": 30,
              "bytes": 18000,
              "parse_ms": 0.21,
              "plan_ms": 0.04,
              "render_ms": 3.5,
              "tokenise_ms": 0.3,
              "match_ms": 0.0042,
              "all_ms": 5.2,
              "goal": {
                "at_most": 5.0,
                "is_met": false
              }
            }
          ],
          "threads": [
            {
              "threads": 1,
              "is_busy": false,
              "is_configured": true,
              "prefill_ms": 600.4,
              "prefill_worst_ms": 650.0,
              "decode_ms": 450.0,
              "decode_worst_ms": 11400.0
            },
            {
              "threads": 2,
              "is_busy": true,
              "is_configured": false,
              "prefill_ms": 600.4,
              "prefill_worst_ms": 650.0,
              "decode_ms": 450.0,
              "decode_worst_ms": 11400.0
            }
          ],
          "drafts": [
            {
              "text": "prose",
              "tokens": 576,
              "drafted": 9,
              "accepted": 4,
              "plain_tokens_per_second": 100.0,
              "drafting_tokens_per_second": 99.0,
              "drafting_by_plain": 0.99,
              "goal": {
                "at_least": 0.97,
                "is_met": true
              }
            }
          ],
          "bound": {
            "tools": 12,
            "rules_ms": 21.5,
            "sampler_ms": 0.25,
            "free_step_ms": 10.0,
            "fitting": 190,
            "fitting_step_ms": 10.0,
            "refused": 10,
            "refused_step_ms": 12.0,
            "bound_by_free": 0.99,
            "goal": {
              "at_least": 0.9,
              "is_met": true
            }
          }
        }
        "#);
    }
}
